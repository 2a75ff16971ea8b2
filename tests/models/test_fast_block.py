"""The fast block against the plain formula, in value and in both derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.models import conv4
from metamirror.models.conv4 import Conv4, ConvBlock
from metamirror.models.kernels import first_block
from metamirror.models.kernels.conv_block import channel_statistics
from metamirror.models.kernels.fast_block import convolved_and_pooled
from metamirror.testing.methods import meta_gradient

WAYS = 3


def set_fast(model: nn.Module, fast: bool) -> None:
    for module in model.modules():
        if isinstance(module, ConvBlock):
            module.fast = fast


def model_of(channels: int, size: int, signs: str = "mixed") -> Conv4:
    torch.manual_seed(0)
    model = Conv4(WAYS, channels, size, width=6).double()
    with torch.no_grad():
        for block in model.blocks:
            block.norm.weight.normal_().add_(
                {"mixed": 0.0, "positive": 9.0, "negative": -9.0}[signs]
            )
            block.norm.bias.normal_()
    return model


def tasks_of(channels: int, size: int, *, ties: bool = False, shots: int = 2) -> mm.Task:
    random = torch.Generator().manual_seed(1)

    def batch(per_class: int) -> mm.Batch:
        shape = (2, WAYS * per_class, channels, size, size)
        x = torch.rand(shape, generator=random, dtype=torch.float64)
        # Black and white images with flat parts: many windows hold equal numbers.
        x = (x > 0.8).double() if ties else x
        return mm.Batch(x, torch.arange(WAYS).repeat(per_class).expand(2, -1))

    return mm.Task(batch(shots), batch(3))


def both(
    model: Conv4, tasks: mm.Task, spec: str = "maml", *, stacked: bool = False, **options: object
) -> list[Tensor]:
    """Loss and gradient of the fast blocks, under vmap if stacked, and of the plain ones."""
    found = []
    for fast in (True, False):
        torch.manual_seed(3)
        learner = mm.make_learner(
            spec, model, steps=3, lr=0.2, vectorize=fast and stacked, **options
        )
        set_fast(learner, fast)
        grads = meta_gradient(learner, tasks)
        loss = learner.meta_loss(tasks, seeds=[0, 1])
        found.append(torch.cat([loss.detach().view(1), *(g.flatten() for g in grads.values())]))
    return found


def assert_close(fast: Tensor, plain: Tensor) -> None:
    assert float((fast - plain).norm() / plain.norm()) < 1e-10
    assert torch.isfinite(plain).all()


def derivatives(block: ConvBlock, x: Tensor) -> list[Tensor]:
    """The value, and the first and second derivatives along random vectors."""
    wanted = [*block.parameters(), *([x] if x.requires_grad else [])]
    random = torch.Generator().manual_seed(0)
    value = block(x)
    cotangent = torch.randn(value.shape, generator=random, dtype=torch.float64)
    first = torch.autograd.grad((value * cotangent).sum(), wanted, create_graph=True)
    vectors = [torch.randn(d.shape, generator=random, dtype=torch.float64) for d in first]
    product = sum((d * v).sum() for d, v in zip(first, vectors, strict=True))
    second = torch.autograd.grad(product, wanted, materialize_grads=True)
    return [t.detach() for t in (value, *first, *second)]


@pytest.mark.parametrize("differentiated", [False, True], ids=["images", "features"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (6, 7)])
def test_the_fast_block_equals_the_plain_one(channels: int, size: int, differentiated: bool):
    block = ConvBlock(channels, 6).double()
    torch.manual_seed(0)
    for p in block.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(5, channels, size, size, dtype=torch.float64, requires_grad=differentiated)
    block.fast = True
    fast = derivatives(block, x)
    block.fast = False
    for found, expected in zip(fast, derivatives(block, x), strict=True):
        scale = 1 + float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * scale)


def test_the_switch_is_an_argument_of_the_model():
    assert all(block.fast for block in Conv4().blocks)
    assert not any(block.fast for block in Conv4(fast=False).blocks)


together = pytest.mark.parametrize("stacked", [False, True], ids=["in turn", "stacked"])


@together
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("norm", ["transductive", "inductive"])
@pytest.mark.parametrize(("channels", "size"), [(1, 16), (1, 17), (3, 21), (5, 19)])
def test_meta_gradients_equal_the_plain_models(
    channels: int, size: int, norm: str, first_order: bool, stacked: bool
):
    model, tasks = model_of(channels, size), tasks_of(channels, size)
    assert_close(*both(model, tasks, norm=norm, first_order=first_order, stacked=stacked))


def test_stacked_tasks_run_through_the_fast_block(monkeypatch: pytest.MonkeyPatch):
    calls = []
    run = conv4.fast_block
    monkeypatch.setattr(conv4, "fast_block", lambda *given: calls.append(1) or run(*given))
    learner = mm.make_learner("maml", model_of(1, 16), steps=2, vectorize=True)
    learner.meta_loss(tasks_of(1, 16))
    # Four blocks for each step and for the queries, after the trial of what can be differentiated.
    assert len(calls) >= 4 * 3


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_other_transforms_get_the_plain_formula(transform: str):
    model, x = model_of(1, 16), tasks_of(1, 16).support.x[0]
    theta = {name: p.detach() for name, p in model.named_parameters()}

    def value(theta: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, theta, (x,)).square().sum()

    if transform == "grad":
        found = torch.func.grad(value)(theta)
    else:
        ones = {name: torch.ones_like(p) for name, p in theta.items()}
        found = {"": torch.func.jvp(value, (theta,), (ones,))[1]}
    set_fast(model, False)
    wanted = torch.func.grad(value)(theta)
    wanted = wanted if transform == "grad" else {"": sum(w.sum() for w in wanted.values())}
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("norm", ["transductive", "inductive"])
@pytest.mark.parametrize("images", [1, 2, 4])
def test_the_first_layer_in_pieces(images: int, norm: str, monkeypatch: pytest.MonkeyPatch):
    # Six images, the last piece of which may be a smaller one.
    monkeypatch.setattr(first_block, "AT_ONCE", images * 6 * 17 * 17)
    assert len(list(first_block.chunks(torch.zeros(6, 3, 17, 17), 6))) == -(-6 // images)
    assert_close(*both(model_of(3, 17), tasks_of(3, 17), norm=norm))


@pytest.mark.parametrize("faint", [False, True])
def test_the_first_layer_keeps_the_digits_of_float32(faint: bool):
    torch.manual_seed(0)
    x, weight = torch.rand(25, 3, 84, 84), 0.1 * torch.randn(16, 3, 3, 3)
    x = 0.9 + 0.02 * x if faint else x

    def gradient(x: Tensor, weight: Tensor) -> Tensor:
        weight = weight.clone().requires_grad_()
        pooled, mean, var = convolved_and_pooled(x, weight)
        mean, std = (t.view(1, -1, 1, 1) for t in (mean, (var + 1e-5).sqrt()))
        return torch.autograd.grad(((pooled - mean) / std).pow(3).sum(), weight)[0]

    exact = gradient(x.double(), weight.double())
    assert float((gradient(x, weight) - exact).norm() / exact.norm()) < 1e-4


@together
@pytest.mark.parametrize("signs", ["mixed", "positive", "negative"])
def test_scales_of_either_sign_and_ties_in_the_pooling(signs: str, stacked: bool):
    assert_close(*both(model_of(1, 18, signs), tasks_of(1, 18, ties=True), stacked=stacked))


@together
@pytest.mark.parametrize("spec", list(mm.METHODS))
def test_every_method_gets_the_plain_models_gradient(spec: str, stacked: bool):
    if stacked and not mm.make_learner(spec, model_of(1, 16)).settings.adjoint.vectorizes:
        pytest.skip(f"the adjoint of {spec} does not vectorise")
    fast, plain = both(model_of(1, 16), tasks_of(1, 16), spec, stacked=stacked)
    # ECML's eigenvalues, and the conditions of a support vector machine, magnify rounding.
    close = {"ecml": 1e-8, "metaoptnet": 1e-6}.get(spec, 1e-10)
    assert float((fast - plain).norm() / plain.norm()) < close


def test_a_scale_of_zero_gives_the_same_value():
    model, tasks = model_of(1, 16), tasks_of(1, 16)
    with torch.no_grad():
        for block in model.blocks:
            block.norm.weight[::2] = 0
    values = []
    for fast in (True, False):
        set_fast(model, fast)
        values.append(model(tasks.query.x[0]))
    torch.testing.assert_close(*values, rtol=0, atol=1e-12)


def test_the_gradient_is_the_slope_of_the_value():
    torch.manual_seed(0)
    block, x = ConvBlock(2, 2).double(), torch.rand(2, 2, 5, 5, dtype=torch.float64)
    names = ["conv.weight", "norm.weight", "norm.bias"]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(block, dict(zip(names, values, strict=True)), (x,))

    inputs = [x, *(block.get_parameter(name).detach().clone() for name in names)]
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def test_a_third_derivative_is_refast_rather_than_wrong():
    block, x = model_of(1, 16).blocks[0], torch.rand(4, 1, 8, 8, dtype=torch.float64)
    weight = block.conv.weight

    def third(fast: bool) -> Tensor:
        block.fast = fast
        value = block(x).pow(3).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(value, weight, create_graph=True)
            value = grad.pow(2).sum()
        return value

    assert torch.isfinite(third(False))
    with pytest.raises(RuntimeError, match="fast=False"):
        third(True)


class Listener:
    def __init__(self) -> None:
        self.heard = 0

    def __call__(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.heard += 1


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_part_that_someone_listens_to_is_called(part: str):
    block, listener = model_of(1, 16).blocks[0], Listener()
    block.get_submodule(part).register_forward_hook(listener)
    block(torch.rand(4, 1, 8, 8, dtype=torch.float64))
    assert listener.heard == 1


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_a_part_whose_gradients_someone_listens_to_is_called(part: str):
    block, listener = model_of(1, 16).blocks[0], Listener()
    block.get_submodule(part).register_full_backward_hook(listener)
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    block(x).sum().backward()
    assert listener.heard == 1


def test_it_can_be_exported():
    model, x = model_of(1, 16), torch.rand(4, 1, 16, 16, dtype=torch.float64)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))


def test_a_replaced_normalisation_is_used():
    block, x = model_of(1, 16).blocks[0], torch.rand(4, 1, 8, 8, dtype=torch.float64)
    block.norm = nn.Identity()
    expected = nn.functional.max_pool2d(block.conv(x).relu(), 2)
    torch.testing.assert_close(block(x), expected)


def test_non_finite_images_stay_visible():
    model = model_of(1, 16)
    x = torch.rand(4, 1, 16, 16, dtype=torch.float64)
    x[0, 0, 3, 3] = float("nan")
    assert model(x).isnan().any()


def test_a_large_mean_costs_no_digits_in_float32():
    """A variance from one pass, E[y^2] - E[y]^2, would be all rounding here."""
    block, x = model_of(1, 16, "positive").blocks[0], torch.rand(4, 1, 8, 8, dtype=torch.float64)
    shifted = x + 1000
    with torch.no_grad():
        # A filter that passes the mean on.
        block.conv.weight.fill_(0)[:, 0, 1, 1] = 1
        exact, found = block(shifted), block.float()(shifted.float())
    assert float((found - exact).abs().max()) < 0.05 * float(exact.abs().max())


@pytest.mark.parametrize(("images", "size"), [(75, 28), (25, 84), (3, 17), (1300, 2)])
def test_statistics_of_a_flat_ground_keep_their_digits_in_float32(images: int, size: int):
    """Equal numbers, added one by one, are rounded in the same direction every time."""
    random = torch.Generator().manual_seed(0)
    y = torch.rand(images, 4, size, size, generator=random)
    y = torch.where(y > 0.9, y, 0.1).contiguous(memory_format=torch.channels_last)
    mean, var = channel_statistics(y)
    exact = y.double()
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=2e-5, atol=0)
    torch.testing.assert_close(var.double(), exact.var((0, 2, 3), correction=0), rtol=2e-5, atol=0)


@pytest.mark.parametrize("channels", [2, 5])  # images, and what layers make of them
def test_many_places_cost_no_digits_in_float32(channels: int):
    random = torch.Generator().manual_seed(0)
    x = torch.rand(24, channels, 84, 84, generator=random)
    weight = torch.rand(3, channels, 3, 3, generator=random)
    found = convolved_and_pooled(x, weight)
    exact = convolved_and_pooled(x.double(), weight.double())
    for a, b in zip(found, exact, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5
