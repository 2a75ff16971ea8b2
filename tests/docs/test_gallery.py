"""The scripts of examples/gallery/ run as they stand; their pages show them as they are."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import gallery
import metamirror as mm


def test_every_script_has_its_page():
    assert {file.stem for file in gallery.SCRIPTS.glob("*.py")} == set(gallery.NAMES)
    assert {file.stem for file in gallery.PAGES.glob("*.md")} == set(gallery.NAMES)


@pytest.mark.parametrize("name", gallery.NAMES)
def test_the_page_is_that_of_the_script(name):
    """And what it shows was printed by this code: `page` refuses a record of other code."""
    page = (gallery.PAGES / f"{name}.md").read_text()
    assert page == gallery.page(name), "run: python tools/gallery.py --write"
    figures = gallery.FIGURE.findall((gallery.SCRIPTS / f"{name}.py").read_text())
    assert figures
    for figure in figures:
        assert (gallery.PAGES / figure).stat().st_size < 150_000


def test_a_record_of_other_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "SCRIPTS", tmp_path)
    old = (gallery.ROOT / "examples" / "gallery" / "letters.py").read_text()
    (tmp_path / "letters.py").write_text(old + "print(1)\n")
    with pytest.raises(ValueError, match="--run letters"):
        gallery.page("letters")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", gallery.NAMES)
def test_a_script_runs_and_leaves_its_figures(name, tmp_path):
    script = gallery.SCRIPTS / f"{name}.py"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {
        **os.environ,
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    }
    # torch scripts its own decompositions when a forward-mode derivative is first used.
    strictly = ("-W", "error", "-W", "ignore:`torch.jit.script")
    done = subprocess.run(
        [sys.executable, *strictly, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120
    for figure in gallery.FIGURE.findall(script.read_text()):
        assert (tmp_path / figure).exists()
