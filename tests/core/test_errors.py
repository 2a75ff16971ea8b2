"""A user's mistake raises a ValueError that gives the value and the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

import metamirror as mm
from metamirror.methods import COMMON
from metamirror.testing.networks import WAYS, smooth_mlp
from tests.networks import conv4, image_tasks, point_tasks
from tests.refusals import assert_refused

nan, inf = float("nan"), float("inf")

Change = Callable[[Tensor], Tensor]


def make(method: str = "maml", model: nn.Module | None = None, **options) -> mm.Learner:
    return mm.make_learner(method, model or smooth_mlp(), **options)


def support(x: Change = Tensor.clone, y: Change = Tensor.clone) -> mm.Batch:
    """One task's support set, six points of six values, with something done to it."""
    given = point_tasks().support
    return mm.Batch(x(given.x[0]), y(given.y[0]))


def tasks(x: Change = Tensor.clone, y: Change = Tensor.clone, part: str = "support") -> mm.Task:
    """A stack of two tasks with something done to one of its parts."""
    given = point_tasks()
    batch = getattr(given, part)
    return given._replace(**{part: mm.Batch(x(batch.x), y(batch.y))})


def setting(index: tuple[int, ...], value: float) -> Change:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[index] = value
        return changed

    return change


def regression(x: tuple[int, ...], y: tuple[int, ...]) -> mm.Task:
    batch = mm.Batch(torch.zeros(x), torch.zeros(y))
    return mm.Task(batch, batch)


IN_THE_DATA = {
    # One task, for adapt
    "x and y of different length": (
        lambda: make().adapt(support(x=lambda x: x[:4])),
        r"support\.x has shape \(4, 6\) and support\.y \(6,\)",
    ),
    "y is a scalar": (
        lambda: make().adapt(support(y=lambda y: y[0])),
        r"support\.y \(\); both must start with the same \(examples, \.\.\.\)",
    ),
    "an empty support set": (
        lambda: make().adapt(support(x=lambda x: x[:0], y=lambda y: y[:0])),
        r"support is empty.*\(0, 6\).*at least one example",
    ),
    "nan in x": (
        lambda: make().adapt(support(x=setting((4, 2), nan))),
        r"support\.x holds nan at index \(4, 2\).*finite",
    ),
    "infinity in x": (
        lambda: make().adapt(support(x=setting((0, 5), -inf))),
        r"support\.x holds -inf at index \(0, 5\)",
    ),
    "nan in y": (
        lambda: make(model=mm.models.MLP(1, 1)).adapt(
            mm.Batch(torch.zeros(3, 1), torch.tensor([[0.0], [nan], [1.0]]))
        ),
        r"support\.y holds nan at index \(1, 0\)",
    ),
    "a label too large": (
        lambda: make().adapt(support(y=setting((1,), 3))),
        r"support\.y holds the label 3.*3 outputs.*0 to 2",
    ),
    "a negative label": (
        lambda: make().adapt(support(y=setting((1,), -1))),
        r"support\.y holds the label -1.*0 to ways-1",
    ),
    "labels with an axis too many": (
        lambda: make().adapt(support(y=lambda y: y[:, None])),
        r"labels \(examples,\).*\(6, 3\) for labels \(6, 1\)",
    ),
    "a wrong number of inputs": (
        lambda: make().adapt(support(x=lambda x: x[:, :5])),
        r"5 values.*6 inputs",
    ),
    "a wrong input to a model of one's own": (
        lambda: make(model=nn.Linear(7, 3).double()).adapt(support()),
        r"does not take an example of shape \(6,\)",
    ),
    "another floating type than the model's": (
        lambda: make(model=nn.Linear(6, 3)).adapt(support()),
        r"does not take.*torch\.float64",
    ),
    "pictures of another size": (
        lambda: make(model=conv4()).adapt(mm.Batch(*(t[0] for t in image_tasks(size=8).support))),
        r"\(\d, 1, 8, 8\).*\(examples, 1, 16, 16\)",
    ),
    "a stack of tasks for adapt": (
        lambda: make().adapt(point_tasks().support),
        r"36 values.*6 inputs",
    ),
    "targets of another shape": (
        lambda: make(model=mm.models.MLP(1, 1)).adapt(mm.Batch(torch.zeros(5, 1), torch.zeros(5))),
        r"\(5, 1\) for targets \(5,\).*equal shapes",
    ),
    "words instead of a tensor": (
        lambda: make().adapt(support(x=str)),
        r"support\.x holds str; give a tensor or an array",
    ),
    "x alone": (
        lambda: make().adapt(support().x),
        r"support must be a Batch\(x, y\), not Tensor",
    ),
    # A stack of tasks, for meta_loss
    "no task axis": (
        lambda: make().meta_loss(tasks(x=lambda x: x[0], y=lambda y: y[0])),
        r"support\.x has shape \(6, 6\).*\(tasks, examples, \.\.\.\)",
    ),
    "no task axis, in regression": (
        lambda: make(model=mm.models.MLP(1, 1)).meta_loss(regression((10, 1), (10, 1))),
        r"does not take an example of shape \(\)",
    ),
    "no task axis on y": (
        lambda: make().meta_loss(tasks(y=lambda y: y[0])),
        r"support\.y \(6,\).*\(tasks, examples, \.\.\.\)",
    ),
    "no tasks": (
        lambda: make().meta_loss(tasks(x=lambda x: x[:0], y=lambda y: y[:0])),
        r"support is empty.*\(0, 6, 6\)",
    ),
    "an empty query set": (
        lambda: make().meta_loss(tasks(lambda x: x[:, :0], lambda y: y[:, :0], "query")),
        r"query is empty.*\(2, 0, 6\)",
    ),
    "nan in the query": (
        lambda: make().meta_loss(tasks(x=setting((1, 3, 0), nan), part="query")),
        r"query\.x holds nan at index \(1, 3, 0\)",
    ),
    "a label too large in the query": (
        lambda: make().meta_loss(tasks(y=setting((1, 3), 7), part="query")),
        r"query\.y holds the label 7.*3 outputs",
    ),
    "a negative label in the query": (
        lambda: make().meta_loss(tasks(y=setting((1, 3), -5), part="query")),
        r"query\.y holds the label -5",
    ),
    "a label too large under vmap": (
        lambda: make(vectorize=True).meta_loss(tasks(y=setting((1, 3), 7))),
        r"support\.y holds the label 7",
    ),
    "different numbers of tasks": (
        lambda: make().meta_loss(tasks(lambda x: x[:1], lambda y: y[:1], "query")),
        r"support holds 2 tasks and query 1",
    ),
    "different examples": (
        lambda: make().meta_loss(tasks(x=lambda x: x[..., :4], part="query")),
        r"an example has 4 values; this model takes 6 inputs",
    ),
    "targets of another shape in a stack": (
        lambda: make(model=mm.models.MLP(1, 1)).meta_loss(regression((2, 5, 1), (2, 5))),
        r"\(5, 1\) for targets \(5,\)",
    ),
    "too few seeds": (
        lambda: make("mtnet").meta_loss(tasks(), seeds=[1]),
        r"1 seeds for 2 tasks",
    ),
    "too many seeds": (
        lambda: make().meta_loss(tasks(), seeds=[1, 2, 3]),
        r"3 seeds for 2 tasks",
    ),
    "a batch for a task": (
        lambda: make().meta_loss(point_tasks().support.x),
        r"tasks is Tensor; give a Task that is a stack, or a list of single tasks",
    ),
}


