"""The wheel works without the repository beside it.

It is built from the sources and installed, alone, into a new environment, which sees the packages
of this one through a path. So this leaves untested that pip finds the dependencies which the wheel
names, and that their newest versions do: `make wheel-test` does that, in an empty environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from metamirror._version import __version__
from metamirror.experiments.quickstart import SHOWN

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: a build leaves traces, and must not find those of an earlier one."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=leave)
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), str(source))
    (found,) = out.glob("*.whl")
    return found


def pip(python: str | Path, *words: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_is_pure_and_complete(wheel):
    assert wheel.name == f"metamirror-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    kept = {
        str(file.relative_to(source))
        for file in (source / "metamirror").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert kept <= inside
    assert {name.split("/")[0] for name in inside} == {
        "metamirror",
        f"metamirror-{__version__}.dist-info",
    }


@pytest.mark.timeout(1200)  # of which a minute is the quickstart, on a machine that has time
def test_a_stranger_runs_the_quickstart(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    scripts = tmp_path / "venv" / "bin"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")}))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("install", "--no-deps", "--no-index", "--prefix", str(tmp_path / "venv"))
    pip(scripts / "python", *install, "--ignore-installed", str(wheel))
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "METAMIRROR_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=stranger, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(str(scripts / "python"), "-c", "import metamirror; print(metamirror.__file__)")
    assert Path(where.strip()).is_relative_to(packages)
    command = str(scripts / "metamirror")
    assert run(command, "--version").startswith(f"metamirror {__version__} (Python 3.")
    assert "report.html" in run(command, "quickstart", "--minutes", "1")
    rows = json.loads((stranger / "quickstart" / "table.json").read_text())["rows"]
    assert {row["status"] for row in rows} == {"done"}
    assert set(SHOWN) <= {row["method"] for row in rows}
    assert (stranger / "quickstart" / "report.html").is_file()
    # Nothing is left beside what was asked for.
    assert [path.name for path in stranger.iterdir()] == ["quickstart"]
