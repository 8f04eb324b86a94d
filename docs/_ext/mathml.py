"""Formulas as MathML, which browsers draw themselves: pages need no script and no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(translator, node, as_block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(_mathml(translator, node, as_block=True))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _mathml(translator: Any, node: nodes.Element, *, as_block: bool) -> str:
    formula = node.astext()
    try:
        return _polish(tex2mathml(formula, as_block=as_block))
    except MathError as error:
        logger.warning("formula %s: %s", formula, error, location=node)
        return translator.encode(formula)


def _polish(mathml: str) -> str:
    """A thin space between a function's name and its bare argument, as TeX has it, and primes that look like primes."""
    mathml = re.sub(r"<mo>&ApplyFunction;</mo>(?!\s*(<mrow>\s*)?<mo)", '<mspace width="0.1667em"></mspace>', mathml)
    return mathml.replace("<mo>'</mo>", '<mo lspace="0" rspace="0">′</mo>')


def setup(app: Sphinx) -> dict[str, bool]:
    """The renderer `mathml`; the converter is docutils' own."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True}
