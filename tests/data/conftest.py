"""A store of its own for each test that asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from metamirror.data.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("METAMIRROR_HOME", str(tmp_path / "home"))
    return Store(tmp_path / "home")
