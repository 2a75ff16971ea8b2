"""What is known against the pinned dependencies, as pip-audit asks it: `make audit`.

    python tools/audit.py    # writes results/faults/dependencies.json

Two questions for each line of constraints.txt: which vulnerabilities are published for this version
(the package index's JSON, the source that pip-audit takes by default), and whether it has been
withdrawn, or followed by newer ones (the index's own list of files). A source that cannot be
reached is recorded as such: no answer is not a clean bill.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from metamirror.core.files import write_json

ROOT = Path(__file__).parents[1]
INDEX = "https://pypi.org"
SECONDS = 20
FILE = re.compile(r"<a ([^>]*)>([^<]+)</a>")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def fetched(address: str) -> str | None:
    """The page, or None if it is not there or nobody answers."""
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, TimeoutError):
        return None


def vulnerabilities(name: str, version: str) -> list[str] | None:
    page = fetched(f"{INDEX}/pypi/{name}/{version}/json")
    if page is None:
        return None
    return [entry["id"] for entry in json.loads(page).get("vulnerabilities", [])]


def releases(name: str) -> dict[Version, bool] | None:
    """Every release with whether all its files have been withdrawn."""
    page = fetched(f"{INDEX}/simple/{canonicalize_name(name)}/")
    if page is None:
        return None
    found: dict[Version, bool] = {}
    for attributes, file in FILE.findall(page):
        try:
            parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
            version = parse(file)[1]
        except ValueError:
            continue
        found[version] = found.get(version, True) and "data-yanked" in attributes
    return found


def asked(name: str, version: str) -> dict[str, Any]:
    known, own = releases(name), Version(version)
    newer = sorted(v for v in known or () if v > own and not v.is_prerelease)
    return {
        "version": version,
        "vulnerabilities": vulnerabilities(name, version),
        "withdrawn": None if known is None else known.get(own),
        "newest": None if known is None else str(newer[-1] if newer else own),
    }


def main() -> None:
    found = {name: asked(name, version) for name, version in pins().items()}
    answered = [pin for pin in found.values() if pin["vulnerabilities"] is not None]
    out = ROOT / "results" / "faults" / "dependencies.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        out,
        {
            "command": "make audit",
            "pinned": len(found),
            "asked_for_vulnerabilities": len(answered),
            "with_vulnerabilities": sorted(n for n, p in found.items() if p["vulnerabilities"]),
            "looked_up_in_the_index": sum(p["withdrawn"] is not None for p in found.values()),
            "withdrawn": sorted(n for n, p in found.items() if p["withdrawn"]),
            "pins": found,
        },
    )
    bad = [n for n, p in found.items() if p["vulnerabilities"] or p["withdrawn"]]
    if bad:
        sys.exit(f"known against: {', '.join(bad)}; see results/faults/dependencies.json")
    if not answered:
        print("the database of vulnerabilities could not be reached: nothing is known of them")


if __name__ == "__main__":
    main()
