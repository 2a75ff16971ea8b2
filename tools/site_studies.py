"""A hook of mkdocs: the generated pages of docs/studies stand in the nav, under "Studies"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SECTION = "Studies"


def on_config(config: Any) -> Any:
    """Add them to the section that mkdocs.yml leaves empty but for the pages written by hand."""
    studies = Path(config.docs_dir) / "studies"
    for part in config.nav:
        for section in part.get("Results", []) if isinstance(part, dict) else []:
            if SECTION in section:
                given = section[SECTION]
                found = sorted(f"studies/{page.name}" for page in studies.glob("*.md"))
                section[SECTION] = [page for page in found if page not in given] + given
    return config
