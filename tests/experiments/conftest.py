"""A method of the user's own, in a module that no process knows before it imports it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from metamirror.methods import METHODS

MODULE = """
from dataclasses import replace

import metamirror as mm

mm.METHODS["own"] = replace(mm.METHODS["metasgd"], key="own", title="My own")
"""


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Stand in the folder of `own_module`, which registers the method whose key this returns."""
    (tmp_path / "own_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Whatever the module registers is gone after the test.
    monkeypatch.setitem(METHODS, "own", METHODS["metasgd"])
    monkeypatch.delitem(METHODS, "own")
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    return "own"
