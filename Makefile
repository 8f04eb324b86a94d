# Needs only make and Python 3.11 or later: everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Modules that Python and pytest have compiled are kept, whatever the shell says: each test process would do it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick lint types docs dist bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY) ## make .venv with everything installed; quick when nothing changed

# The check of the version is written for any Python, however old, so that it can say so.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make setup: $(PYTHON) not found; install Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(0 if sys.version_info >= (3, 11) else \
	  "make setup: $(PYTHON) is Python " + v + "; expected 3.11 or later, as in: make setup PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing thermoformer and its tools into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,docs,bench]'
	@touch $@

demo: setup ## run one quick experiment of each theory, and tell where the page about both is
	@$(BIN)/thermoformer demo

# Four files at a time, for two cores: tests in a browser or of other processes wait most of the time. conftest.py puts
# the slow files first.
PYTEST := $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 10

test: setup ## run all tests
	@$(PYTEST)

test-quick: setup ## run the tests that need no browser, no processes to be killed and no long chains
	@$(PYTEST) -m 'not slow'

lint: setup ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## check types, those of the code in README too
	@mkdir -p build
	@sed -n '/^```python$$/,/^```$$/{/^```/d;p;}' README.md >build/readme.py
	@$(BIN)/pyright src build/readme.py
	@MYPYPATH=src $(BIN)/mypy --no-site-packages --ignore-missing-imports --follow-imports=silent --cache-dir build/mypy build/readme.py

# Four at a time even on two cores: Sphinx deals pages out in runs of ten, and a few of them take long.
docs: setup ## build the documentation; a warning is an error
	@$(BIN)/sphinx-build -W --keep-going -q -j 4 -b html docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

# A package index shows README without the files beside it.
dist: setup ## build the package; REPOSITORY=https://... makes links and images of its README absolute
	@rm -rf build/package && mkdir -p build/package && git archive HEAD | tar -x -C build/package
	@test -z "$(REPOSITORY)" || sed -i.relative -E -e 's#(!\[[^]]*\]\()docs/#\1$(REPOSITORY)/raw/HEAD/docs/#g' \
	  -e 's#(\]\()(docs/|examples|[A-Z]+[.]md|LICENSE)#\1$(REPOSITORY)/blob/HEAD/\2#g' build/package/README.md
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist build/package

bench: setup ## run the benchmarks that need no weights and no browser; each has a baseline in the same run
	@set -e; for script in benchmarks/solve.py benchmarks/scaling.py benchmarks/neighbours.py benchmarks/sampling.py benchmarks/dynamics.py benchmarks/sweeps.py; do echo "== $$script"; $(BIN)/python $$script; done

clean: ## remove .venv, caches and built files; results/ stays
	rm -rf $(VENV) build dist docs/_build docs/gallery docs/jupyter_execute .pytest_cache .ruff_cache .hypothesis .jupyter_cache .programs
	find src tests benchmarks docs examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
