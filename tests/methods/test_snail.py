"""SNAIL: the network by its formulas, what may depend on what, and a learner without steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import metamirror as mm
from metamirror.core.tasks import split_tasks
from metamirror.estimators.export import export
from metamirror.experiments.convergence import convergence
from metamirror.experiments.inspection import inspect_learner
from metamirror.methods.snail import AttentionBlock, DenseBlock
from metamirror.report.figures.geometry import describe_geometry
from metamirror.testing.methods import check_learner_gradient
from metamirror.testing.networks import smooth_conv, smooth_mlp
from metamirror.training.train import train
from tests.comparing import one
from tests.estimators.stripes import fitted, stripes
from tests.networks import image_tasks, point_tasks, shaken
from tests.refusals import assert_refused
from tests.runs import small

SMALL = "snail:length=7:filters=16"


def learner_of(model: nn.Module | None = None, spec: str = SMALL, **options) -> mm.Learner:
    torch.manual_seed(0)
    return shaken(mm.make_learner(spec, model or smooth_mlp(), **options))


# The network, place by place


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    out = layer.weight @ x
    return out if layer.bias is None else out + layer.bias


def naive_dense(block: DenseBlock, places: list[Tensor]) -> list[Tensor]:
    found = []
    for t, x in enumerate(places):
        both = affine(block.now, x)
        if t - block.dilation >= 0:
            both = both + affine(block.before, places[t - block.dilation])
        half = len(both) // 2
        found.append(torch.cat([x, torch.tanh(both[:half]) / (1 + torch.exp(-both[half:]))]))
    return found


def naive_attention(block: AttentionBlock, places: list[Tensor]) -> list[Tensor]:
    found = []
    for t, x in enumerate(places):
        query, size = affine(block.query, x), block.query.out_features
        scores = [query @ affine(block.key, s) / math.sqrt(size) for s in places[: t + 1]]
        weights = [torch.exp(score) for score in scores]
        read = sum(
            w * affine(block.value, s) for w, s in zip(weights, places[: t + 1], strict=True)
        )
        found.append(torch.cat([x, read / sum(weights)]))
    return found


def naive(learner: mm.Learner, support: mm.Batch, order: list[int], query: Tensor) -> Tensor:
    """One query's outputs, with the whole sequence in plain loops; the body is `smooth_mlp`'s."""
    body, head = learner.model.blocks, learner.model.head

    def features(x: Tensor) -> Tensor:
        for layer in body:
            x = torch.tanh(affine(layer.linear, x))
        return x

    width = learner.model.config["outputs"]
    spare = torch.zeros(head.spare, dtype=query.dtype)
    labels = torch.eye(width, dtype=query.dtype)
    places = [torch.cat([features(support.x[i]), labels[support.y[i]], spare]) for i in order]
    nothing = torch.zeros(width, dtype=query.dtype)
    places.append(torch.cat([features(query), nothing, spare]))
    for block in head.blocks:
        step = naive_dense if isinstance(block, DenseBlock) else naive_attention
        places = step(block, places)
    return affine(head.output, places[-1])


def order_of(learner: mm.Learner, count: int, seed: int) -> list[int]:
    """The order in which the geometry's draw sorts the examples."""
    keys = learner.geometry.draw(torch.Generator().manual_seed(seed))["order"].tolist()
    return sorted(range(count), key=lambda i: keys[i])


@pytest.mark.parametrize("spec", [SMALL, f"{SMALL}:first_dilation=2", "snail:length=3:filters=16"])
def test_outputs_are_those_of_the_formulas(spec: str):
    learner = learner_of(spec=spec)
    support, query = one(point_tasks().support), one(point_tasks().query)
    adapted = learner.adapt(support, seed=3)
    if "length=3" not in spec:
        order = order_of(learner, len(support.x), 3)
    else:  # the draw is used again: its order of three, three at a time
        keys = learner.geometry.draw(torch.Generator().manual_seed(3))["order"].tolist()
        order = sorted(range(len(support.x)), key=lambda i: (keys[i % 3], i))
    expected = torch.stack([naive(learner, support, order, x) for x in query.x]).detach()
    torch.testing.assert_close(adapted(query.x), expected, rtol=1e-10, atol=1e-12)