@pytest.mark.parametrize("mistake", IN_THE_DATA)
def test_a_mistake_in_the_data_is_named(mistake: str):
    assert_refused(*IN_THE_DATA[mistake])


IN_THE_OPTIONS = {
    "no such method": (lambda: make("mamml"), r"'mamml'.*maml.*blockiaf"),
    "no method": (lambda: make(""), r"''.*choose from"),
    "no such option": (lambda: make("metasgd", rate=3), r"metasgd has no option 'rate'.*positive"),
    "no such option in words": (lambda: make("metasgd:rate=3"), r"no option 'rate'.*positive"),
    "an option of a method without": (lambda: make("maml:order=1"), r"maml.*'order'.*no options"),
    "a word without a value": (lambda: make("metasgd:positive"), r"'positive' should read option="),
    "an empty value": (lambda: make("metasgd:positive="), r"'positive=' should read option=value"),
    "an option given twice": (
        lambda: make("metasgd:positive=true", positive=True),
        r"\['positive'\] is given twice",
    ),
    "not a truth value": (
        lambda: make("metasgd:positive=yes"),
        r"positive is 'yes'.*true or false",
    ),
    "a number for a truth value": (lambda: make("metasgd", positive=1), r"positive is 1.*true or"),
    "not one of the choices": (
        lambda: make("blockiaf:variant=new"),
        r"variant is 'new'.*'live'.*'paper'.*'released'",
    ),
    "not a number": (lambda: make("ecml:gamma=much"), r"gamma is 'much'.*number"),
    "a truth value for a number": (lambda: make("ecml", gamma=True), r"gamma is True.*number"),
    "half a layer": (lambda: make("metakfo", hidden=1.5), r"hidden is 1\.5.*whole number"),
    "half a layer in words": (lambda: make("metakfo:hidden=1.5"), r"hidden is '1\.5'.*number"),
    "a negative weight": (lambda: make("ecml:gamma=-1"), r"gamma is -1\.0.*at least 0"),
    "a negative depth": (lambda: make("metakfo:hidden=-1"), r"hidden is -1.*at least 0"),
    "a temperature of zero": (lambda: make("mtnet:temperature=0"), r"temperature is 0\.0.*above 0"),
    "an even kernel": (lambda: make("warpgrad:kernel=2"), r"kernel is 2.*1 or 3"),
    "a negative step size": (lambda: make(lr=-0.1), r"lr is -0\.1.*at least 0"),
    "a step size of nan": (lambda: make(lr=nan), r"lr is nan.*finite"),
    "an infinite step size": (lambda: make(lr=inf), r"lr is inf.*finite"),
    "a step size in words": (lambda: make(lr="0.1"), r"lr is '0\.1'.*finite"),
    "a rate that starts at zero": (lambda: make("metasgd", lr=0.0), r"lr is 0\.0.*above 0"),
    "a bad step size for adapt": (lambda: make().adapt(support(), lr=-1.0), r"lr is -1\.0"),
    "negative steps": (lambda: make(steps=-1), r"steps is -1.*whole number from 0"),
    "half a step": (lambda: make(steps=2.5), r"steps is 2\.5.*whole number"),
    "steps of another type": (lambda: make(steps=5.0), r"steps is 5\.0.*whole number"),
    "a truth value for steps": (lambda: make(steps=True), r"steps is True.*whole number"),
    "bad steps for adapt": (lambda: make().adapt(support(), steps=-2), r"steps is -2"),
    "no such norm": (lambda: make(norm="batch"), r"norm is 'batch'.*'transductive'.*'inductive'"),
    "a number for a prior": (lambda: make(prior=0.1), r"prior is 0\.1.*isotropic:0\.1"),
    "no such prior": (lambda: make(prior="cauchy:1"), r"'cauchy:1'.*isotropic:WEIGHT"),
    "no warp points": (
        lambda: make("warpgrad", nn.Linear(6, 3).double()),
        r"Linear does not say where warp layers go.*warp_after=.*warp_points",
    ),
    "no such module to warp": (
        lambda: make("warpgrad", warp_after=["blocks.9"]),
        r"'blocks\.9'.*blocks\.0",
    ),
    "no such head": (lambda: make("anil:head=tail"), r"no layer 'tail'.*head"),
    "no head at all": (
        lambda: make("anil", nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten())),
        r"no nn\.Linear.*head=",
    ),
    "a frozen head": (
        lambda: make("anil", _frozen(smooth_mlp(), "head")),
        r"the layer 'head' has no learned parameters",
    ),
    "nothing to mix": (
        lambda: make("mtnet", nn.Sequential(nn.BatchNorm1d(6))),
        r"mtnet finds no linear layer",
    ),
    "a model without parameters": (
        lambda: make("maml", nn.Flatten()),
        r"no parameter adapts",
    ),
    "a frozen model": (lambda: make("maml", _frozen(smooth_mlp(), "")), r"no parameter adapts"),
    "no such parameter to adapt": (
        lambda: mm.Learner(smooth_mlp(), adapts=["tail.weight"]),
        r"\['tail\.weight'\] cannot adapt.*head\.weight",
    ),
    "no such data set": (lambda: mm.tasks("cosine"), r"'cosine'.*sinusoid"),
    "no such split": (lambda: mm.tasks("sinusoid", split="dev"), r"'dev'.*train, val, test"),
    "no such model": (lambda: mm.models.build("vgg"), r"'vgg'.*conv4"),
    "no such folder": (lambda: mm.load("/no/such/run"), r"/no/such/run holds no learner"),
}


