"""What the README shows runs, and its figures are those of the files."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import metamirror as mm
import readme_listing
from metamirror.data.glyphs import draw
from tests.docs.listings import listings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MEASURED = (ROOT / "docs" / "measured.md").read_text()


def table_after(marker: str) -> list[list[str]]:
    lines = MEASURED.partition(marker)[2].partition("<!-- end -->")[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
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


OFFLINE = """
import socket

def refuse(*_, **__):
    raise OSError("no network")

socket.socket.connect = refuse
"""
LETTERS = "აბგდე"


def statements(listing: str) -> int:
    return sum(bool(line.strip()) for line in listing.splitlines())


def test_its_python_is_two_listings_of_twelve_lines_that_run_offline_in_a_minute(tmp_path):
    training, geometry = listings(README)
    assert statements(training) <= 12
    assert statements(geometry) <= 12
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # As on a machine where nothing was installed or drawn before.
    environment = {
        **os.environ,
        "METAMIRROR_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(mm.__file__).parents[1]),
    }
    found = subprocess.run(
        [sys.executable, "-c", OFFLINE + training + geometry],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    ((accuracy, half),) = re.findall(r"accuracy ([\d.]+) ± ([\d.]+)", found.stdout)
    assert float(accuracy) - float(half) > 20  # chance
    # Another processor rounds otherwise, which after a hundred steps is like another seed.
    seeds = json.loads((ROOT / "results" / "readme_listing.json").read_text())["seeds"]
    seen = [seed["accuracy"] for seed in seeds.values()]
    assert len(seen) == 5
    assert min(seen) - 5 < float(accuracy) < max(seen) + 5


def test_its_listing_has_a_seed_and_the_figures_below_it_are_those_of_the_file():
    training, _ = listings(README)
    assert "torch.manual_seed(0)" in training
    assert readme_listing.sentence(ROOT / "results") in README.read_text()


def test_a_shipped_start_tells_most_letters_apart():
    clf = mm.FewShotClassifier("glyphs-blockiaf").fit(draw(LETTERS), list(LETTERS))
    assert clf.score(draw(LETTERS, seed=1), list(LETTERS)) >= 0.8
