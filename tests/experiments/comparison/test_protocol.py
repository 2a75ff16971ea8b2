"""What stands above a table and beside its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metamirror.experiments.comparison.plan import SPLITS, make_rows
from metamirror.experiments.comparison.protocol import make_protocol
from metamirror.experiments.comparison.spec import Spec
from metamirror.methods import METHODS
from metamirror.training.config import RunConfig
from tests.runs import Pictures


def stream(split: str = "train") -> Pictures:
    return Pictures(split=split, shots=1, queries=1, seed=0, batch=1)


def spec_of(methods: list[str], recipes="common", **settings) -> Spec:
    base = RunConfig(method="maml", width=4, **settings)
    return Spec(base, methods, (1, 5), recipes=recipes, controls=False)


def line_of(spec: Spec, search=None) -> str:
    streams = {(split, n): stream(split) for split in SPLITS for n in spec.shots}
    return make_protocol(spec, make_rows(spec, stream()), streams, search)["line"]


def test_seeds_begin_with_the_seed_of_the_settings():
    spec = replace(spec_of(["maml"], seed=2, data="glyphs"), seeds="3")
    rows = make_rows(spec, stream())
    assert [list(row.jobs) for row in rows] == [[2, 3, 4]] * 2
    assert all(job.config["seed"] == seed for seed, job in rows[0].jobs.items())
    assert line_of(spec)


# The paper's Table 1.
PAPER = {
    "maml": ("48.70 ± 1.84", "63.11 ± 0.92"),
    "metasgd": ("50.47 ± 1.87", "64.03 ± 0.94"),
    "mtnet": ("51.70 ± 1.84", None),
    "warpgrad": ("52.3 ± 0.8", "68.4 ± 0.6"),
    "metacurvature": ("54.23 ± 0.88", "67.99 ± 0.73"),
    "metakfo": (None, "64.9"),
    "ecml": ("48.94 ± 0.80", "65.26 ± 0.67"),
    "blockiaf": ("56.10 ± 1.43", "69.59 ± 0.71"),
    "gradnet": (None, None),
    "anil": (None, None),
}


def published(**settings) -> dict[str, tuple[str | None, ...]]:
    rows = make_rows(spec_of(list(METHODS), **settings), stream())
    return {m: tuple(r.published for r in rows if r.method == m) for m in PAPER}


def test_the_papers_figures_stand_beside_those_of_its_own_tasks():
    assert published(data="mini-imagenet") == PAPER


@pytest.mark.parametrize("settings", [{"data": "mini-imagenet", "ways": 20}, {"data": "omniglot"}])
def test_beside_other_tasks_they_would_mislead(settings):
    assert set(published(**settings).values()) == {(None, None)}


def test_a_recipe_is_spelled_out():
    line = line_of(spec_of(["maml", "blockiaf"], recipes="authors", iterations=3_000))
    assert (
        "Adam, outer learning rate 0.001; for blockiaf SGD, outer learning rate 0.001, Nesterov 0.9"
        in line
    )
    assert "weight decay 0.0001, times 0.1 every 1,000;" in line


def test_the_step_sizes_that_a_search_chose_are_told():
    chosen = [("maml", 1, 0.1), ("maml", 5, 0.03), ("ecml", 1, None), ("anil", 1, 0.1)]
    rows = [{"label": label, "shots": shots, "lr": lr} for label, shots, lr in chosen]
    search = {"candidates": [0.1, 0.03], "tasks": 9, "iterations": 50, "geometry": [], "rows": rows}
    line = line_of(spec_of(["maml"]), search)
    assert (
        "from {0.1, 0.03} by 9 validation tasks after 50 iterations (0.1, maml 5-shot 0.03);"
    ) in line


def test_precision_and_skipped_steps_decide_numbers_too():
    usual = line_of(spec_of(["maml"]))
    assert "autocast" not in usual
    assert "skipped" not in usual
    line = line_of(spec_of(["maml"], autocast="bf16", dtype="float64", on_nonfinite="skip"))
    assert "; bf16 autocast; float64; steps that are not finite are skipped;" in line
