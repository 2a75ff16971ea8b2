"""The learned optimiser with memory, against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import metamirror as mm
from metamirror.methods.metalstm import preprocessed
from metamirror.testing.differences import check_slope
from metamirror.testing.methods import meta_gradient
from metamirror.testing.networks import smooth_conv, smooth_mlp
from tests.networks import image_tasks, point_tasks, shaken

STEPS, LR, HIDDEN = 3, 0.1, 3


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def learner_of(size: float = 0.3, **options) -> mm.Learner:
    model = small_model()
    given = {"hidden": HIDDEN, "steps": STEPS, "lr": LR, **options}
    return shaken(mm.make_learner("metalstm", model, **given), size)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def naive_preprocessed(x: float) -> tuple[float, float]:
    if abs(x) >= math.exp(-10):
        return math.log(abs(x)) / 10, math.copysign(1.0, x)
    return -1.0, math.exp(10) * x


class Coordinate:
    """One number of phi with its own memory, and the weights that all share."""

    def __init__(self, value: float, weights: dict[str, list]):
        self.value, self.weights = value, weights
        self.h, self.c = [0.0] * HIDDEN, [0.0] * HIDDEN
        self.gates = [0.0, 0.0]

    def step(self, slope: float, loss: float) -> None:
        w = self.weights
        seen = [*naive_preprocessed(slope), *naive_preprocessed(loss), *self.h]
        dots = []
        for row, bias in zip(w["weight"], w["bias"], strict=True):
            dots.append(sum(a * b for a, b in zip(row, seen, strict=True)) + bias)
        for j in range(HIDDEN):
            i, f, o, new = (dots[gate * HIDDEN + j] for gate in range(4))
            self.c[j] = sigmoid(f) * self.c[j] + sigmoid(i) * math.tanh(new)
            self.h[j] = sigmoid(o) * math.tanh(self.c[j])
        for gate in range(2):
            row = w["gate_weight"][gate]
            known = [*self.h, self.value, self.gates[gate]]
            dot = sum(a * b for a, b in zip(row, known, strict=True))
            self.gates[gate] = sigmoid(dot + w["gate_bias"][gate])
        self.value = self.gates[0] * self.value - self.gates[1] * slope


def loss_of(model: nn.Module, flat: list[float] | torch.Tensor, batch: mm.Batch) -> torch.Tensor:
    vector = torch.as_tensor(flat, dtype=torch.float64)
    parts = vector.split([p.numel() for p in model.parameters()])
    shaped = zip(model.named_parameters(), parts, strict=True)
    phi = {name: part.view(p.shape) for (name, p), part in shaped}
    log_probabilities = functional_call(model, phi, (batch.x,)).log_softmax(1)
    return -log_probabilities[torch.arange(len(batch.y)), batch.y].mean()


def naive_path(
    learner: mm.Learner, support: mm.Batch, fed: list[tuple[list[float], float]] | None = None
) -> tuple[list[float], list[tuple[list[float], float]]]:
    """The adapted numbers, and what each step was fed: gradients and loss, or those given."""
    weights = {name: p.tolist() for name, p in learner.geometry.named_parameters()}
    start = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
    coordinates = [Coordinate(value, weights) for value in start.tolist()]
    seen = []
    for k in range(STEPS):
        if fed is None:
            flat = torch.tensor([c.value for c in coordinates], dtype=torch.float64)
            loss = loss_of(learner.model, flat.requires_grad_(), support)
            slopes, value = torch.autograd.grad(loss, flat)[0].tolist(), loss.item()
        else:
            slopes, value = fed[k]
        seen.append((slopes, value))
        for coordinate, slope in zip(coordinates, slopes, strict=True):
            coordinate.step(slope, value)
    return [c.value for c in coordinates], seen


def task_of(tasks: mm.Task, t: int) -> mm.Task:
    return mm.Task(*(mm.Batch(b.x[t], b.y[t]) for b in tasks))


def test_the_path_is_that_of_loops_over_single_numbers():
    learner, support = learner_of(), task_of(point_tasks(), 0).support
    expected, fed = naive_path(learner, support)
    adapted = learner.adapt(support)
    found = torch.cat([p.flatten() for p in adapted.params.values()])
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert adapted.path.losses.tolist() == pytest.approx([loss for _, loss in fed], rel=1e-12)


def test_the_meta_gradient_takes_gradients_and_losses_as_constants():
    """Finite differences of the loops, which are fed what the unmoved learner saw."""
    learner, tasks = learner_of(), point_tasks()
    assert learner.settings.adjoint.name == "first"
    each = [task_of(tasks, t) for t in range(2)]
    fed = [naive_path(learner, task.support)[1] for task in each]

    def value() -> float:
        losses = [
            loss_of(learner.model, naive_path(learner, task.support, seen)[0], task.query).item()
            for task, seen in zip(each, fed, strict=True)
        ]
        return sum(losses) / 2

    grads = meta_gradient(learner, tasks)
    random = torch.Generator().manual_seed(5)
    for name, p in learner.named_parameters():
        direction = torch.randn(p.shape, generator=random, dtype=torch.float64)
        before, ends = p.detach().clone(), []
        for by in (1e-6, -1e-6):
            with torch.no_grad():
                p.copy_(before + by * direction)
            ends.append(value())
        with torch.no_grad():
            p.copy_(before)
        slope = (ends[0] - ends[1]) / 2e-6
        found = float((grads[name] * direction).sum())
        assert found == pytest.approx(slope, rel=1e-6, abs=1e-6 * float(grads[name].norm())), name


@pytest.mark.parametrize(
    ("model", "tasks"), [(smooth_mlp, point_tasks), (smooth_conv, image_tasks)]
)
def test_the_unrolled_meta_gradient_agrees_with_finite_differences(model, tasks):
    learner = mm.make_learner("metalstm:adjoint=unrolled", model(), steps=STEPS, lr=LR)
    shaken(learner, 0.3)
    grads = meta_gradient(learner, tasks())
    for part in ("model.", "geometry."):
        chosen = {n: p for n, p in learner.named_parameters() if n.startswith(part)}
        # So short a step that no gradient crosses e^-10, where the inputs have a kink.
        check_slope(
            lambda: learner.meta_loss(tasks()),
            list(chosen.values()),
            [grads[name] for name in chosen],
            part,
            step=1e-8,
        )


def test_unrolled_and_rematerialised_agree_under_vmap_and_without():
    options = [
        {"adjoint": "unrolled"},
        {"adjoint": "unrolled", "vectorize": True},
        {"adjoint": "rematerialised"},
    ]
    one, *others = (meta_gradient(learner_of(**given), point_tasks()) for given in options)
    for other in others:
        for name, grad in one.items():
            torch.testing.assert_close(other[name], grad, rtol=1e-9, atol=1e-13)


def test_with_gates_of_one_and_alpha_it_is_maml():
    options = {"steps": STEPS, "lr": LR, "adjoint": "unrolled"}
    ours, maml = (mm.make_learner(m, smooth_mlp(), **options) for m in ("metalstm", "maml"))
    with torch.no_grad():
        ours.geometry.gate_weight.zero_()
        ours.geometry.gate_bias.copy_(
            torch.tensor([40.0, math.log(LR / (1 - LR))], dtype=torch.float64)
        )
    tasks = point_tasks()
    found, expected = (meta_gradient(one, tasks) for one in (ours, maml))
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-12, atol=1e-14)
    support = task_of(tasks, 0).support
    params = maml.adapt(support).params
    for name, p in ours.adapt(support).params.items():
        torch.testing.assert_close(p, params[name], rtol=1e-12, atol=1e-14)


def test_another_step_size_scales_the_input_gate():
    learner, support = learner_of(), task_of(point_tasks(), 0).support
    small, large = (learner.adapt(support, steps=1, lr=lr).params for lr in (LR, 2 * LR))
    none = learner.adapt(support, steps=1, lr=0.0).params
    for name, p in none.items():
        torch.testing.assert_close(large[name] - p, 2 * (small[name] - p))


def test_inputs_are_log_magnitude_and_sign():
    values = [0.0, 1e-9, -1e-9, 4.5e-5, 4.6e-5, -0.3, 1.0, -20.0, math.exp(-10)]
    found = preprocessed(torch.tensor(values, dtype=torch.float64))
    expected = torch.tensor([naive_preprocessed(x) for x in values], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_the_gates_start_where_the_docs_say():
    learner = mm.make_learner("metalstm", small_model(), lr=0.03)
    f, i = learner.geometry.gate_bias.sigmoid().tolist()
    assert f == pytest.approx(0.9933, abs=1e-4)
    assert i == pytest.approx(0.03, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 1.0}, r"lr is 1\.0; metalstm's input gate starts there: above 0 and below 1"),
        ({"lr": 0.0}, "above 0 and below 1"),
        ({"hidden": 0}, "metalstm:hidden is 0; it must be at least 1"),
        ({"forget_bias": float("inf")}, "metalstm:forget_bias is inf; it must be finite"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        mm.make_learner("metalstm", small_model(), **options)
