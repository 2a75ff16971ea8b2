"""A run that starts from the body of another one: which values, what is refused, resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import metamirror as mm
from metamirror.cli.main import main
from metamirror.models.low_rank import merged_weights
from metamirror.storage import learner_file
from metamirror.training.config import RunConfig, load_config
from metamirror.training.factory import build_learner, build_stream, resolved
from metamirror.training.initial_body import Body, body_of, fill_body
from metamirror.training.train import train
from tests.refusals import assert_command_refused, assert_refused
from tests.runs import results, small, small_of
from tests.training.test_resume import broken_off

METHODS = ["maml", "blockiaf", "gradnet:start=dual", "protonet", "mtnet", "anil", "r2d2", "snail"]


def letters(**changes) -> RunConfig:
    return small(data="glyphs", image_size=16, width=4, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    train(letters(method="protonet", seed=5, iterations=6, outer_lr=0.1), out)
    return out


@pytest.mark.parametrize("method", METHODS)
def test_every_method_begins_with_that_body_and_its_own_head(method, run, tmp_path, monkeypatch):
    """At the first step, which is broken off."""
    config = letters(method=method, init=str(run), validate_every=0)
    broken_off(config, tmp_path / "a", 0, monkeypatch)
    learner = learner_file.load(tmp_path / "a", which="last")
    plain = build_learner(config, build_stream(config, "train"))
    given = dict(mm.load(run).model.named_parameters())
    own = dict(plain.model.named_parameters())
    body = [name for name in given if not name.startswith("head.")]
    assert len(body) == 16
    for name, p in learner.model.named_parameters():
        expected = given if name in body else own
        assert torch.equal(p, expected[name]), name
    assert not torch.equal(own["blocks.0.conv.weight"], given["blocks.0.conv.weight"])


@pytest.mark.parametrize("method", ["metasgd", "blockiaf"])
def test_resuming_is_exact_and_needs_the_first_run_no_longer(method, run, tmp_path, monkeypatch):
    first = tmp_path / "first"
    shutil.copytree(run, first)
    config = letters(method=method, init=str(first), iterations=6)
    train(config, tmp_path / "whole")
    broken_off(config, tmp_path / "broken", 4, monkeypatch)
    shutil.rmtree(first)
    train(config, tmp_path / "broken", resume=True)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    assert load_config(tmp_path / "whole").init == str(first)
    assert_refused(lambda: train(config, tmp_path / "new"), "first holds no learner")


def test_the_best_learner_of_the_first_run_is_taken(run: Path, tmp_path: Path, monkeypatch):
    other = tmp_path / "first"
    shutil.copytree(run, other)
    shutil.rmtree(other / "last")
    broken_off(letters(init=str(other)), tmp_path / "a", 0, monkeypatch)
    found = learner_file.load(tmp_path / "a", which="last").model.blocks[3].conv.weight
    assert torch.equal(found, learner_file.load(run, which="best").model.blocks[3].conv.weight)


# What a body is


def test_a_dual_start_gives_the_image_of_its_vector(tmp_path: Path):
    torch.manual_seed(0)
    learner = mm.make_learner("gradnet", mm.models.MLP(2, 3, hidden=(4, 4)), start="dual")
    with torch.no_grad():
        for p in learner.geometry.parameters():
            p.add_(0.3 * torch.randn_like(p))
    support = mm.Batch(torch.randn(6, 2), torch.tensor([0, 1, 2] * 2))
    adapted = learner.adapt(support, steps=0)
    found = body_of(learner, "here").tensors
    assert found
    for name, value in found.items():
        torch.testing.assert_close(value, adapted.params[name], rtol=1e-5, atol=1e-6)
        assert not torch.allclose(value, learner.model.get_parameter(name)), "it is moved"


@pytest.mark.parametrize("attention", [False, True])
def test_low_rank_updates_are_part_of_the_body(attention: bool):
    torch.manual_seed(0)
    if attention:

        class Attends(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
                self.head = torch.nn.Linear(4, 3)

            def forward(self, x):
                return self.head(self.attention(x, x, x)[0].mean(1))

        plain, x = Attends(), torch.randn(5, 3, 4)
    else:
        plain, x = mm.models.MLP(2, 3, hidden=(4, 4)), torch.randn(5, 2)
    learner = mm.make_learner("maml", plain, adapts="lora:rank=2", steps=1)
    with torch.no_grad():
        for name, p in learner.model.named_parameters():
            if name.endswith((".A", ".B")):
                p.copy_(torch.randn_like(p))
    merged = merged_weights(learner.model)
    assert merged
    expected = learner.model(x)
    named = {n: p for n, p in learner.model.named_parameters() if "lora" not in n} | merged
    plain.load_state_dict(named)
    torch.testing.assert_close(plain(x), expected)
    body = body_of(learner, "here").tensors
    assert not [name for name in body if "lora" in name or name.startswith("head.")]
    assert all(torch.equal(body[n], w) for n, w in merged.items() if not n.startswith("head."))


def test_low_rank_updates_of_a_pretrained_body(run: Path, tmp_path: Path):
    """The usual use: everything but the updates rests."""
    config = letters(init=str(run), adapts="lora:rank=2", iterations=3, validate_every=0)
    trained = train(config, tmp_path / "a")
    assert torch.equal(
        trained.model.blocks[0].conv.weight, mm.load(run).model.blocks[0].conv.weight
    )


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 8}, "width 4, not 8"),
        ({"image_size": 20}, "image_size 16, not 20"),
        ({"model": "resnet12"}, "name conv4, not resnet12"),
        ({"data": "sinusoid", "image_size": None}, "name conv4, not mlp"),
    ],
)
def test_another_network_is_refused_in_one_line(changes, words, run, tmp_path, capsys):
    flags = {"data": "glyphs", "image_size": 16, "width": 4} | changes
    given = [(f"--{k.replace('_', '-')}", str(v)) for k, v in flags.items() if v is not None]
    command = ["train", "--method", "maml", "--init", str(run), "--out", str(tmp_path / "a")]
    code = main([*command, *(word for pair in given for word in pair)])
    assert_command_refused(capsys, code, f"init is {run}", words, "the same model, width")
    assert not (tmp_path / "a").exists()


def test_other_tensors_are_refused():
    model = mm.models.MLP(2, 3, hidden=(4,))
    names = [n for n, _ in model.named_parameters() if not n.startswith("head.")]
    odd = Body("there", dict(model.config), {n: torch.zeros(7) for n in names})
    assert_refused(lambda: fill_body(model, odd), r"one of shape \(7,\) for .*same network")
    assert_refused(lambda: fill_body(model, odd._replace(tensors={})), "has none for")


def test_what_is_no_run_is_refused(tmp_path: Path, capsys):
    command = ["train", "--method", "maml", "--data", "sinusoid", "--init", str(tmp_path)]
    code = main([*command, "--out", str(tmp_path / "a")])
    assert_command_refused(capsys, code, "holds no learner")


def test_a_run_is_not_continued_with_another_start(run: Path, tmp_path: Path, capsys):
    train(letters(init=str(run), iterations=1, validate_every=0), tmp_path / "a")
    command = ["train", "--resume", "--out", str(tmp_path / "a"), "--init", str(tmp_path / "a")]
    assert_command_refused(capsys, main(command), f"started with init {run}")


# Where it is stated


def test_the_path_is_stored_in_full(run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(run.parent)
    flags = "--method maml --data glyphs --image-size 16 --width 4 --queries 2 --iterations 1"
    command = ["train", *flags.split(), "--val-tasks", "2", "--init", run.name]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert load_config(tmp_path / "a").init == str(run.resolve())


def test_all_rows_of_a_comparison_begin_there_and_the_line_says_so(run: Path, tmp_path: Path):
    flags = "--methods maml,metasgd --shots 1 --seeds 1 --data glyphs --image-size 16 --width 4"
    flags += " --queries 2 --iterations 1 --val-tasks 2 --test-tasks 2 --outer-lr 0 --no-controls"
    out = tmp_path / "table"
    assert main(["compare", *flags.split(), "--init", str(run), "--out", str(out)]) == 0
    table = json.loads((out / "table.json").read_text())
    assert "its body from first" in table["protocol"]["line"]
    assert table["protocol"]["init"] == str(run.resolve())
    given = mm.load(run).model.blocks[2].conv.weight
    for row in table["rows"]:
        for seed in row["seeds"]:
            assert torch.equal(mm.load(out / seed["run"]).model.blocks[2].conv.weight, given)


def test_configurations_from_before_have_no_start():
    config = resolved(small_of("maml"))
    assert (config.init, config.epochs, config.batch) == (None, None, None)
