"""A hook of mkdocs: pages load from the site itself, and their search works from the disk too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

# Links that a reader may follow are no loads.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'>\s]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon))[^>]*"""
    r"""\bhref=["']?(?:https?:)?//[^"'>\s]+"""
)


def loads(page: str) -> list[str]:
    """Tags that fetch something from another machine.

    >>> loads('<a href="https://example.org">read</a> <script src="js/own.js"></script>')
    []
    >>> loads('<link href="https://example.org/a.css" rel="stylesheet">')
    ['<link href="https://example.org/a.css']
    """
    return LOADS.findall(page)


def on_post_build(*, config: Any, **_: Any) -> None:
    index = Path(config.site_dir) / "search" / "search_index.json"
    if index.exists():  # from a file, pages read no JSON, but run scripts
        index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")
    for file in sorted(Path(config.site_dir).rglob("*.html")):
        if found := loads(file.read_text()):
            raise PluginError(f"{file.name} loads from elsewhere: {found[0]}")