def test_the_meta_gradient_is_that_of_the_formulas():
    learner, tasks = learner_of(), point_tasks()
    losses = []
    for seed, task in enumerate(split_tasks(tasks)):
        order = order_of(learner, len(task.support.x), seed)
        outputs = [naive(learner, task.support, order, x) for x in task.query.x]
        losses.append(F.cross_entropy(torch.stack(outputs), task.query.y))
    parameters = list(learner.parameters())
    expected = torch.autograd.grad(torch.stack(losses).mean(), parameters)
    (loss, _), found = learner.meta_gradient(tasks, seeds=[0, 1])
    torch.testing.assert_close(loss, torch.stack(losses).detach())
    for p, q in zip(found, expected, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-12)


def test_published_sizes():
    """Of public ports: 128 filters, keys of 64, 256 and 512, values of half that size."""
    head = mm.make_learner("snail", mm.models.Conv4(5, channels=1, image_size=28)).model.head
    attention = [b for b in head.blocks if isinstance(b, AttentionBlock)]
    sizes = [(b.key.out_features, b.value.out_features) for b in attention]
    assert sizes == [(64, 32), (256, 128), (512, 256)]
    dense = [b for b in head.blocks if isinstance(b, DenseBlock)]
    assert [b.dilation for b in dense] == [1, 2, 4, 8, 16] * 2
    assert {b.now.out_features for b in dense} == {2 * 128}


def test_attention_begins_with_places_that_are_alike():
    torch.manual_seed(0)
    block = AttentionBlock(64, 256, 16)
    past = torch.randn(4, 64)
    with torch.no_grad():
        scores = block.query(past) - block.query.bias
        scores = scores @ block.key(past).T / 16
    assert (scores.argmax(1) == torch.arange(4)).all()
    torch.testing.assert_close(scores.diagonal().mean().item(), 8.0, rtol=0.2, atol=0)


# What depends on what


@pytest.mark.parametrize("kind", [DenseBlock, AttentionBlock])
def test_no_place_depends_on_a_later_one(kind):
    torch.manual_seed(0)
    block = kind(8, 4, 2).double()
    past, last = torch.randn(6, 8).double(), torch.randn(3, 8).double()
    by_past, by_last = torch.func.jacrev(lambda p, q: block(p, q)[0], (0, 1))(past, last)
    assert not by_last.any()
    depends = by_past.abs().amax((1, 3)) > 0
    assert not depends.triu(1).any()
    assert depends.diagonal().all()
    # A dense block sees itself and two places before; attention all that was.
    offsets = {int(t - s) for t, s in depends.nonzero()}
    assert offsets == ({0, 2} if kind is DenseBlock else set(range(6)))


def test_queries_do_not_see_each_other():
    learner = learner_of(smooth_conv(), norm="inductive")
    support, query = one(image_tasks().support), one(image_tasks().query)
    adapted = learner.adapt(support, seed=0)
    together = adapted(query.x)
    alone = torch.cat([adapted(x[None]) for x in query.x])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    order = torch.randperm(len(query.x))
    torch.testing.assert_close(adapted(query.x[order]), together[order], rtol=1e-12, atol=1e-12)


