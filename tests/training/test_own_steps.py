"""K and alpha of a run: as given, or else the method's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import metamirror as mm
from metamirror.experiments.comparison import plan
from metamirror.experiments.comparison.protocol import make_protocol
from metamirror.experiments.comparison.search import Search
from metamirror.experiments.comparison.spec import Spec
from metamirror.experiments.cost import Workload
from metamirror.experiments.quickstart import BASE
from metamirror.methods import maml
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_learner, resolved


@pytest.mark.parametrize(
    ("method", "steps", "lr", "expected"),
    [
        ("maml", None, None, (5, 0.01)),
        ("maml", 3, 0.5, (3, 0.5)),
        ("protonet", None, None, (0, 0.01)),
        ("protonet", 3, None, (3, 0.01)),
        ("mine", None, None, (7, 0.2)),
        ("mine", 0, None, (0, 0.2)),
    ],
)
def test_what_is_not_given_is_the_methods_own(monkeypatch, method, steps, lr, expected):
    own = replace(maml.METHOD, key="mine", defaults={"steps": 7, "lr": 0.2})
    monkeypatch.setitem(mm.METHODS, "mine", own)
    config = RunConfig(method, data="sinusoid", steps=steps, lr=lr)
    assert (resolved(config).steps, resolved(config).lr) == expected
    if method != "protonet":
        learner = build_learner(config, mm.tasks("sinusoid"))
        assert (learner.steps, learner.lr) == expected


def rows_of(base: RunConfig, **options):
    methods = ["maml", "protonet", "r2d2", "maml:start=prototypes"]
    spec = Spec(base, methods, [1], Path("nowhere"), controls=False, **options)
    streams = plan.open_streams(spec)
    return spec, streams, plan.make_rows(spec, streams["train", 1])


@pytest.mark.parametrize(("given", "expected"), [(3, 3), (None, 5)])
def test_methods_without_a_step_take_none_in_a_comparison(given, expected):
    spec, streams, rows = rows_of(RunConfig("maml", data="glyphs", steps=given))
    steps = {row.method: row.jobs[0].config["steps"] for row in rows}
    assert steps == {"maml": expected, "protonet": 0, "r2d2": 0, "maml:start=prototypes": expected}
    protocol = make_protocol(spec, rows, streams, None)
    assert (protocol["steps"], protocol["own_steps"]) == (expected, {"protonet": 0, "r2d2": 0})
    assert (
        f"; {expected}, protonet: 0, r2d2: 0 inner steps; inner step size 0.01;"
        in (protocol["line"])
    )


def test_the_quickstart_has_them_too():
    _, _, rows = rows_of(BASE)
    steps = {row.method: row.jobs[0].config["steps"] for row in rows}
    assert steps["protonet"] == 0
    assert steps["maml"] == BASE.steps


def test_a_step_size_is_not_searched_for_where_there_is_no_step():
    search = Search((0.1, 0.2, 0.4), iterations=1, tasks=2)
    _, _, rows = rows_of(RunConfig("maml", data="glyphs"), search=search)
    tried = {row.method: [rates["lr"] for rates, _ in search.jobs(row)] for row in rows}
    assert tried["maml"] == [0.1, 0.2, 0.4]
    assert tried["protonet"] == [0.1]


def test_a_methods_own_step_size_goes_before_that_of_all_but_not_before_the_users(monkeypatch):
    own = replace(maml.METHOD, key="mine", defaults={"lr": 0.2})
    monkeypatch.setitem(mm.METHODS, "mine", own)
    rows = {"maml": "maml", "mine": "mine"}
    base = RunConfig("maml")
    for words, given, expected in (
        ("", None, (0.01, 0.2)),
        ("maml=0.5", None, (0.5, 0.2)),
        ("0.3", None, (0.3, 0.3)),
        ("mine=0.4", 0.1, (0.1, 0.4)),
        ("", 0.1, (0.1, 0.1)),
    ):
        found = Spec(replace(base, lr=given), list(rows), [1], lr=words).lr_of(rows)
        assert (found["maml"], found["mine"]) == expected


def test_the_cost_of_a_method_without_a_step_is_measured_without_one(monkeypatch):
    from metamirror.experiments import cost

    seen = {}
    original = cost.make_learner

    def noted(method, model, **options):
        seen[method] = options["steps"]
        return original(method, model, **options)

    monkeypatch.setattr(cost, "make_learner", noted)
    work = Workload(shape=(1, 16, 16), shots=1, queries=1, width=4, tasks=1, steps=2)
    for method in ("maml", "protonet"):
        cost.prepare(method, work)()
    assert seen == {"maml": 2, "protonet": 0}
