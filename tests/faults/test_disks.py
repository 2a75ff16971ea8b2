"""Disks, files and clocks that fail, and memory that runs out: each ends in a reason."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import time
from pathlib import Path

import pytest

from metamirror.cli.main import main
from metamirror.data.installing import install
from metamirror.data.store import Store
from tests.data import sources
from tests.faults import disks
from tests.faults.killing import COMPARE, ended, started
from tests.runs import forks, results

pytestmark = pytest.mark.slow

mounts = pytest.mark.skipif(not disks.available(), reason="this machine does not let us mount")


@mounts
def test_full_disks_cost_nothing_that_was_there(tmp_path: Path):
    kinds = [kind for kind in disks.KINDS if kind.startswith("full") and "compare" not in kind]
    assert all(disks.in_namespace(tmp_path, *kinds).values())


@mounts
def test_what_may_only_be_read_is_read(tmp_path: Path):
    assert disks.in_namespace(tmp_path, "read-only")


# Files that vanish


def test_a_run_folder_that_vanishes_is_missed_by_name(tmp_path: Path, capfd):
    run = tmp_path / "run"
    words = (*disks.TRAIN, "--iterations", "100000")
    process = started(*words, "--out", str(run))
    deadline = time.monotonic() + 200
    while not (run / "last" / "learner.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.rename(run, tmp_path / "elsewhere")
    assert ended(process) == 2
    # It goes on from where it is now.
    words = ("train", "--resume", "--out", str(tmp_path / "elsewhere"))
    assert main([*words, "--iterations", "99999"]) == 2


def test_a_picture_that_vanishes_while_it_is_read_is_named(tmp_path: Path, capsys, monkeypatch):
    old = sources.write(tmp_path / "old", sources.folders())
    words = ["data", "add", "mini-imagenet", "--data-dir", str(tmp_path / "home"), "--from"]
    assert main([*words, str(old)]) == 0
    before = Store(tmp_path / "home").check("mini-imagenet")["sha256"]
    new = sources.write(tmp_path / "new", sources.folders())
    real = install.decode

    def vanish(*args):
        shutil.rmtree(new / "test", ignore_errors=True)
        return real(*args)

    monkeypatch.setattr(install, "decode", vanish)
    assert main([*words, str(new)]) == 2
    assert "No such file" in (said := capsys.readouterr().err)
    assert str(new / "test") in said
    assert Store(tmp_path / "home").check("mini-imagenet")["sha256"] == before


def test_installed_pictures_that_vanish_are_named(tmp_path: Path, capsys):
    source = sources.write(tmp_path / "source", sources.folders())
    home = ["--data-dir", str(tmp_path / "home")]
    assert main(["data", "add", "mini-imagenet", "--from", str(source), *home]) == 0
    (array,) = (tmp_path / "home").glob("*.bytes")
    array.unlink()
    assert main(["train", "--method", "maml", "--data", "mini-imagenet", *home]) == 2
    assert f"{array} is missing" in capsys.readouterr().err


# Clocks


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path):
    words = disks.TRAIN
    assert ended(started(*words, "--out", str(tmp_path / "whole"))) == 0
    process = forks().Process(target=_jumping, args=([*words, "--out", str(tmp_path / "jumped")],))
    process.start()
    assert ended(process) == 0
    assert results(tmp_path / "jumped") == results(tmp_path / "whole")


def _jumping(words: list[str]) -> None:
    choice = random.Random(0)
    # A wall clock that is set forward and back by decades between any two looks at it.
    time.time = lambda: choice.uniform(0, 2**32)
    time.time_ns = lambda: int(1e9 * time.time())
    os._exit(main(words))


def test_pictures_from_the_past_and_the_future_are_pictures(tmp_path: Path):
    folder = sources.write(tmp_path / "birds", sources.folders())
    for seconds in (0, 2**33, -(2**30)):
        for file in folder.rglob("*.png"):
            os.utime(file, (seconds, seconds))
        words = ["data", "add", f"folder:{folder}", "--data-dir", str(tmp_path / "home")]
        assert main([*words, "--image-size", "16"]) == 0


# Others, and memory


def test_a_second_comparison_by_another_protocol_is_refused(tmp_path: Path, capsys):
    process = started(*COMPARE, "--iterations", "100000", "--out", str(tmp_path / "out"))
    deadline = time.monotonic() + 200
    begun = (tmp_path / "out").glob
    while not any(begun("cells/*/config.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert main([*COMPARE, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    process.kill()
    process.join()
    assert "was started with 100000 iterations, not 60" in said


LIMIT = 5 * 2**30
"""Of address space: torch takes three of it before it has computed anything."""


def limited(words: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    os._exit(main(words))


def run_limited(words: list[str]) -> int:
    process = forks().Process(target=limited, args=(words,))
    process.start()
    return ended(process)


def test_memory_that_runs_out_in_one_cell_costs_that_cell(tmp_path: Path):
    """With forty million examples in one of the two columns, under the system's own limit."""
    words = ["compare", "--data", "sinusoid", "--methods", "maml", "--no-controls", "--seeds", "1"]
    words += ["--shots", "3,40000000", "--queries", "3", "--steps", "1", "--iterations", "2"]
    words += ["--tasks-per-step", "1", "--validate-every", "0", "--test-tasks", "2"]
    words += ["--vectorize", "False", "--out", str(tmp_path)]
    assert run_limited(words) == 0
    rows = {row["shots"]: row for row in json.loads((tmp_path / "table.json").read_text())["rows"]}
    assert rows[3]["status"] == "done"
    assert rows[40000000]["status"] == "failed"
    assert "alloc" in rows[40000000]["reason"].lower()


@pytest.mark.parametrize("width", ["200000", "2147483647"])
def test_a_network_that_does_not_fit_is_a_line_and_no_traceback(width: str, tmp_path: Path, capfd):
    words = ["train", "--method", "maml", "--data", "sinusoid", "--width", width]
    assert run_limited([*words, "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