def test_one_attention_block_reads_a_set_and_the_whole_network_a_sequence():
    torch.manual_seed(0)
    past, last = torch.randn(6, 8).double(), torch.randn(3, 8).double()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    attention, dense = AttentionBlock(8, 4, 4).double(), DenseBlock(8, 4, 2).double()
    read, again = attention(past, last)[1], attention(past[order], last)[1]
    torch.testing.assert_close(read, again, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(dense(past, last)[1], dense(past[order], last)[1])
    # Where places have read what was before them, even attention alone depends on the order.
    second = AttentionBlock(12, 4, 4).double()
    twice = [second(*attention(p, last))[1] for p in (past, past[order])]
    assert not torch.allclose(*twice)


def test_every_order_is_drawn_and_decides_the_prediction():
    learner = learner_of()
    support = mm.Batch(torch.randn(3, 6).double(), torch.arange(3))
    memory = learner.adapt(support, seed=0).params["head.memory"]
    assert memory.shape == (3, 20)
    orders, outputs = set(), {}
    for seed in range(60):
        adapted = learner.adapt(support, seed=seed)
        order = tuple(adapted.params["head.memory"][:, 16:19].argmax(1).tolist())
        orders.add(order)
        found = adapted(support.x)
        torch.testing.assert_close(outputs.setdefault(order, found), found)
    assert orders == set(itertools.permutations(range(3)))
    first, second, *_ = outputs.values()
    assert not torch.allclose(first, second)
    # Given in another order, and drawn into the same one: the same prediction.
    given = [2, 0, 1]
    shuffled = mm.Batch(support.x[given], support.y[given])
    adapted = learner.adapt(shuffled, seed=0)
    order = tuple(adapted.params["head.memory"][:, 16:19].argmax(1).tolist())
    torch.testing.assert_close(adapted(support.x), outputs[order])


def test_the_support_set_has_a_say():
    learner, tasks = learner_of(), point_tasks()
    support, x = one(tasks.support), one(tasks.query).x
    other = mm.Batch(support.x, (support.y + 1) % 3)
    assert not torch.allclose(learner.adapt(support, seed=0)(x), learner.adapt(other, seed=0)(x))


# A learner without an inner loop


def test_there_are_no_steps_whatever_is_asked_for():
    learner = learner_of(steps=5, prior="diagonal:0.1")
    support = one(point_tasks().support)
    learner.configure(steps=7, lr=0.3)
    assert learner.steps == 0
    assert learner.prior is None
    for adapted in (learner.adapt(support, steps=3, seed=0), *learner.adaptations(support, seed=0)):
        assert len(adapted.path.losses) == len(adapted.path.grad_norms) == 0
        assert all(torch.equal(adapted.params[n], p) for n, p in learner.theta().items())
    assert len(list(learner.adaptations(support, steps=4))) == 1


def test_an_adapted_model_stays_as_it_is_while_the_learner_learns_on():
    learner = learner_of()
    support = one(point_tasks().support)
    adapted = learner.adapt(support, seed=0)
    before = adapted(support.x)
    shaken(learner, size=0.5, seed=5)
    torch.testing.assert_close(adapted(support.x), before, rtol=0, atol=0)


def test_it_learns_to_classify():
    """Classes are points in the plane that no two tasks share: only the support set names them."""
    torch.manual_seed(0)
    model = mm.models.MLP(2, 3, hidden=(32,))
    learner = mm.make_learner("snail:length=4:filters=16", model, vectorize=True)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(0)
    accuracies = []
    for _ in range(100):
        centres = 2 * torch.randn(8, 3, 2, generator=random)
        y = torch.arange(3).repeat(8, 4)
        x = centres.repeat(1, 4, 1) + 0.2 * torch.randn(8, 12, 2, generator=random)
        tasks = mm.Task(mm.Batch(x[:, :3], y[:, :3]), mm.Batch(x[:, 3:], y[:, 3:]))
        optimizer.zero_grad()
        loss, accuracy = learner.task_losses(tasks)
        loss.mean().backward()
        optimizer.step()
        accuracies.append(float(accuracy.mean()))
    assert np.mean(accuracies[:20]) < 0.5
    assert np.mean(accuracies[-20:]) > 0.8


def test_regression_reads_the_targets():
    model = mm.models.MLP(1, 2, activation="tanh").double()
    learner = learner_of(model)
    x, y = torch.randn(2, 4, 1).double(), torch.randn(2, 4, 2).double()
    tasks = mm.Task(mm.Batch(x, y), mm.Batch(x.flip(1), y.flip(1)))
    check_learner_gradient(learner, tasks)
    adapted = learner.adapt(mm.Batch(x[0], y[0]), seed=0)
    targets = adapted.params["head.memory"][:, 40:42]
    assert sorted(targets[:, 0].tolist()) == sorted(y[0, :, 0].tolist())
    assert_refused(
        lambda: learner.adapt(mm.Batch(x[0], y[0, :, :1])), "1 targets.*2 outputs: build the model"
    )


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 3))),
        lambda: nn.Linear(6, 3),
    ],
    ids=["nested", "bare"],
)
def test_the_head_may_be_anywhere(model, tmp_path):
    learner = learner_of(model().double())
    check_learner_gradient(learner, point_tasks())
    mm.save(learner, tmp_path)
    restored = mm.load(tmp_path, model=model().double())
    losses = [each.meta_loss(point_tasks(), seeds=[0, 1]) for each in (learner, restored)]
    assert torch.equal(*losses)


