"""The bill of materials lists the pins, and a wheel with the wrong contents is refused."""

from __future__ import annotations

import json
import zipfile

import release
import sbom
from metamirror._version import __version__


def test_the_bill_is_that_of_the_pins():
    bill = json.loads(sbom.FILE.read_text())
    assert bill == sbom.bill(), "run: python tools/sbom.py --write"
    assert bill["metadata"]["component"]["version"] == __version__
    names = {component["name"] for component in bill["components"]}
    assert {"torch", "numpy", "safetensors"} <= names


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {__version__}\n" in (release.ROOT / "CITATION.cff").read_text()
    changes = (release.ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {__version__}\n" in changes


def test_what_does_not_belong_into_a_wheel_is_named(tmp_path):
    wheel = tmp_path / "metamirror-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("metamirror/py.typed", "")
        archive.writestr("tests/test_imports.py", "")
    wrong = list(release.faults(wheel))
    assert "tests/test_imports.py does not belong into the wheel" in wrong
    assert "the start photos is missing from the wheel" in wrong
    assert not any("py.typed" in fault for fault in wrong)
