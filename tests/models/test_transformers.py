"""The image and the text transformer: by formula, by differences, and in runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import metamirror as mm
from metamirror.data.task_stream import TaskStream
from metamirror.models.transformer import Attention
from metamirror.testing.methods import check_learner_gradient, check_vmap
from metamirror.testing.networks import WAYS, tasks_of
from metamirror.training.config import RunConfig
from metamirror.training.factory import build_model
from tests.networks import image_tasks
from tests.refusals import assert_refused

IMAGES = image_tasks()
TEXTS = mm.Task(*(mm.Batch((11 * b.x.sigmoid()).long(), b.y) for b in tasks_of((7,))))


def vit(**options) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "width": 8, "depth": 2, "heads": 2}
    return grown(mm.models.ViT(ways=WAYS, channels=1, **sizes | options))


def text(**options) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocabulary": 11, "length": 7, "width": 8, "depth": 2, "heads": 2}
    return grown(mm.models.TextTransformer(ways=WAYS, **sizes | options))


def grown(model: nn.Module) -> nn.Module:
    """So small a network would hardly do anything with the usual weights."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(10 if p.dim() > 1 else 1)
    return model.double()


MODELS = {
    "vit": (vit, IMAGES),
    "vit with the mean": (lambda: vit(pool="mean"), IMAGES),
    "text": (text, TEXTS),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", ["maml", "metacurvature", "blockiaf", "gradnet", "warpgrad"])
def test_a_transformer_has_the_right_meta_gradient_in_loop_and_vmap(kind: str, method: str):
    build, tasks = MODELS[kind]
    learner = mm.make_learner(method, build(), steps=2, lr=0.05)
    check_learner_gradient(learner, tasks)
    check_vmap(method, build(), tasks)


def test_attention_is_the_formula():
    torch.manual_seed(0)
    layer, x = Attention(6, 2).double(), torch.randn(2, 4, 6, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True])
    expected = torch.zeros_like(x)
    w, b = layer.qkv.weight, layer.qkv.bias
    for n in range(2):
        q, k, v = (x[n] @ w[i : i + 6].T + b[i : i + 6] for i in (0, 6, 12))
        for h in range(2):
            own = slice(3 * h, 3 * h + 3)
            scores = q[:, own] @ k[:, own].T / math.sqrt(3)
            weights = scores.exp() * mask
            expected[n, :, own] = weights / weights.sum(1, keepdim=True) @ v[:, own]
    expected = expected @ layer.out.weight.T + layer.out.bias
    torch.testing.assert_close(layer(x, mask[None]), expected, rtol=0, atol=1e-12)


def test_a_patch_is_what_it_is_called():
    """One patch changes: before the blocks its token alone does."""
    model, x = vit(patch=4), torch.rand(1, 1, 8, 8, dtype=torch.float64)
    seen = []
    model.embedding.register_forward_hook(lambda _, inputs, output: seen.append(output))
    model(x)
    x[0, 0, 0:4, 4:8] += 1
    model(x)
    assert [bool((a - b).abs().max() > 0) for a, b in zip(seen[0][0], seen[1][0], strict=True)] == [
        False,
        True,
        False,
        False,
    ]


def test_tiny_has_five_million_parameters():
    with torch.device("meta"):
        count = sum(p.numel() for p in mm.models.ViT().parameters())
    assert 5.0e6 < count < 6.0e6
    assert mm.models.ViT(image_size=28, depth=1).config["patch"] == 7


def test_padding_changes_nothing_and_a_text_may_be_empty():
    model = text()
    tokens = torch.tensor([[3, 4, 5], [6, 7, 0]])
    filled = nn.functional.pad(tokens, (0, 4))
    torch.testing.assert_close(model(filled), model(tokens), rtol=0, atol=1e-12)
    torch.testing.assert_close(model(tokens)[1:], model(tokens[1:, :2]), rtol=0, atol=1e-12)
    assert not torch.allclose(model(tokens)[0], model(tokens.flip(1))[0])
    empty = model(torch.zeros(1, 3, dtype=torch.long))
    empty.sum().backward()
    assert empty.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


WRONG_TEXTS = {
    "floats": (torch.zeros(2, 3), "float32.*whole numbers"),
    "too long": (torch.ones(2, 8, dtype=torch.long), r"\(2, 8\).*at most 7"),
    "too large a token": (torch.full((2, 3), 11), "token is 11.*0 to 10.*vocabulary"),
    "a negative token": (torch.full((2, 3), -1), "token is -1.*0 to 10"),
}


@pytest.mark.parametrize("case", WRONG_TEXTS)
def test_a_text_that_does_not_fit_is_named(case: str):
    tokens, words = WRONG_TEXTS[case]
    assert_refused(lambda: text()(tokens), words)


class Texts(TaskStream):
    """Rows of a thousand tokens."""

    example_shape, outputs = (9,), 4

    def task(self, step: int, index: int) -> mm.Task:
        batch = mm.Batch(torch.arange(36).view(4, 9), torch.arange(4))
        return mm.Task(batch, batch)


def test_a_run_names_its_model_with_options():
    stream = Texts("train", 1, 1, 0, 1)
    model = build_model(RunConfig("maml", model="text:vocabulary=1000:depth=1", width=16), stream)
    assert model.config == {
        "name": "text",
        "ways": 4,
        "vocabulary": 1000,
        "length": 9,
        "width": 16,
        "depth": 1,
        "heads": 4,
    }
    images = mm.tasks("glyphs", ways=3)
    model = build_model(RunConfig("maml", model="vit:depth=2:width=24:pool=mean"), images)
    assert (model.config["ways"], model.config["depth"], model.config["pool"]) == (3, 2, "mean")
    assert_refused(lambda: RunConfig("maml", model="vgg").check(), "'vgg'.*conv4.*vit.*text")
    assert_refused(lambda: RunConfig("maml", model="vit:dept=2").check(), "did you mean 'depth'")
    assert_refused(lambda: RunConfig("maml", model="vit:depth=x").check(), "vit:depth is 'x'")
    assert_refused(lambda: build_model(RunConfig("maml", model="text"), images), "rows of tokens")


def test_a_file_that_claims_more_blocks_than_it_has_tensors_is_refused(tmp_path):
    mm.save(mm.make_learner("maml", vit()), tmp_path)
    file = tmp_path / "learner.json"
    file.write_text(file.read_text().replace('"depth": 2', '"depth": 2000000000'))
    assert_refused(lambda: mm.load(tmp_path), "more layers than")