def test_mistakes_are_named():
    model = smooth_mlp()
    for words, said in {
        "length=1": "snail:length is 1; a sequence has at least 2 places",
        "filters=24": "snail:filters is 24; it is a multiple of 16",
        "first_dilation=3": "first_dilation is 3; choose 1 or 2",
        "head=blocks": r"snail:head is 'blocks'; the model's linear layers are \['blocks.0.linear'",
    }.items():
        assert_refused(lambda words=words: mm.make_learner(f"snail:{words}", model), said)
    support = mm.Batch(torch.randn(4, 6).double(), torch.arange(4))
    assert_refused(lambda: learner_of().adapt(support), "label 3, but the model has 3 outputs")
    rows = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 3)).double()
    assert_refused(lambda: learner_of(rows).adapt(support), "one vector of features an example")


# In the programs


def test_the_estimator_keeps_the_memory_on_disk_and_in_other_programs(tmp_path):
    new, _ = stripes(classes=3, each=3, seed=1)
    clf = fitted("snail", random_state=1)
    assert (clf.n_steps_, len(clf.losses_)) == (0, 1)
    clf.save(tmp_path / "model.safetensors")
    loaded = mm.FewShotClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(new), clf.predict_proba(new))
    export(clf, tmp_path / "model.onnx", "onnx")
    model = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    x = new[..., None].repeat(3, axis=3)
    for count in (1, 9):
        (found,) = model.run(["probabilities"], {"images": x[:count]})
        np.testing.assert_allclose(found, clf.predict_proba(new[:count]), atol=1e-5)


def test_the_question_for_a_mirror_map_does_not_apply():
    learner = mm.make_learner("snail", mm.models.MLP(1, 1)).double()
    found = inspect_learner(learner, mm.tasks("sinusoid", "val", shots=4, batch=1), tasks=1)
    assert found["is_mirror_map"] is found["loss_smoothness_estimate"] is None
    assert found["effective_step_sizes"] == {}
    said = describe_geometry({**found, "method": "snail", "data": "sinusoid"})
    assert "no inner step is taken" in said[0]
    assert said[-1] == "no inner loop: there are no steps to look at"


def test_convergence_leaves_it_out(tmp_path, capsys):
    for method in ("maml", "snail"):
        train(small(method=method, iterations=1), tmp_path / method)
    found = convergence([tmp_path / "maml", tmp_path / "snail"], tasks=2)
    assert [curve["method"] for curve in found["curves"]] == ["maml"]
    assert "snail is left out: it has no inner loop" in capsys.readouterr().err
    assert_refused(lambda: convergence([tmp_path / "snail"], tasks=2), "no run has an inner loop")
