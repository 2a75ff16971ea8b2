"""With a computed head, one learner serves any number of ways, in every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, linear

import metamirror as mm
from metamirror.cli.main import main
from metamirror.estimators.export import AdaptedModule
from metamirror.playground.models import OWN, adapt, on_offer
from metamirror.playground.requests import Adapt
from metamirror.testing import check_mirror_map
from metamirror.testing.methods import meta_gradient, relative_difference
from metamirror.testing.networks import smooth_mlp
from tests.comparing import one
from tests.networks import shaken


def tasks(ways: int, shots: int = 2) -> mm.Task:
    """Two tasks of vectors of six, for a model of three outputs."""
    random = torch.Generator().manual_seed(ways)
    y = torch.arange(ways).repeat(2, shots)
    sx, qx = (torch.randn(*y.shape, 6, generator=random, dtype=torch.float64) for _ in range(2))
    return mm.Task(mm.Batch(sx, y), mm.Batch(qx, y))


SHAPED = ("metasgd", "metacurvature", "metakfo", "mtnet:masks=false", "blockiaf", "gradnet")
SHAPED += ("metamd:form=pnorm", "gap")
ANY = ("protonet", "protomaml", "r2d2", "metaoptnet", "anil:start=svm", "ecml:start=ridge")
ANY += ("mamlpp:start=prototypes", "metalstm:start=prototypes", "imaml:start=ridge")
ANY += tuple(f"{spec}:start=prototypes" for spec in SHAPED)


@pytest.mark.parametrize("spec", ANY)
@pytest.mark.parametrize("ways", [2, 7])
def test_any_number_of_ways_one_by_one_and_under_vmap(spec: str, ways: int):
    grads = []
    for vectorize in (False, not spec.startswith("imaml")):
        torch.manual_seed(0)
        learner = mm.make_learner(spec, smooth_mlp(), lr=0.1, vectorize=vectorize)
        grads.append(meta_gradient(shaken(learner), tasks(ways)))
    assert relative_difference(*grads) < 1e-10
    adapted = learner.adapt(one(tasks(ways).support))
    assert adapted(tasks(ways).query.x[0]).shape == (2 * ways, ways)


@pytest.mark.parametrize("spec", SHAPED)
def test_a_geometry_moves_the_body_and_plain_steps_a_computed_head(spec: str):
    """One step from prototypes, with the gradient by torch alone."""
    torch.manual_seed(0)
    learner = shaken(mm.make_learner(spec, smooth_mlp(), steps=1, lr=0.1, start="prototypes"))
    support = one(tasks(4).support)
    path = learner.adapt(support, seed=0, keep=True).path
    before = {name: p.clone().requires_grad_() for name, p in path.points[0].items()}
    x = support.x
    for i in range(2):
        x = torch.tanh(linear(x, *(before[f"blocks.{i}.linear.{n}"] for n in ("weight", "bias"))))
    loss = cross_entropy(linear(x, before["head.weight"], before["head.bias"]), support.y)
    grads = dict(zip(before, torch.autograd.grad(loss, list(before.values())), strict=True))
    for name, p in before.items():
        plain = p.detach() - 0.1 * grads[name]
        same = torch.allclose(path.phi[name], plain, rtol=1e-12, atol=1e-14)
        if name.startswith("head."):
            assert same, name
        elif name.endswith("weight"):
            assert not same, f"{name} has no geometry of its own"


@pytest.mark.parametrize("spec", SHAPED)
def test_without_a_step_a_geometry_has_no_part(spec: str):
    learner = mm.make_learner(spec, smooth_mlp(), steps=0, start="prototypes")
    if spec.startswith("metamd"):  # which is trained without queries
        return
    expected = mm.make_learner("protonet", smooth_mlp()).meta_loss(tasks(4))
    torch.testing.assert_close(learner.meta_loss(tasks(4)), expected)


@pytest.mark.parametrize("spec", ["metasgd:adapts=head", "blockiaf:adapts=head", "ibaml"])
def test_a_geometry_of_the_heads_shape_takes_the_models_own_number(spec: str):
    learner = mm.make_learner(spec, smooth_mlp(), steps=1, lr=0.1, start="prototypes")
    learner.meta_loss(tasks(3))
    for ways in (2, 4):
        with pytest.raises(ValueError, match=f"asks for {ways} outputs.*made for the model's 3"):
            learner.meta_loss(tasks(ways))
        with pytest.raises(ValueError, match=f"asks for {ways} outputs"):
            learner.adapt(one(tasks(ways).support))


@pytest.mark.parametrize("spec", ["gradnet", "metasgd:positive=true"])
def test_around_a_head_a_mirror_map_stays_one(spec: str):
    learner = shaken(mm.make_learner(spec, smooth_mlp(), steps=1, start="ridge"))
    theta = {name: p.detach() for name, p in learner.theta().items()}
    g = learner.geometry.candidate_mirror_map(theta)
    check_mirror_map(g, theta)
    assert torch.equal(g(theta)["head.weight"], theta["head.weight"])


def test_a_diagonal_prior_is_of_a_shape_too():
    learner = mm.make_learner("protomaml", smooth_mlp(), steps=1, prior="diagonal:0.1")
    with pytest.raises(ValueError, match="asks for 4 outputs"):
        learner.meta_loss(tasks(4))


def test_every_class_needs_an_example_in_every_task():
    stack = tasks(4)
    stack.support.y[1] = torch.tensor([0, 1, 2, 0, 0, 1, 2, 0])
    learner = mm.make_learner("protonet", smooth_mlp())
    with pytest.raises(ValueError, match=r"no example of class 3.*label the 4 classes"):
        learner.meta_loss(stack)


def test_the_query_has_no_class_that_the_support_has_not():
    few, many = tasks(3), tasks(4)
    mixed = mm.Task(few.support, many.query)
    with pytest.raises(ValueError, match=r"query\.y holds the label 3"):
        mm.make_learner("protonet", smooth_mlp()).meta_loss(mixed)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A ProtoNet, trained on five classes of letters."""
    out = tmp_path_factory.mktemp("runs") / "protonet"
    words = "--method protonet --data glyphs --image-size 16 --width 4 --queries 2 --iterations 3"
    words += " --validate-every 2 --val-tasks 2"
    assert main(["train", *words.split(), "--out", str(out)]) == 0
    return out


