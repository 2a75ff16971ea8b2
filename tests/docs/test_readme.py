"""What the README shows is what the files say, what it tells to run runs, and it is short."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import metamirror as mm
from metamirror.data.glyphs import draw

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_comes_after_a_screen_and_a_half():
    assert README[: README.index("\n|")].count("\n") <= 60


def table_after(marker: str) -> list[list[str]]:
    lines = README[README.index(marker) + len(marker) :].partition("\n|")[2].splitlines()
    rows = []
    for line in ["|" + lines[0], *lines[1:]]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def test_in_six_minutes_the_learned_maps_are_ahead_of_maml_with_every_seed():
    files = sorted(ROOT.glob("results/quickstart/seed-*.json"))
    assert [file.stem for file in files] == ["seed-0", "seed-1", "seed-2"]
    shown = {row[0].strip("`"): row[1:] for row in table_after("<!-- results/quickstart")}
    for column, file in enumerate(files):
        rows = {row["method"]: row for row in json.loads(file.read_text())["rows"]}
        for method, cells in shown.items():
            found = rows[method]
            assert cells[column] == f"{found['accuracy']:.1f} ± {found['ci95']:.1f}"
        for method in ("blockiaf", "gradnet"):
            assert rows[method]["difference_to_maml"]["low"] > 0


def test_the_sinusoid_table_is_that_of_the_results():
    rows = table_after("<!-- results/sinusoid")
    files = {
        path.stem: json.loads(path.read_text()) for path in ROOT.glob("results/sinusoid/*.json")
    }
    assert {row[0].strip("`") for row in rows} == set(files)
    assert {"maml", "metasgd", "blockiaf"} <= set(files)
    for method, *_, shown in rows:
        found = files[method.strip("`")]
        assert shown == f"{found['mse']:.3f} ± {found['ci95']:.3f}"
        assert (found["step"], found["tasks"], found["shots"], found["steps"]) == (
            15_000,
            600,
            10,
            1,
        )
    assert files["maml"]["mse"] < 0.55
    assert files["metasgd"]["mse"] < 0.33


(LISTING,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

OFFLINE = """
import socket

def refuse(*_, **__):
    raise OSError("no network")

socket.socket.connect = refuse
"""


LETTERS = "აბგდე"


def test_its_first_python_is_six_lines_that_run_offline_in_ten_seconds(tmp_path):
    assert len([line for line in LISTING.splitlines() if line.strip()]) == 6
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # As on a machine where nothing was installed or drawn before.
    environment = {
        **os.environ,
        "METAMIRROR_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    }
    found = subprocess.run(
        [sys.executable, "-c", OFFLINE + LISTING],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    predicted = re.findall(r"'(.)'", found.stdout)
    assert len(predicted) == 5
    assert set(predicted) <= set(LETTERS)
    (model,) = tmp_path.iterdir()
    assert mm.FewShotClassifier.load(model).classes_.tolist() == list(LETTERS)


def test_its_first_python_tells_most_letters_apart():
    clf = mm.FewShotClassifier("glyphs-blockiaf").fit(draw(LETTERS), list(LETTERS))
    assert clf.score(draw(LETTERS, seed=1), list(LETTERS)) >= 0.8
