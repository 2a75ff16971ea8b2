"""`metamirror inspect`: verdicts on learners whose geometry is known."""

from __future__ import annotations

import json

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.core.geometry import Preconditioner
from metamirror.experiments.inspection import inspect_learner, loss_smoothness
from metamirror.report.figures.geometry import (
    describe_geometry,
    plot_geometry,
    verdict_in_words,
)
from tests.table import ROWS


def stream():
    return mm.tasks("sinusoid", split="val", shots=10, batch=4)


def learner_of(spec: str, shaken: float = 0.0) -> mm.Learner:
    torch.manual_seed(0)
    learner = mm.make_learner(spec, mm.models.MLP(1, 1, hidden=(8, 8)), steps=2).double()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in learner.geometry.parameters():
            p.add_(shaken * torch.randn(p.shape, generator=random, dtype=torch.float64))
    return learner


@pytest.mark.parametrize(
    ("spec", "shaken", "valid", "proof"),
    [
        ("maml", 0, True, "by construction"),
        ("anil", 0, True, "by construction"),
        ("ecml", 0, True, "by construction"),
        ("metasgd", 0, True, "by construction"),
        ("metasgd", 0.1, False, "refuted"),
        ("metasgd:positive=true", 1.0, True, "by construction"),
        ("gradnet", 1.0, True, "by construction"),
        ("gradnet:form=elementwise", 1.0, True, "by construction"),
        ("gradnet:scaling=kronecker", 1.0, True, "by construction"),
        ("metacurvature", 0, True, "checked"),
        ("metacurvature", 0.1, False, "refuted"),
        ("metakfo", 0.3, True, "by construction"),
        ("metakfo:psd=false", 0, True, "checked"),
        ("metakfo:psd=false", 0.3, False, "refuted"),
        ("mtnet:mask_logit=0", 0, None, "not decided"),
        ("mtnet:masks=false", 0.05, True, "checked"),
        ("blockiaf", 0, True, "checked"),
        ("blockiaf", 3.0, False, "refuted"),
        ("warpgrad", 0, None, None),
        ("metakfo:hidden=2", 0, None, None),
        ("metakfo:adapt_transform=true", 0, None, None),
    ],
)
def test_verdicts(spec, shaken, valid, proof):
    found = inspect_learner(learner_of(spec, shaken), stream(), tasks=2, points=3)
    assert found["is_mirror_map"] is valid
    assert (found["proof"] or "").startswith(proof or "")
    if valid and not spec.startswith("blockiaf"):
        m, largest = found["map_bounds"]
        assert 0 < m <= largest
        assert found["strong_convexity"] == pytest.approx(1 / largest)
        assert found["smoothness"] == pytest.approx(1 / m)
        ell = found["loss_smoothness_estimate"]
        assert found["step_size_bound_estimate"] == pytest.approx(2 / (largest * ell))
    else:
        # What was measured at points says nothing of h elsewhere.
        assert found["strong_convexity"] is None
        assert found["step_size_bound_estimate"] is None


def test_a_refuted_map_comes_with_its_counterexample():
    found = inspect_learner(learner_of("blockiaf", 3.0), stream(), tasks=1)
    assert found["counterexample"]["product"] < 0 < found["counterexample"]["distance"]


def test_masks_make_a_preconditioner_singular_not_decreasing():
    found = inspect_learner(learner_of("mtnet:mask_logit=0"), stream(), tasks=1)
    assert found["counterexample"] is None
    assert found["is_mirror_map"] is None
    assert "slopes near zero" in found["proof"]
    assert "one draw" in found["note"]


def test_effective_step_sizes_are_those_of_the_geometry():
    learner = learner_of("metasgd")
    with torch.no_grad():
        for name, rate in zip(learner.geometry.names, learner.geometry.rates, strict=True):
            rate.fill_(0.03 if name.startswith("head") else 0.01)
    sizes = inspect_learner(learner, stream(), tasks=2)["effective_step_sizes"]
    assert sizes["head"] == pytest.approx(0.03, rel=1e-6)
    assert sizes["blocks.0.linear"] == pytest.approx(0.01, rel=1e-6)


