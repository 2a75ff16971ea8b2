"""The networks, their normalisation, and the pictures they take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.core.normalisation import torch_norms
from metamirror.models.images import LUMINANCE
from tests.networks import image_tasks

SIZE = 16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def small_conv4(channels: int, size: int = SIZE) -> nn.Module:
    torch.manual_seed(0)
    return mm.models.Conv4(ways=3, channels=channels, image_size=size, width=4).double()


def pictures(channels: int, size: int = SIZE) -> torch.Tensor:
    """Whole bytes, so that floats and bytes hold the same picture."""
    random = torch.Generator().manual_seed(0)
    return torch.randint(256, (5, channels, size, size), generator=random, dtype=torch.uint8)


def as_float(x: torch.Tensor) -> torch.Tensor:
    return x.double() / 255


def assert_same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


# Batch normalisation

NORMS = {
    "features": (nn.BatchNorm1d, (6, 4)),
    "sequences": (nn.BatchNorm1d, (6, 4, 5)),
    "pictures": (nn.BatchNorm2d, (6, 4, 5, 3)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_batch_norm_equals_that_of_torch_in_value_and_gradient(kind: str):
    make, shape = NORMS[kind]
    weight, bias, x = random(4) + 2, random(4), 3 * random(*shape) + 1
    results = []
    for norm in (mm.models.BatchNorm(4).double(), make(4).double().train()):
        norm.load_state_dict({"weight": weight, "bias": bias}, strict=False)
        inputs = (x.clone().requires_grad_(), norm.weight, norm.bias)
        output = norm(inputs[0])
        grads = torch.autograd.grad(output.pow(3).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in grads), inputs)
        results.append((output, *grads, *second))
    for ours, reference in zip(*results, strict=True):
        scale = max(1.0, float(reference.detach().abs().max()))
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12 * scale)


def test_batch_norm_is_the_same_in_evaluation():
    norm, x = mm.models.BatchNorm(4).double(), random(6, 4)
    assert torch.equal(norm.train()(x), norm.eval()(x))


@pytest.mark.parametrize("shape", [(4,), (6, 3), (6, 5, 4)])
def test_batch_norm_names_a_wrong_shape(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=f"not \\({', '.join(map(str, shape))}"):
        mm.models.BatchNorm(4)(torch.zeros(shape))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, eps=1e-3), nn.Tanh())
        self.after = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.after(self.body(x)).square().mean((2, 3)))


def test_converting_batch_norm_keeps_parameters_and_values():
    torch.manual_seed(0)
    model = Residual().double()
    x = random(5, 1, 8, 8)
    before, parameters = model(x), dict(model.named_parameters())
    assert mm.models.convert_batch_norm(model) is model
    assert torch_norms(model) == []
    assert_same(model(x), before)
    assert all(p is parameters[name] for name, p in model.named_parameters())


def test_converting_batch_norm_keeps_what_is_frozen():
    model = Residual()
    model.after.weight.requires_grad_(False)
    assert not mm.models.convert_batch_norm(model).after.weight.requires_grad


def test_converting_batch_norm_without_scale_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False))
    with pytest.raises(ValueError, match="affine=True"):
        mm.models.convert_batch_norm(model)


# Sizes

COUNTS = {"mini-imagenet": (3, 84, 121_093), "omniglot": (1, 28, 112_261)}


@pytest.mark.parametrize("shape", COUNTS)
def test_conv4_has_the_parameters_of_the_paper(shape: str):
    channels, size, expected = COUNTS[shape]
    model = mm.models.Conv4(ways=5, channels=channels, image_size=size, width=64)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("size", [16, 17, 23, 31, 32, 45])
@pytest.mark.parametrize("name", ["conv4", "resnet12"])
def test_image_sizes_are_free(name: str, size: int):
    model = mm.models.build(name, ways=3, channels=1, image_size=size, width=2)
    assert model(torch.rand(2, 1, size, size)).shape == (2, 3)


# Pictures in any common form

FORMS = {
    "floats": as_float,
    "single precision": lambda x: x.float() / 255,
    "bytes": lambda x: x,
    "floats, channels last": lambda x: as_float(x).movedim(1, 3),
    "bytes, channels last": lambda x: x.movedim(1, 3),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_a_picture_does_not_change_its_logits(form: str, channels: int):
    model, x = small_conv4(channels), pictures(channels)
    tolerance = 1e-5 if form == "single precision" else 1e-12
    expected = model(as_float(x))
    torch.testing.assert_close(model(FORMS[form](x)), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("convert", [as_float, lambda x: x], ids=["floats", "bytes"])
def test_grey_pictures_need_no_channel_axis(convert):
    model, x = small_conv4(1), pictures(1)
    assert_same(model(convert(x).squeeze(1)), model(as_float(x)))


@pytest.mark.parametrize("squeeze", [False, True])
def test_grey_pictures_are_repeated_for_a_colour_model(squeeze: bool):
    model, x = small_conv4(3), as_float(pictures(1))
    assert_same(model(x.squeeze(1) if squeeze else x), model(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("form", FORMS)
def test_colour_pictures_are_weighted_for_a_grey_model(form: str):
    model, x = small_conv4(1), pictures(3)
    red, green, blue = as_float(x).unbind(1)
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    tolerance = 1e-5 if form == "single precision" else 1e-12
    torch.testing.assert_close(model(FORMS[form](x)), model(luminance), rtol=0, atol=tolerance)


def test_a_grey_picture_stored_in_colour_stays_what_it_is():
    assert sum(LUMINANCE) == pytest.approx(1, abs=1e-15)
    model, x = small_conv4(1), as_float(pictures(1))
    assert_same(model(x.repeat(1, 3, 1, 1)), model(x))


def test_a_model_of_two_channels_takes_two():
    model = small_conv4(2)
    assert model(as_float(pictures(2))).shape == (5, 3)
    assert_same(model(as_float(pictures(1))), model(as_float(pictures(1)).repeat(1, 2, 1, 1)))


WRONG_PICTURES = {
    "another size": ((5, 3, 28, 28), r"\(5, 3, 28, 28\).*image_size"),
    "not square": ((5, 3, 16, 28), r"\(5, 3, 16, 28\)"),
    "five axes": ((2, 5, 3, 16, 16), r"\(2, 5, 3, 16, 16\)"),
    "two axes": ((5, 256), r"\(5, 256\)"),
    "four channels": ((5, 4, 16, 16), r"\(5, 4, 16, 16\)"),
}


@pytest.mark.parametrize("name", ["conv4", "resnet12"])
@pytest.mark.parametrize("case", WRONG_PICTURES)
def test_a_wrong_shape_is_named(name: str, case: str):
    shape, words = WRONG_PICTURES[case]
    model = mm.models.build(name, ways=3, channels=3, image_size=SIZE)
    with pytest.raises(ValueError, match=words):
        model(torch.zeros(shape))


def test_pictures_of_other_integers_are_refused():
    with pytest.raises(ValueError, match=r"torch\.int64.*uint8"):
        small_conv4(1)(torch.zeros(2, 1, SIZE, SIZE, dtype=torch.int64))


def test_colour_pictures_are_refused_by_a_model_of_two_channels():
    with pytest.raises(ValueError, match="3 channels and the model takes 2"):
        small_conv4(2)(as_float(pictures(3)))


def test_mlp_flattens_and_names_a_wrong_number_of_inputs():
    model = mm.models.MLP(6, 3)
    assert torch.equal(model(torch.ones(4, 2, 3)), model(torch.ones(4, 6)))
    with pytest.raises(ValueError, match=r"5 values.*6 inputs"):
        model(torch.ones(4, 5))


# Meta-training

NETWORKS = {
    "conv4": {"ways": 3, "channels": 1, "image_size": SIZE, "width": 4},
    "resnet12": {"ways": 3, "channels": 1, "image_size": SIZE, "width": (3, 4, 4, 5)},
    "vit": {"ways": 3, "channels": 1, "image_size": SIZE, "width": 8, "depth": 2, "heads": 2},
    "mlp": {"inputs": SIZE * SIZE, "outputs": 3, "hidden": (8, 8)},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_model_meta_trains(name: str):
    torch.manual_seed(0)
    model = mm.models.build(name, **NETWORKS[name]).double()
    learner = mm.make_learner("maml", model, steps=2, lr=0.1)
    tasks = image_tasks(size=SIZE)
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = learner.meta_loss(tasks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for parameter, p in learner.named_parameters():
        # Batch normalisation subtracts the bias in front of it.
        assert p.grad.abs().max() > 1e-12 or parameter.endswith("conv.bias"), parameter


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_is_built_again_from_its_config(name: str):
    model = mm.models.build(name, **NETWORKS[name])
    again = mm.models.build(**model.config)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 1, SIZE, SIZE)
    assert torch.equal(again(x), model(x))


WRONG_MODELS = {
    "no such model": (("vgg", {}), "'vgg'.*conv4.*resnet12.*mlp"),
    "no such option": (("mlp", {"depth": 3}), "mlp does not take.*depth"),
    "too small for conv4": (("conv4", {"image_size": 15}), "image_size is 15"),
    "too small for resnet12": (("resnet12", {"image_size": 8}), "image_size is 8"),
    "no ways": (("conv4", {"ways": 0}), "ways is 0"),
    "no filters": (("conv4", {"width": 0}), "width is 0"),
    "three widths": (("resnet12", {"width": (4, 4, 4)}), "3 entries.*four"),
    "an empty layer": (("mlp", {"hidden": (4, 0)}), "hidden is 0"),
    "no such size": (("vit", {"size": "huge"}), "'huge'.*tiny"),
    "heads that do not fit": (("vit", {"width": 8, "heads": 3}), "width is 8.*multiple of.*3"),
    "a patch that does not fit": (("vit", {"image_size": 28, "patch": 5}), "patch is 5.*28"),
    "no such pooling": (("vit", {"pool": "max"}), "'max'.*token"),
    "no block": (("text", {"depth": 0}), "depth is 0"),
    "heads for text": (("text", {"width": 8, "heads": 3}), "width is 8.*multiple of.*3"),
    "no such activation": (("mlp", {"activation": "sine"}), "'sine'.*relu.*tanh"),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_a_model_that_cannot_be_built_is_named(case: str):
    (name, options), words = WRONG_MODELS[case]
    with pytest.raises(ValueError, match=words):
        mm.models.build(name, **options)


def test_the_head_is_the_last_linear_layer():
    assert mm.models.head_of(mm.models.MLP(2, 3)) == "head"
    assert mm.models.head_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3))) == "2"
    with pytest.raises(ValueError, match="head="):
        mm.models.head_of(nn.Conv2d(1, 2, 3))


def test_a_norm_that_stands_twice_or_alone_is_converted():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.BatchNorm1d(4)
            self.b = self.a

    twice = mm.models.convert_batch_norm(Twice())
    assert type(twice.a) is mm.models.BatchNorm
    assert twice.a is twice.b
    assert type(mm.models.convert_batch_norm(nn.BatchNorm2d(3))) is mm.models.BatchNorm
