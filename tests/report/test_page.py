"""`metamirror report`: a page that holds everything, asks for nothing and survives damage."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

import metamirror as mm
from metamirror.cli.main import main
from metamirror.report.collect import in_short
from metamirror.report.page import write_report
from metamirror.training.train import train
from tests.runs import small

HOSTILE = "\"><script>alert('1')</script><img src=http:x onerror=a()>&amp;"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Elements, attributes and text; fails on what is not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.source = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, text):
        self.words.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(folder: Path, **options) -> Page:
    return Page(write_report(folder, **options).read_text(encoding="utf-8"))


def fake_run(folder: Path, lines: int = 5, **settings) -> Path:
    """A run folder as training leaves it, without a learner."""
    folder.mkdir(parents=True)
    config = small(data="glyphs", iterations=10 * lines, **settings)
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    rows = [
        {"step": 10 * (i + 1), "loss": 2.0 - i / lines, "val_accuracy": 20.0 + i, "val_ci95": None}
        for i in range(lines)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def fake_table(word: str = "", **changes) -> dict:
    row = {
        "method": "maml",
        "title": f"MAML{word}",
        "optimizer": f"GD{word}",
        "geometry": f"identity{word}",
        "group": "paper",
        "shots": 1,
        "accuracy": 40.0,
        "ci95": 0.5,
        "seeds": [{"seed": 0, "accuracy": 40.0, "ci95": 0.5, "run": f"cells/a{word}"}],
        "published": f"48.70 ± 1.84{word}",
        "difference_to_maml": None,
        "extra_parameters": 0,
        "seconds_per_iteration": 0.1,
        "relative_to_maml": 1.0,
        "bold": False,
        "status": "done",
        "reason": None,
    }
    best = row | {
        "method": "gradnet",
        "accuracy": 43.21,
        "bold": True,
        "title": f"Gradient network{word}",
        "difference_to_maml": {"mean": 3.21, "low": 2.5, "high": 3.9},
    }
    unsure = {"mean": 0.5, "low": -1.0, "high": 2.0}
    control = row | {
        "difference_to_maml": unsure,
        "method": f"pixels{word}",
        "title": "raw pixels",
        "group": "control",
    }
    failed = row | {"method": "ecml", "title": "ECML", "accuracy": None, "status": "failed"}
    failed |= {"reason": f"out of memory{word}"}
    return {"protocol": {"data": f"glyphs{word}"}, "rows": [row, best, control, failed]} | changes


def fake_convergence(word: str = "") -> dict:
    points = [
        {"k": k, "support_loss": 1.0 / (k + 1), "support_loss_ci95": 0.1, "grad_norm": 2.0}
        | {"grad_norm_ci95": None, "accuracy": 30.0 + k, "accuracy_ci95": 1.0}
        for k in range(5)
    ]
    curve = {"label": f"maml{word}", "method": f"maml{word}", "trained_steps": 2, "points": points}
    return {
        "protocol": {"data": word},
        "measure": "accuracy",
        "reference": f"maml{word}",
        "comparable": [0.5, 2.0],
        "curves": [curve],
        "missing": [f"gradnet{word}"],
    }


def fake_cost(word: str = "") -> dict:
    figures = {"ms_per_iteration": 10.0, "relative_to_maml": 1.0, "peak_mb": 500.0}
    return {"shape": f"1x28x28{word}", "shots": 1, "rows": [{"method": f"maml{word}"} | figures]}


def beside(folder: Path, word: str = "") -> None:
    for name, document in (
        ("table", fake_table(word)),
        ("convergence", fake_convergence(word)),
        ("cost", fake_cost(word)),
    ):
        (folder / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Page:
    """Two trained runs and one evaluation."""
    folder = tmp_path_factory.mktemp("runs") / "study"
    for method in ("maml", "gradnet"):
        train(small(method=method), folder / "cells" / f"{method}-3shot-seed0")
    assert main(["evaluate", str(folder / "cells/maml-3shot-seed0"), "--tasks", "4"]) == 0
    return read(folder)


def test_real_runs_come_with_their_state_curves_geometry_and_configuration(real: Page):
    for method in ("maml", "gradnet"):
        assert f"cells/{method}-3shot-seed0" in real.text
    assert "finished" in real.text
    assert "(4 tasks)" in real.text
    assert "validation MSE" in real.text
    assert "a valid mirror map, by construction" in real.text
    assert "effective step size of each layer" in real.text
    assert "blocks.0.linear" in real.text
    assert "tasks_per_step" in real.text
    assert real.tags.count("details") >= 2


def test_the_page_asks_for_nothing_and_runs_nothing(real: Page):
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(real.tags)
    for name, value in real.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "action", "data", "srcset"):
            assert re.fullmatch(r"#[a-z0-9-]+", value or ""), (name, value)
    assert "http" not in " ".join(v or "" for n, v in real.attributes if n != "http-equiv")
    assert not re.search(r"url\((?!#)", real.source)
    assert "@import" not in real.text
    assert "default-src 'none'" in str(real.attributes)
    assert "color-scheme: light dark" in real.text


def test_everything_beside_the_runs_is_shown(tmp_path: Path):
    fake_run(tmp_path / "cells" / "a")
    beside(tmp_path)
    page = read(tmp_path, inspect_seconds=0)
    for word in ("43.21 ± 0.50", "48.70 ± 1.84", "raw pixels", "out of memory", "+3.21", "500"):
        assert word in page.text
    assert "support loss" in page.text
    assert "missing: gradnet" in page.text
    found = (tmp_path / "report.html").read_text()
    assert "<strong>43.21 ± 0.50</strong>" in found
    assert "<strong>40.00" not in found
    assert page.text.count("+0.50 [-1.00, +2.00] not significant") == 1
    assert "not significant if its interval includes zero" in page.text


def test_what_stands_in_folders_below_is_shown_with_their_names(tmp_path: Path):
    """Each number of shots has a convergence of its own, and a study several tables."""
    fake_run(tmp_path / "cells" / "a")
    for place in ("1-shot", "5-shot"):
        (tmp_path / place).mkdir()
        beside(tmp_path / place)
    # What stands in a run is the run's own.
    (tmp_path / "cells" / "a" / "table.json").write_text("[]")
    (tmp_path / "5-shot" / "cost.json").write_text("[]")
    page = read(tmp_path, inspect_seconds=0)
    assert page.text.count("missing: gradnet") == 2
    assert page.text.count("43.21 ± 0.50") == 2
    assert "Convergence 1-shot" in page.text
    assert "5-shot/cost.json holds a list" in page.text
    assert "cells/a/table.json" not in page.text


def fake_search() -> dict:
    scores = [{"lr": 0.1, "accuracy": 31.0, "ci95": 1.0}, {"lr": 0.3, "reason": "it diverged"}]
    row = {"label": "maml", "shots": 1, "scores": scores, "lr": 0.1}
    return {"candidates": [0.1, 0.3], "iterations": 300, "tasks": 200, "rows": [row]}


def test_a_search_is_told_and_its_short_runs_stay_out_of_the_curves(tmp_path: Path):
    fake_run(tmp_path / "cells" / "maml-1shot-seed0")
    fake_run(tmp_path / "search" / "maml-1shot-seed0-lr0.3", lines=2, lr=0.3)
    page = read(tmp_path)
    assert "maml lr=0.3" in page.text  # runs like any others, as long as no search tells of them
    (tmp_path / "search.json").write_text(json.dumps(fake_search()))
    page = read(tmp_path)
    assert "on 200 validation tasks after 300 training iterations" in page.text
    assert "α = 0.1 α = 0.3 maml 1-shot 31.00 ± 1.00 failed it diverged" in page.text
    assert "<strong>31.00 ± 1.00</strong>" in (tmp_path / "report.html").read_text()
    assert "maml lr=0.3" not in page.text
    assert "lr0.3 cannot be inspected" not in page.text
    assert "2 runs." in page.text
    assert page.text.count("search/maml-1shot-seed0-lr0.3") == 2  # its state, its configuration


def test_figures_without_a_seed_claim_none_and_every_shot_has_its_time(tmp_path: Path):
    row = fake_table()["rows"][0]
    untrained = {
        "method": "pixels",
        "title": "Pixels",
        "group": "control",
        "extra_parameters": None,
    }
    untrained |= {"seeds": [{"seed": None, "accuracy": 40.0}], "relative_to_maml": None}
    rows = [row, row | {"shots": 5, "relative_to_maml": 1.75}, row | untrained]
    (tmp_path / "table.json").write_text(json.dumps({"protocol": {}, "rows": rows}))
    page = read(tmp_path)
    assert "0 1.00 1.75" in page.text
    assert "1-shot time / MAML 5-shot time / MAML" in page.text
    tooltips = [value for name, value in page.attributes if name == "title"]
    assert tooltips == ["seed 0: 40.00"] * 2
    assert page.text.count("1 seed ") == 2


def test_runs_say_what_an_iteration_took(tmp_path: Path):
    run = fake_run(tmp_path / "a")
    assert "s / iteration" not in read(tmp_path, inspect_seconds=0).text
    lines = [{"step": 10 * i, "seconds": 2.5 * i, "steps_per_second": 4} for i in (1, 2, 3)]
    (run / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = read(tmp_path, inspect_seconds=0).text
    assert "s / iteration" in text
    assert " 0.25 " in text


def test_a_row_that_lost_a_seed_says_so_beside_its_figures(tmp_path: Path):
    found = fake_table()
    found["protocol"]["line"] = "everything in one line"
    found["rows"][1] |= {"status": "failed", "reason": "seed 1: diverged", "note": "one of two"}
    (tmp_path / "table.json").write_text(json.dumps(found))
    text = read(tmp_path).text  # without any run, but with a table
    assert "43.21 ± 0.50 † 1 seed failed: seed 1: diverged" in text
    assert "one of two" in text
    assert "everything in one line" in text


def test_hostile_names_and_files_stay_text(tmp_path: Path):
    # A name may hold anything but a slash.
    name = HOSTILE.replace("/", "")
    fake_run(tmp_path / "cells" / name, method=f"maml{HOSTILE}", prior=HOSTILE)
    evaluations = tmp_path / "cells" / name / "evaluations"
    evaluations.mkdir()
    (evaluations / "a.json").write_text(json.dumps({"split": "test", "accuracy": HOSTILE}))
    broken = tmp_path / "cells" / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"method": "maml", HOSTILE: 1}))
    beside(tmp_path, HOSTILE)
    page = read(tmp_path)
    assert not {"script", "img"} & set(page.tags)
    assert not [n for n, _ in page.attributes if n.startswith("on") or n == "src"]
    assert HOSTILE in page.text
    assert f"cells/{name}" in page.text


def test_half_characters_and_control_characters_are_replaced(tmp_path: Path):
    fake_run(tmp_path / "half\udcff", method="maml\x00\ud800")
    beside(tmp_path, "\x1b\ud800")
    page = read(tmp_path, inspect_seconds=0)
    assert "half\ufffd" in page.text
    assert not re.search("[\x00\x1b]", page.source)


def test_half_finished_and_damaged_runs_are_named(tmp_path: Path):
    fake_run(tmp_path / "good")
    half = fake_run(tmp_path / "half")
    lines = (half / "metrics.jsonl").read_text().splitlines()
    (half / "metrics.jsonl").write_text("\n".join([*lines[:2], '{"step": 30, "lo']))
    (fake_run(tmp_path / "torn") / "config.json").write_text('{"method": "maml"')
    (fake_run(tmp_path / "lost") / "config.json").unlink()
    odd = fake_run(tmp_path / "odd")
    (odd / "evaluations").mkdir()
    (odd / "evaluations" / "a.json").write_text("[1]")
    (odd / "evaluations" / "b.json").write_bytes(b"\xff\x00")
    (odd / "nonfinite").mkdir()
    page = read(tmp_path)
    assert "5 runs, of which 2 cannot be read" in page.text
    assert "stopped, 20 of 50 1 line of metrics.jsonl cannot be read" in page.text
    assert "config.json is not valid JSON" in page.text
    assert "there is no config.json" in page.text
    assert "a.json holds no evaluation" in page.text
    assert "b.json is not valid JSON" in page.text
    assert "not finite" in page.text
    # There is no learner in any of them to look at, which the page says too.
    assert "good cannot be inspected" in page.text
    assert str(tmp_path) not in page.text


def test_a_run_that_diverged_is_not_called_finished(tmp_path: Path):
    run = fake_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "loss": 1e16, "diverged": true}\n{"step": 50, "val_mse": 1}\n')
    text = read(tmp_path, inspect_seconds=0).text
    assert "diverged" in text
    assert "finished" not in text


DAMAGES = {
    "cut short": '{"rows": [',
    "a list": "[1, 2]",
    "rows of anything": '{"protocol": 3, "rows": [1, null, {"method": null, "accuracy": "high"}]}',
    "curves of anything": '{"curves": [{"points": [{"k": "x"}, 3]}, 4], "missing": 1, "rows": 5}',
    "numbers of any size": '{"rows": [{"method": "maml", "shots": 1e400, "accuracy": 1e308}]}',
}


@pytest.mark.parametrize("name", ["table.json", "search.json", "convergence.json", "cost.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_beside_the_runs_do_not_fail(damage: str, name: str, tmp_path: Path):
    fake_run(tmp_path / "run")
    (tmp_path / name).write_text(DAMAGES[damage])
    page = read(tmp_path, inspect_seconds=0)
    if damage in ("cut short", "a list"):
        assert f"{name} " in page.text


def test_forty_runs_fit_a_page(tmp_path: Path):
    for i in range(40):
        fake_run(
            tmp_path / "cells" / f"run-{i}", lines=600, method=list(mm.METHODS)[i % 10], seed=i
        )
    beside(tmp_path)
    path = write_report(tmp_path, inspect_seconds=0)
    assert path.stat().st_size < 3e6
    page = Page(path.read_text())
    assert all(f"cells/run-{i}" in page.text for i in range(40))


def test_seeds_are_averaged_and_other_settings_are_told_apart(tmp_path: Path):
    for seed in (0, 1):
        fake_run(tmp_path / f"adam-{seed}", method="metasgd", seed=seed)
    fake_run(tmp_path / "sgd", method="metasgd", optimizer="sgd")
    page = read(tmp_path, inspect_seconds=0)
    assert "metasgd: mean of 2 runs" in page.text
    assert "metasgd optimizer=sgd: sgd" in page.text


def test_a_run_is_a_folder_of_one_run(tmp_path: Path):
    fake_run(tmp_path / "run")
    assert "1 run." in read(tmp_path / "run", inspect_seconds=0).text


def test_the_command_names_the_page_and_refuses_a_folder_without_runs(tmp_path: Path, capsys):
    fake_run(tmp_path / "runs" / "a")
    assert main(["report", str(tmp_path / "runs"), "--inspect-seconds", "0"]) == 0
    assert capsys.readouterr().out == f"written: {tmp_path / 'runs' / 'report.html'}\n"
    (tmp_path / "empty").mkdir()
    for folder, words in (("empty", "holds no run"), ("nowhere", "there is no folder")):
        assert main(["report", str(tmp_path / folder)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert not (tmp_path / folder / "report.html").exists()


def test_messages_keep_their_full_stops_in_the_present_folder():
    error = ValueError("runs/a is damaged. Remove it.")
    assert in_short(error, Path(".")) == "runs/a is damaged. Remove it."
    assert in_short(error, Path("runs")) == "a is damaged. Remove it."
