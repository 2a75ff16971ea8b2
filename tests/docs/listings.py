"""The listings of a page, run as one module, whose classes can then be pickled."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

LISTING = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def listings(page: Path) -> list[str]:
    return LISTING.findall(page.read_text())


def run(page: Path) -> types.ModuleType:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    for listing in listings(page):
        exec(compile(listing, page.name, "exec"), vars(module))
    return module
