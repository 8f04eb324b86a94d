"""How the documentation is built: `make docs`. Nothing is fetched, neither by the build nor by its pages."""

import os
import sys
from pathlib import Path

import thermoformer
from thermoformer._programs import keep_programs

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# The code of pages and notebooks uses the compiled programs that the tests have kept: the same folder, the same flags.
FLAGS = "--xla_cpu_multi_thread_eigen=false --xla_backend_extra_options=xla_cpu_disable_tiled_emitter"
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("THERMOFORMER_CACHE", str(Path(__file__).parents[1] / ".programs"))
keep_programs()
# Pages run side by side, and threads of BLAS and PyTorch would wait for those of other pages: with two threads the
# build takes more than twice as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "thermoformer"
author = "thermoformer developers"
copyright = author
version = release = thermoformer.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "house_docstrings",
    "mathml",
    "gallery",
    "page_extras",
]
# Notebooks of the gallery are files to download; their pages are Markdown.
exclude_patterns = ["_build", "_ext", "jupyter_execute", "gallery/*.ipynb"]
autosummary_generate = False
# Examples are copied without prompts and without what they print.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Dashes only: a quoted word in a docstring is a value to type, and keeps its straight quotes.
smartquotes_action = "D"

html_theme = "furo"
html_title = f"thermoformer {release}"
html_static_path = ["_static"]
html_css_files = ["house.css"]
html_math_renderer = "mathml"
html_show_copyright = False
html_copy_source = False

myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The tutorial runs anew in every build: a cached result would hide what a change of the library did to it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
# Seconds for one cell. The slowest takes a few seconds on a machine that does nothing else, minutes on a busy one.
nb_execution_timeout = 900
nb_merge_streams = True

# In docstrings a name in backticks is a name: of this library where there is one, and a literal elsewhere.
default_role = "py:obj"
add_module_names = False
python_maximum_signature_line_length = 80
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style")]
