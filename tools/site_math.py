"""A hook of mkdocs: formulas become MathML when the site is built, so that no script is needed."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def with_mathml(page: str) -> str:
    """The page with every formula as browsers show it by themselves.

    >>> "<msup>" in with_mathml('<span class="arithmatex">\\\\(z^2\\\\)</span>')
    True
    """
    page = INLINE.sub(lambda found: _mathml(found[1], "inline"), page)
    return BLOCK.sub(lambda found: f'<div class="formula">{_mathml(found[1], "block")}</div>', page)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    content = with_mathml(content)
    if "arithmatex" in content:
        raise PluginError(f"{page.file.src_uri}: a formula was left over")
    return content
