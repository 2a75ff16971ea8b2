"""The tables of README and docs are those of the files in results/."""

from __future__ import annotations

import pytest

import convergence_table
import method_table
import study
from metamirror.core.files import read_json, write_json
from pages import PAGES, ROOT, filled
from speed_table import NOTHING, TABLES


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_the_files_say(name):
    page = (ROOT / name).read_text()
    new = filled(page, PAGES[name], ROOT / "results")
    assert new == page, "run: python benchmarks/pages.py --write"


KEPT = sorted(file.parent for file in (ROOT / "results" / "study").glob("*/table.json"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_what_is_kept_of_a_study_came_from_its_command(kept):
    assert (kept / "commands.txt").read_text().splitlines() == study.commands(kept.name)
    seen = {cell["run"] for row in read_json(kept / "table.json")["rows"] for cell in row["seeds"]}
    runs = {f"cells/{folder.name}" for folder in kept.glob("cells/*")}
    assert runs == seen - {None}


def program(seconds, peak):
    return {"seconds": seconds, "peak_mb": peak}


def test_a_case_is_a_line_with_the_fastest_and_the_leanest_peer(tmp_path):
    assert {table(tmp_path) for table in TABLES.values()} == {NOTHING}
    case = {
        "programs": {
            "metamirror": program(0.5, 400),
            "torchopt": program(1.0, 900),
            "higher": program(1.25, 500),
        },
        "time_against": {"torchopt": [0.5, 0.48, 0.53], "higher": [0.4, 0.39, 0.41]},
        "fastest_peer": "torchopt",
        "leanest_peer": "higher",
        "memory_against_leanest": 0.8,
    }
    write_json(tmp_path / "peers.json", {"cases": {"a case": case}})
    assert TABLES["peers"](tmp_path).splitlines()[2] == (
        "| a case | 0.50 | 1.00 (torchopt) | **0.50 [0.48, 0.53]** | 400 | 500 (higher) | 0.80 |"
    )
    assert TABLES["every peer"](tmp_path).splitlines() == [
        "| case | torchopt | higher |",
        "| --- | ---: | ---: |",
        "| a case | 0.50 [0.48, 0.53] | 0.40 [0.39, 0.41] |",
    ]


def test_a_curve_is_a_line_with_its_losses_and_the_observations(tmp_path):
    assert convergence_table.table("x", tmp_path) == NOTHING
    reference = {
        "label": "maml",
        "seeds": [0, 1],
        "points": [{"k": k, "support_loss": 2 / (k + 1)} for k in range(7)],
        "initial_loss": {"difference": 0.0, "low": 0.0, "high": 0.0, "verdict": "reference"},
        "initial_grad_norm": {"ratio": 1.0, "comparable": True},
        "reference_loss": {"k": 5, "loss": 1 / 3, "reached_at": 5},
    }
    other = {
        **reference,
        "label": "gradnet",
        "initial_loss": {"difference": -0.5, "low": -0.75, "high": -0.25, "verdict": "lower"},
        "initial_grad_norm": {"ratio": 1.25, "comparable": True},
        "reference_loss": {"k": 5, "loss": 1 / 3, "reached_at": None},
    }
    found = {"protocol": {"steps": 6}, "curves": [reference, other]}
    (tmp_path / "study" / "x").mkdir(parents=True)
    write_json(tmp_path / "study" / "x" / "convergence.json", found)
    _, _, head, _, *lines = convergence_table.table("x", tmp_path).splitlines()
    assert "loss, k = 5 |" in head
    assert "k = 10" not in head
    assert lines == [
        "| `maml`, 2 seeds | 2.000 | 1.000 | 0.667 | 0.500 | 0.400 | 0.333 |  |  | 5 |",
        "| `gradnet`, 2 seeds | 2.000 | 1.000 | 0.667 | 0.500 | 0.400 | 0.333 "
        "| lower: -0.50 [-0.75, -0.25] | 1.25 | not by the last |",
    ]


def test_methods_are_ratios_and_maml_is_a_time(tmp_path):
    maml = {
        "method": "maml",
        "ms_per_iteration": 612.4,
        "relative_to_maml": 1.0,
        "ci95": [1.0, 1.0],
        "peak_mb": 480.2,
        "extra_parameters": 0,
    }
    other = {
        **maml,
        "method": "gradnet",
        "relative_to_maml": 1.2,
        "ci95": [1.1, 1.3],
        "extra_parameters": 1234,
    }
    for shape, rows in (("omniglot", [maml, other]), ("mini-imagenet", [maml])):
        write_json(tmp_path / f"cost-{shape}.json", {"shape": shape, "shots": 1, "rows": rows})
    assert TABLES["cost"](tmp_path).splitlines() == [
        "| method | extra parameters | mini-imagenet, 1-shot | peak MB "
        "| omniglot, 1-shot | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| `maml` | 0 | 612 ms | 480 | 612 ms | 480 |",
        "| `gradnet` | 1,234 |  |  | 1.20 [1.10, 1.30] | 480 |",
    ]


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_methods_are_told_by_what_was_measured_of_each(tmp_path):
    assert method_table.measured(tmp_path) == NOTHING
    assert method_table.sinusoid(tmp_path) == method_table.pictures(tmp_path) == NOTHING
    for folder in ("sinusoid", "study/mini-imagenet-1shot"):
        (tmp_path / folder).mkdir(parents=True)
    write_json(tmp_path / "sinusoid" / "maml.json", {"mse": 0.4, "ci95": 0.04})
    study = [
        {"method": "maml", "status": "done", "accuracy": 48.23, "ci95": 0.91},
        {"method": "metasgd", "status": "failed", "accuracy": None, "ci95": None},
        {"method": "gradnet:anchored=true", "status": "done", "accuracy": 50.0, "ci95": 1.0},
    ]
    write_json(tmp_path / "study" / "mini-imagenet-1shot" / "table.json", {"rows": study})
    cost = {"method": "gradnet", "relative_to_maml": 1.2, "ci95": [1.1, 1.3], "peak_mb": 512.6}
    write_json(tmp_path / "cost-omniglot-1shot.json", {"rows": [cost]})
    rows = {row[0]: row[1:] for row in cells(method_table.measured(tmp_path))[2:]}
    assert list(rows) == [f"`{method}`" for method in ("maml", "gradnet", "gradnet:anchored=true")]
    assert rows["`maml`"] == ["0.400 ± 0.040", "48.2 ± 0.9", *["–"] * 6]
    assert rows["`gradnet`"] == [*["–"] * 6, "1.20 [1.10, 1.30]", "513"]
    assert rows["`gradnet:anchored=true`"] == ["–", "50.0 ± 1.0", *["–"] * 6]
    assert [row[-1] for row in cells(method_table.sinusoid(tmp_path))[2:]] == ["0.400 ± 0.040"]


def test_the_readme_shows_the_lead_over_maml_and_all_comparisons_of_a_protocol(tmp_path):
    lead = {"mean": 4.74, "low": 3.03, "high": 6.46}
    maml = {"method": "maml", "status": "done", "accuracy": 31.3, "ci95": 0.6}
    maml["difference_to_maml"] = None
    kfo = {**maml, "method": "metakfo", "accuracy": 98.0, "difference_to_maml": lead}
    for name, rows in (
        ("mini-imagenet-1shot-one-step", [maml, {**kfo, "accuracy": 36.0}]),
        ("omniglot-1shot-one-step", [maml]),
        ("omniglot-1shot-one-step-others", [{**maml, "accuracy": 0.0}, kfo]),
    ):
        (tmp_path / "study" / name).mkdir(parents=True)
        write_json(tmp_path / "study" / name / "table.json", {"rows": rows})
    rows = {row[0]: row[1:] for row in cells(method_table.pictures(tmp_path))[2:]}
    assert rows["`maml`"] == ["31.3 ± 0.6", "–", "–", "31.3 ± 0.6"]
    assert rows["`metakfo`"] == ["36.0 ± 0.6", "+4.7 [+3.0, +6.5]", "–", "98.0 ± 0.6"]