def test_its_own_number_of_steps_reaches_the_run(run: Path):
    config = json.loads((run / "config.json").read_text())
    assert (config["steps"], config["lr"]) == (0, 0.01)
    assert mm.load(run).steps == 0


def test_a_run_of_five_ways_is_evaluated_with_twenty(run: Path, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(run), "--ways", "20", "--tasks", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ways"], found["trained_ways"], found["steps"]) == (20, 5, 0)
    assert 0 <= found["accuracy"] <= 100
    assert main(["evaluate", str(run), "--tasks", "3", "--json"]) == 0
    names = sorted(p.name for p in (run / "evaluations").glob("*.json"))
    assert len(names) == 2
    assert names[0].endswith("-20ways.json"), "neither result replaces the other"


def test_a_learned_head_keeps_its_number(tmp_path: Path, capsys):
    words = "--method maml --data glyphs --image-size 16 --width 4 --queries 2 --iterations 1"
    assert main(["train", *words.split(), "--val-tasks", "2", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--ways", "20", "--tasks", "2"]) == 2
    assert "ways is 20" in capsys.readouterr().err


def raw(letters: torch.Tensor) -> torch.Tensor:
    """Grey images (examples, 1, size, size) as the bytes of pictures in colour."""
    return (255 * letters).round().byte().movedim(1, 3).expand(-1, -1, -1, 3)


@pytest.mark.parametrize("ways", [2, 8])
def test_a_classifier_of_any_number_of_classes(run: Path, ways: int, tmp_path: Path):
    task = mm.tasks("glyphs", split="test", ways=ways, image_size=16, batch=1)[0]
    x, names = task.support.x[0], [f"letter {i}" for i in range(ways)]
    classifier = mm.FewShotClassifier(run).fit(x, names)
    shares = classifier.predict_proba(task.query.x[0])
    assert shares.shape == (15 * ways, ways)
    assert classifier.score(x, names) == 1.0, "with one example each is its own class mean"
    classifier.save(tmp_path / "model")
    again = mm.FewShotClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(task.query.x[0]), shares)
    module = AdaptedModule(again.fitted_)
    exported = module(raw(task.query.x[0])).numpy()
    np.testing.assert_allclose(exported, shares, atol=1e-3)


def test_a_damaged_head_is_not_loaded(run: Path, tmp_path: Path):
    task = mm.tasks("glyphs", split="test", ways=6, image_size=16, batch=1)[0]
    classifier = mm.FewShotClassifier(run).fit(task.support.x[0], list("abcdef"))
    params = classifier.fitted_.adapted.params
    params["head.weight"] = params["head.weight"][:4]
    classifier.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"adapted head\.weight has shape"):
        mm.FewShotClassifier.load(tmp_path / "model")


def test_a_regressor_of_other_outputs(tmp_path: Path):
    learner = mm.make_learner("r2d2", mm.models.MLP(2, 1, hidden=(16,)))
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    y = np.stack([x.sum(1), x[:, 0]], 1)
    regressor = mm.FewShotRegressor(learner).fit(x, y)
    assert regressor.predict(x).shape == (12, 2)
    regressor.save(tmp_path / "model")
    again = mm.FewShotRegressor.load(tmp_path / "model").predict(x)
    assert np.array_equal(again, regressor.predict(x))


def test_the_playground_offers_more_classes_and_no_steps(run: Path):
    choice = on_offer(run)[OWN]
    offered = choice.described()
    assert (offered["most_classes"], offered["steps"]) == (20, 0)
    images = np.random.default_rng(0).integers(0, 255, (7, 16, 16, 1), dtype=np.uint8)
    wanted = Adapt(OWN, 0, None, {str(i): [image] for i, image in enumerate(images)})
    model = adapt(choice, wanted)
    assert len(model.described()["losses"]) == 1
    assert len(model.predict(images[0])[0]) == 7
