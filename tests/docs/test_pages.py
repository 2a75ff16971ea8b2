"""The tables of README and docs are those of the files in results/."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest

import convergence_table
import findings
import metamirror as mm
import method_table
import site_studies
import study
import study_page
from metamirror.core.files import read_json, write_json
from pages import ROOT, wanted
from speed_table import NOTHING, TABLES
from studies import STUDIES

WANTED = wanted(ROOT / "results")


@pytest.mark.parametrize("name", WANTED)
def test_the_page_shows_what_the_files_say(name):
    page = ROOT / name
    assert page.exists()
    assert page.read_text() == WANTED[name], "run: python benchmarks/pages.py --write"


def test_every_page_of_a_study_has_its_files():
    written = {page.stem for page in (ROOT / "docs" / "studies").glob("*.md")} - {"pilots"}
    assert written == {kept.name for kept in KEPT} == set(study_page.measured(ROOT / "results"))


def test_every_page_of_a_study_is_in_the_nav():
    config = SimpleNamespace(
        docs_dir=str(ROOT / "docs"), nav=[{"Results": [{"Studies": ["studies/pilots.md"]}]}]
    )
    ((found,),) = (part["Results"] for part in site_studies.on_config(config).nav)
    assert {f"studies/{kept.name}.md" for kept in KEPT} | {"studies/pilots.md"} == set(
        found["Studies"]
    )
    assert "Studies" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    ("lead", "said"), [(10, "ahead by 10.0"), (-10, "behind by 10.0"), (0, "level: ")]
)
def test_a_lead_is_called_one_only_if_its_interval_excludes_zero(lead, said, tmp_path):
    folder = tmp_path / "study" / "x"
    folder.mkdir(parents=True)
    rows = [{"method": name, "shots": 1, "seeds": [{"seed": 0}]} for name in ("maml", "blockiaf")]
    write_json(folder / "table.json", {"rows": rows})
    lines = [f"{i},{50 + i % 3},{50 + lead + (i + 1) % 3}" for i in range(30)]
    text = "\n".join(["task,maml-1shot-seed0,blockiaf-1shot-seed0", *lines])
    (folder / "test-tasks.csv").write_text(text)
    found = findings.said(findings.difference(tmp_path, "x", "blockiaf", "maml"))
    assert found.startswith(said)
    assert found.endswith("(1 seed)")


def test_the_page_of_results_lists_every_study_that_has_accuracies():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    shown = [name for name in study_page.measured(ROOT / "results") if "sinusoid" not in name]
    older = page.partition("<!-- older -->")[2].partition("<!-- end -->")[0]
    first = page.partition("<!-- verdicts")[2].partition("<!-- end -->")[0]
    assert len(shown) > 8
    for name in shown:
        assert f"(studies/{name}.md)" in (older if STUDIES[name].earlier else first)
    assert "behind in 4 (-76.7 to +1.6)" in first
    assert "MetaCurvature against MAML: behind by" in first


@pytest.mark.parametrize("name", [name for name in STUDIES if STUDIES[name].earlier])
def test_an_older_command_says_so_exactly_if_this_version_refuses_it(name):
    words = shlex.split(STUDIES[name].options)
    refused = []
    for spec in words[words.index("--methods") + 1].split(","):
        try:
            mm.make_learner(spec, mm.models.Conv4(ways=5, channels=1, image_size=28, width=2))
        except ValueError as error:
            refused.append(str(error))
    said = "0.1 only" in (ROOT / "docs" / "studies" / f"{name}.md").read_text()
    assert said == bool(refused)


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


def test_the_sinusoid_is_a_line_for_each_method(tmp_path):
    assert method_table.sinusoid(tmp_path) == NOTHING
    (tmp_path / "sinusoid").mkdir()
    write_json(tmp_path / "sinusoid" / "maml.json", {"mse": 0.4, "ci95": 0.04})
    *_, line = method_table.sinusoid(tmp_path).splitlines()
    assert line == "| `maml` | GD | identity matrix | 0.400 ± 0.040 |"
