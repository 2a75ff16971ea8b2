"""What adapts, by one word: the right parameters move, geometries are made for them alone."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import metamirror as mm
from metamirror.experiments.comparison.spec import read_methods
from metamirror.methods import find_method
from metamirror.methods.adapting import choose, long_axes
from metamirror.testing.methods import (
    check_learner_gradient,
    learned,
    meta_gradient,
    relative_difference,
)
from metamirror.testing.networks import WAYS
from metamirror.training.config import load_config
from metamirror.training.factory import build_learner, extra_parameters
from metamirror.training.train import train
from tests.comparing import assert_equal_learners, one
from tests.networks import image_tasks, shaken
from tests.refusals import assert_refused
from tests.runs import small
from tests.table import ROWS, Row


def vit(**sizes: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "width": 8, "depth": 2, "heads": 2, **sizes}
    model = mm.models.ViT(ways=WAYS, channels=1, **sizes).double()
    with torch.no_grad():
        # So small a network would hardly do anything with the usual weights.
        for p in model.parameters():
            p.mul_(10 if p.dim() > 1 else 1)
    return model


class Encoder(nn.Module):
    """torch's own attention, which calls none of its linear layers."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Linear(16, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, WAYS)

    def forward(self, x):
        x = self.cut(x.flatten(1).unflatten(1, (4, 16)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return Encoder().double()


BLOCK = [
    *("norm.weight", "norm.bias", "attention.qkv.weight", "attention.qkv.bias"),
    *("attention.out.weight", "attention.out.bias", "second_norm.weight", "second_norm.bias"),
    *("mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"),
]
HEAD = ["head.weight", "head.bias"]


def blocks(*which: int) -> list[str]:
    return [f"blocks.{i}.{name}" for i in which for name in BLOCK]


ALL = ["token", "positions", "embedding.weight", "embedding.bias", *blocks(0, 1)]
ALL += ["norm.weight", "norm.bias", *HEAD]
WORDS = {
    "all": ALL,
    "head": HEAD,
    "body": [name for name in ALL if name not in HEAD],
    "bias": [name for name in ALL if name.endswith(".bias")],
    "norm": [n for n in ALL if n.split(".")[-2:-1] in (["norm"], ["second_norm"])],
    "last:1": [*blocks(1), "norm.weight", "norm.bias", *HEAD],
    "last:2": [*blocks(0, 1), "norm.weight", "norm.bias", *HEAD],
    "blocks.1.attention": [n for n in blocks(1) if "attention" in n],
    "positions": ["positions"],
    "norm+head": [
        n for n in ALL if n.split(".")[-2:-1] in (["norm"], ["second_norm"]) or n in HEAD
    ],
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_stands_for_these_parameters_and_no_other_one_moves(word: str):
    learner = mm.make_learner("maml", vit(), steps=2, lr=0.5, adapts=word)
    assert sorted(learner.adapts) == sorted(WORDS[word])
    adapted = learner.adapt(one(image_tasks().support))
    assert set(adapted.params) == set(WORDS[word])
    assert all(not torch.equal(adapted.params[n], p) for n, p in learner.theta().items())
    # The rest is learned by the outer level.
    assert all(p.requires_grad for p in learner.parameters())
    grads = meta_gradient(learner, image_tasks())
    assert all(g.abs().max() > 0 for g in grads.values())


LAYERS = [
    "embedding",
    *(
        f"blocks.{i}.{n}"
        for i in (0, 1)
        for n in ("attention.qkv", "attention.out", "mlp.0", "mlp.2")
    ),
    "head",
]


def test_lora_adapts_two_factors_beside_each_linear_layer_and_freezes_the_rest():
    model = vit()
    learner = mm.make_learner("maml", model, steps=2, lr=0.5, adapts="lora:rank=2")
    assert set(learner.adapts) == {f"{layer}.lora.{f}" for layer in LAYERS for f in "AB"}
    assert set(learned(learner)) == {f"model.{name}" for name in learner.adapts}
    before = copy.deepcopy(learner.model.state_dict())
    adapted = learner.adapt(one(image_tasks().support))
    assert all(torch.equal(before[n], p) for n, p in learner.model.state_dict().items())
    assert all(not torch.equal(adapted.params[n], p) for n, p in learner.theta().items())
    both = mm.make_learner("maml", model, adapts="lora:rank=2,base=learned")
    assert all(p.requires_grad for p in both.parameters())


@pytest.mark.parametrize("build", [vit, encoder])
def test_lora_starts_as_the_model_that_it_was_given(build):
    model, x = build(), one(image_tasks().support).x
    learner = mm.make_learner("maml", model, adapts="lora:rank=2", steps=0)
    assert torch.equal(learner.model(x), model(x))
    # Without a graph torch may choose another kernel.
    adapted = learner.adapt(one(image_tasks().support))
    torch.testing.assert_close(adapted(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [vit, encoder])
def test_lora_runs_with_w_plus_alpha_over_r_times_b_a(build):
    """Written by hand: the plain model, called with the summed weights."""
    model, x = build(), one(image_tasks().support).x
    learner = shaken(mm.make_learner("maml", model, adapts="lora:rank=2,alpha=6"), size=0.3)
    own = dict(learner.model.named_parameters())
    weights = {}
    for name in dict(model.named_parameters()):
        layer, _, last = name.rpartition(".")
        child = "lora" if last == "weight" else f"lora_{last.removesuffix('_weight')}"
        a, b = own.get(f"{layer}.{child}.A"), own.get(f"{layer}.{child}.B")
        base = own[name]
        weights[name] = base if a is None else base + 3 * b @ a
    updated = sum(weights[n] is not own[n] for n in weights)
    assert updated == len(learner.adapts) / 2
    torch.testing.assert_close(
        learner.model(x), functional_call(model, weights, (x,)), rtol=0, atol=1e-12
    )


def test_both_factors_learn():
    learner = mm.make_learner("maml", vit(), steps=2, lr=0.5, adapts="lora:rank=2")
    grads = meta_gradient(learner, image_tasks())
    assert all(g.abs().max() > 0 for g in grads.values())


ADAPTS = ["norm", "last:1", "bias+head", "lora:rank=2"]
WALKED = [*mm.METHODS, "blockiaf:mixing=kronecker", "metakfo:hidden=2"]
# Each method with one word in turn; with the others among the slow tests.
PAIRS = [
    pytest.param(method, adapts, marks=() if i % len(ADAPTS) == j else pytest.mark.slow)
    for i, method in enumerate(WALKED)
    for j, adapts in enumerate(ADAPTS)
]


@pytest.mark.parametrize(("method", "adapts"), PAIRS)
def test_every_method_is_right_for_a_part_of_the_model(method: str, adapts: str):
    row = next((row for row in ROWS if row.spec == method), Row(method))
    no_matrix_or_head = method in ("mtnet", "anil", "ecml", "boil", "gap") and adapts == "norm"
    no_head = "start" in find_method(method)[0].defaults and adapts in ("norm", "lora:rank=2")
    if no_matrix_or_head or no_head:
        assert_refused(
            lambda: mm.make_learner(method, vit(), adapts=adapts), "adapt|no such weights"
        )
        return
    options = {"steps": 2, "lr": 0.1, "adapts": adapts}
    if row.no_finite_differences:
        # Its own derivative is no gradient of its value: the exact one is looked at.
        options["adjoint"] = "unrolled"
    learner = shaken(mm.make_learner(method, vit(), **options), size=0.05)
    tasks, skipped = image_tasks(), "geometry.logits" if method == "mtnet" else None
    if not row.one_order:
        check_learner_gradient(learner, tasks, skipped)
    stacked = mm.make_learner(method, vit(), **options, vectorize=True)
    stacked.load_state_dict(learner.state_dict())
    assert relative_difference(meta_gradient(stacked, tasks), meta_gradient(learner, tasks)) < 1e-9


@pytest.mark.parametrize("method", ["blockiaf", "gradnet", "metacurvature", "metakfo", "metasgd"])
@pytest.mark.parametrize("adapts", ["bias", "norm", "lora:rank=4"])
def test_the_parameters_of_a_geometry_scale_with_what_adapts(method: str, adapts: str):
    with torch.device("meta"):
        model = mm.models.ViT()
        learner = mm.make_learner(method, model, adapts=adapts)
    assert 5e6 < sum(p.numel() for p in model.parameters()) < 6e6
    adapted = sum(p.numel() for p in learner.theta().values())
    most = 3 if adapts == "lora:rank=4" else 8
    own = sum(p.numel() for p in learner.geometry.parameters())
    assert 0 < own <= most * adapted
    assert extra_parameters(method, model, adapts=adapts) == own


def test_the_layers_of_a_flow_are_those_of_the_whole_model():
    flow = mm.make_learner("blockiaf", vit(), adapts="bias").geometry.g
    assert flow.partition.blocks[0] == ["embedding.bias", "blocks.0.norm.bias"]
    assert flow.partition.blocks[-1] == ["head.bias"]


@pytest.mark.parametrize("adapts", ["last:1", "lora:rank=2,alpha=3", "lora:rank=2+head"])
@pytest.mark.parametrize("build", [vit, encoder])
def test_what_adapts_is_saved_loaded_pickled_and_copied(build, adapts: str, tmp_path):
    learner = mm.make_learner("blockiaf", build(), steps=2, lr=0.1, adapts=adapts)
    shaken(learner, size=0.05)
    mm.save(learner, tmp_path)
    loaded = mm.load(tmp_path, model=build())
    for other in (loaded, pickle.loads(pickle.dumps(learner)), copy.deepcopy(learner)):
        assert other.adapts == learner.adapts
        assert_equal_learners(other, learner, image_tasks())


def test_a_word_may_follow_the_key_of_a_method():
    for spec, words in {
        "maml:adapts=last:2": {"adapts": "last:2"},
        "blockiaf:adapts=lora:rank=4": {"adapts": "lora:rank=4"},
        "blockiaf:scale=wide:adapts=lora:rank=4:alpha=8:flows=2": {
            "scale": "wide",
            "flows": "2",
            "adapts": "lora:rank=4,alpha=8",
        },
        "maml:adapts=lora:rank=2+head": {"adapts": "lora:rank=2+head"},
        "maml:adapts=bias+last:1:adjoint=first": {"adapts": "bias+last:1", "adjoint": "first"},
    }.items():
        assert find_method(spec)[1] == words
    learner = mm.make_learner("blockiaf:adapts=lora:rank=2", vit())
    assert learner.adapts == mm.make_learner("blockiaf", vit(), adapts="lora:rank=2").adapts


MISTAKES = {
    "no such word": ("heads", "'heads'.*did you mean 'head'"),
    "too many blocks": ("last:3", "last:3.*2 blocks"),
    "no number": ("last", "2 blocks"),
    "no block": ("last:0", "2 blocks"),
    "no rank": ("lora:rank=0", "rank is 0.*at least 1"),
    "no such option": ("lora:ranks=4", "'ranks'.*did you mean 'rank'"),
    "a base that is none": ("lora:base=warm", "'warm'.*'frozen'"),
    "something behind a word": ("head:2", "head:2"),
    "nothing": ("", "adapts is ''"),
    "twice": ("lora+lora", "once"),
    "numbers": ([1, 2], r"adapts is \[1, 2\]"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named(case: str):
    adapts, words = MISTAKES[case]
    assert_refused(lambda: mm.make_learner("maml", vit(), adapts=adapts), words)


def test_a_model_without_a_linear_layer_has_no_low_rank_update():
    model = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    assert_refused(lambda: mm.make_learner("maml", model, adapts="lora"), "no nn.Linear")


def test_long_axes_are_cut_without_a_number_lost():
    model = nn.Sequential(nn.Linear(768, 192), nn.Linear(192, 97))
    names = choose(model, "lora:rank=4")
    shapes = {name: p.shape for name, p in model.named_parameters()}
    modes = long_axes(model, names)
    assert modes["0.lora.A"] == (4, 12, 8, 8)
    assert modes["0.lora.B"] == (16, 12, 4)
    assert "1.lora.B" not in modes  # 97 is a prime
    assert all(torch.Size(m).numel() == shapes[name].numel() for name, m in modes.items())


# The model itself


def test_a_model_that_is_not_copied_is_the_one_that_learns():
    model = vit()
    learner = mm.make_learner("maml", model, steps=1, copy=False)
    assert learner.model is model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    loss = learner.meta_loss(image_tasks())
    loss.backward()
    optimizer.step()
    assert learner.meta_loss(image_tasks()) < loss
    assert all(not torch.equal(before[n], p) for n, p in model.named_parameters())
    assert_refused(lambda: mm.make_learner("maml", model, copy="no"), "copy is 'no'.*True or False")


def test_a_near_miss_names_the_option_that_was_meant():
    for wrong, right in {
        "inner_lr": "lr",
        "num_steps": "steps",
        "alpha": "lr",
        "loss_fn": "loss",
        "adapt": "adapts",
        "first_oder": "first_order",
        "vectorise": "vectorize",
    }.items():
        for method in ("maml", "blockiaf"):
            build = lambda w=wrong, m=method: mm.make_learner(m, vit(), **{w: 1})  # noqa: E731
            assert_refused(build, f"'{wrong}'.*did you mean '{right}'")
    assert_refused(lambda: mm.Learner(vit(), inner_lr=1), "did you mean 'lr'")
    learner = mm.make_learner("maml", vit())
    assert_refused(lambda: learner.configure(inner_lr=1), "did you mean 'lr'")
    assert_refused(lambda: mm.Learner(vit(), adapts="head"), "list of names.*make_learner")


def test_low_rank_updates_adapt_as_written_by_hand():
    """Two steps of gradient descent on the factors of one layer, by formula."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, WAYS)).double()
    learner = mm.make_learner("maml", model, steps=2, lr=0.5, adapts="lora:rank=2,alpha=4")
    x, y = one(image_tasks().support)
    a, b = (learner.theta()[f"1.lora.{f}"].detach().clone() for f in "AB")
    for _ in range(2):
        logits = x.flatten(1) @ (model[1].weight + 2 * b @ a).detach().T + model[1].bias.detach()
        slope = (logits.softmax(1) - F.one_hot(y, WAYS)) / len(y)
        by_weight = slope.T @ x.flatten(1)
        a, b = a - 0.5 * 2 * b.T @ by_weight, b - 0.5 * 2 * by_weight @ a.T
    params = learner.adapt(mm.Batch(x, y)).params
    torch.testing.assert_close(params["1.lora.A"], a, rtol=0, atol=1e-12)
    torch.testing.assert_close(params["1.lora.B"], b, rtol=0, atol=1e-12)


# Runs


def test_a_run_adapts_what_its_configuration_says(tmp_path):
    train(small(method="metasgd", adapts="head"), tmp_path / "run")
    learner = mm.load(tmp_path / "run")
    assert learner.adapts == HEAD
    assert [p.shape for p in learner.geometry.rates] == [(1, 8), (1,)]
    assert load_config(tmp_path / "run").adapts == "head"


def test_the_word_of_a_row_goes_before_that_of_all_rows():
    assert read_methods("maml:adapts=last:1,maml")
    stream = mm.tasks("sinusoid")
    config = small(method="maml:adapts=bias", adapts="head")
    assert all(name.endswith("bias") for name in build_learner(config, stream).adapts)
    assert build_learner(small(adapts="head"), stream).adapts == HEAD