def _frozen(model: nn.Module, layer: str) -> nn.Module:
    model.get_submodule(layer).requires_grad_(False)
    return model


@pytest.mark.parametrize("mistake", IN_THE_OPTIONS)
def test_a_mistake_in_the_options_is_named(mistake: str):
    assert_refused(*IN_THE_OPTIONS[mistake])


@pytest.mark.parametrize("method", mm.METHODS)
@pytest.mark.parametrize("mistake", ["a label too large", "an empty support set", "nan in x"])
def test_every_method_refuses_bad_data(mistake: str, method: str):
    learner = make(method)
    bad = {
        # A head that is computed may be larger than the model's, if it has examples of each class.
        "a label too large": (
            support(y=setting((1,), WAYS + 1)),
            f"label {WAYS + 1}|no example of class {WAYS}",
        ),
        "an empty support set": (support(lambda x: x[:0], lambda y: y[:0]), "empty"),
        "nan in x": (support(x=setting((4, 2), nan)), r"index \(4, 2\)"),
    }
    batch, words = bad[mistake]
    assert_refused(lambda: learner.adapt(batch, seed=0), words)


WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


@pytest.mark.parametrize("word", WORDS)
def test_truth_values_are_read_from_words(word: str):
    assert make(f"metasgd:positive={word}").geometry.positive is WORDS[word]
    assert make("metasgd", positive=word).geometry.positive is WORDS[word]


def test_numbers_are_read_from_words():
    options = make("ecml:gamma=0.5:subset=all").config["options"]
    assert (options["gamma"], options["subset"]) == (0.5, "all")


@pytest.mark.parametrize("method", mm.METHODS)
def test_options_of_a_method_never_hide_those_of_the_learner(method: str):
    own = {field.name for field in fields(mm.METHODS[method].options)}
    assert not own & {*COMMON, "method", "model"}
