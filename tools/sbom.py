"""The software bill of materials, sbom.cdx.json: the pins of constraints.txt as CycloneDX.

    python tools/sbom.py            # says whether the file is out of date
    python tools/sbom.py --write    # writes it

It has no date and no serial number, so that the same pins give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from audit import pins
from metamirror._version import __version__
from metamirror.core.files import write_atomically

FILE = Path(__file__).parents[1] / "sbom.cdx.json"


def component(name: str, version: str, kind: str = "library") -> dict[str, str]:
    """Return a package of the Python index as CycloneDX names it.

    >>> component("Jinja2", "3.1.6")["purl"]
    'pkg:pypi/jinja2@3.1.6'
    """
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def bill() -> dict[str, Any]:
    own = component("metamirror", __version__, "application")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**own, "licenses": [{"license": {"id": "MIT"}}]}},
        "components": [component(name, version) for name, version in pins().items()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the file")
    new = json.dumps(bill(), indent=1).encode() + b"\n"
    if parser.parse_args().write:
        write_atomically(FILE, new)
    elif not FILE.exists() or FILE.read_bytes() != new:
        sys.exit("out of date: python tools/sbom.py --write")


if __name__ == "__main__":
    main()