def test_dependencies_follow_the_order_of_the_blocks():
    rows = inspect_learner(learner_of("blockiaf", 0.1), stream(), tasks=1)["dependencies"]
    names = list(rows)
    for i, row in enumerate(names):
        assert all(rows[row][other] == 0 for other in names[i + 1 :])
        assert rows[row][row] > 0
    both_ways = inspect_learner(learner_of("gradnet", 0.05), stream(), tasks=1)["dependencies"]
    assert both_ways[names[0]][names[-1]] > 0
    assert both_ways[names[-1]][names[0]] > 0


def test_smoothness_of_least_squares_is_the_largest_eigenvalue():
    learner = mm.make_learner("maml", mm.models.MLP(3, 1, hidden=()).double())
    x = torch.randn(20, 3, dtype=torch.float64)
    data = mm.Batch(x, torch.zeros(20, 1, dtype=torch.float64))
    design = torch.cat([x, torch.ones(20, 1, dtype=torch.float64)], 1)
    expected = float(torch.linalg.eigvalsh(2 * design.T @ design / 20)[-1])
    phi = learner.theta()
    assert loss_smoothness(learner, phi, data, phi) == pytest.approx(expected, rel=1e-6)


def test_the_prior_is_part_of_what_curves():
    model = mm.models.MLP(1, 1, hidden=(8, 8)).double()
    plain, with_prior = (
        mm.make_learner("maml", model, steps=2, prior=prior) for prior in (None, "isotropic:1000")
    )
    found = [inspect_learner(learner, stream(), tasks=1) for learner in (plain, with_prior)]
    assert found[1]["loss_smoothness_estimate"] > found[0]["loss_smoothness_estimate"] + 900
    assert found[1]["effective_step_sizes"]["head"] == pytest.approx(0.01, rel=1e-6)


class Ascent(Preconditioner):
    """Gradient ascent: whatever it is, it is no mirror descent."""

    def direction(self, grad, prepared):
        return {name: -g for name, g in grad.items()}


def test_a_geometry_that_says_nothing_of_itself_is_certified_by_nobody():
    learner = mm.Learner(mm.models.MLP(1, 1, hidden=(8, 8)).double(), Ascent(), steps=2)
    found = inspect_learner(learner, stream(), tasks=1, points=2)
    assert found["is_mirror_map"] is None
    assert found["proof"].startswith("unknown")
    assert found["map_bounds"] is found["strong_convexity"] is found["dependencies"] is None
    assert "mirror map" not in verdict_in_words(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)
def test_every_method_can_be_inspected(row):
    learner, tasks = learner_of(row.spec), stream()
    if row.classes:
        tasks = mm.tasks("glyphs", split="val", image_size=16, batch=4)
        learner = mm.make_learner(row.spec, mm.models.MLP(256, 5, hidden=(8, 8)), steps=2).double()
    found = inspect_learner(learner, tasks, tasks=1, points=2)
    assert json.loads(json.dumps(found)) == found


def test_without_a_step_there_is_no_geometry_to_judge(tmp_path):
    learner = mm.make_learner("r2d2", mm.models.MLP(1, 1, hidden=(8, 8))).double()
    found = inspect_learner(learner, stream(), tasks=1, points=2)
    assert found["is_mirror_map"] is None
    assert "no inner step is taken" in verdict_in_words(found)
    assert found["effective_step_sizes"] == {}
    plot_geometry({"method": "r2d2", **found}, tmp_path / "geometry.png")
    lines = describe_geometry({"method": "r2d2", "data": "sinusoid", **found})
    assert not any("effective step sizes" in line for line in lines)


def test_the_command_prints_json_and_draws_a_figure(tmp_path, capsys):
    run = tmp_path / "run"
    words = "--data sinusoid --method gradnet --shots 5 --iterations 3 --val-tasks 2"
    assert main(["train", *words.split(), "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["inspect", str(run), "--json", "--tasks", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "gradnet"
    assert found["is_mirror_map"] is True
    assert (run / "geometry.png").read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(run), "--tasks", "1"]) == 0
    assert "valid mirror map" in capsys.readouterr().out
