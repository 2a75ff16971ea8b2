"""Odd inputs, outputs, targets and losses: rows of the table that `test_odd_tasks` walks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from tests.core.odd_models import (
    EXAMPLES,
    WAYS,
    Case,
    Draw,
    Made,
    Pair,
    images,
    labels,
    mlp,
    sequence,
    series,
    words,
)


def two(run: Any = lambda m, u, v: m.head((m.a(u) + m.b(v)).tanh())) -> nn.Module:
    return Made(run, a=nn.Linear(4, 6), b=nn.Linear(2, 6), head=nn.Linear(6, WAYS))


def of_pair(m: Any, pair: Pair) -> Tensor:
    return m.head((m.a(pair.u) + m.b(pair.v)).tanh())


def both(draw: Draw) -> dict[str, Tensor]:
    return {"v": draw.real(2), "u": draw.real(4)}


def over_edges(m: Any, nodes: Tensor, edges: Tensor) -> Tensor:
    there, here = (ends[..., None].expand(-1, -1, 4) for ends in edges.unbind(1))
    sent = m.inner(nodes).tanh().gather(1, there)
    return m.head(torch.zeros_like(nodes).scatter_add(1, here, sent).tanh().sum(1))


def over_links(m: Any, nodes: Tensor, links: Tensor) -> Tensor:
    return m.head((links @ m.inner(nodes)).tanh())


def graph(run: Any) -> nn.Module:
    return Made(run, inner=nn.Linear(4, 4), head=nn.Linear(4, WAYS))


INPUTS = {
    "a tuple in": Case(two, lambda d: (d.real(4), d.real(2))),
    "a dict in": Case(two, both),
    "a dict in, as keywords alone": Case(lambda: two(lambda m, **x: of_pair(m, Pair(**x))), both),
    "a dict in, as one argument": Case(
        lambda: two(lambda m, x: of_pair(m, Pair(**x))), lambda d: (both(d),)
    ),
    "a dict for one argument": Case(
        lambda: two(lambda m, x: of_pair(m, Pair(**x))),
        both,
        refused=r"unexpected keyword argument.*a dict is given as keywords, and \({..},\) as one",
    ),
    "a dataclass in": Case(lambda: two(of_pair), lambda d: Pair(**both(d))),
    "arrays": Case(mlp, lambda d: d.real(4).numpy()[..., ::-1], lambda d: labels(d).numpy()),
    "lists of numbers": Case(mlp, lambda d: d.real(4).tolist(), lambda d: labels(d).tolist()),
    "lists of several lengths": Case(
        mlp, lambda d: [[[1.0, 2.0], [3.0]]], refused="support.x is a list whose parts differ.*pad"
    ),
    "lists of tensors": Case(
        mlp,
        lambda d: list(d.real(4).flatten(0, 1)),
        refused=r"must start with the same \(tasks, examples, ...\).*torch.stack joins the ex",
    ),
    "names for labels": Case(
        mlp,
        y=lambda d: [["cat"] * EXAMPLES, ["dog"] * EXAMPLES],
        refused="support.y holds <U3, such as 'cat'; give numbers, and for classes those from 0",
    ),
    "bytes for labels": Case(mlp, y=lambda d: labels(d).byte()),
    "not a number": Case(
        mlp, lambda d: d.real(4).log(), refused="support.x holds nan at index.*repair that example"
    ),
    "another precision": Case(
        mlp, lambda d: d.real(4).float(), refused=r"type torch.float32.*as x.to\(torch.float64\)"
    ),
    "seven words and then nine": Case(lambda: sequence(nn.Embedding(11, 4)), words),
    "a graph for each example": Case(
        lambda: graph(over_edges), lambda d: {"nodes": d.real(5, 4), "edges": d.whole(5, 2, 8)}
    ),
    "a graph whose nodes are the examples": Case(
        lambda: graph(over_links),
        lambda d: {"nodes": d.real(4), "links": d.real(EXAMPLES).softmax(-1)},
    ),
    "edges beside nodes": Case(
        lambda: graph(over_edges),
        lambda d: {"nodes": d.real(4), "edges": d.whole(5, 9).flatten(1, 2)},
        refused=r"support.x has shape .2, 6, 4. and .2, 54.*must start with the same",
    ),
}


def energetic(kind: Any) -> nn.Module:
    """Logits, and how large they are."""
    return Made(lambda m, x: kind(m.net(x), m.net(x).square().sum(1)), net=mlp())


def of_dict(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output["logits"], y) + 0.1 * output["energy"].mean()


def of_tuple(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output[0], y) + 0.1 * output[1].mean()


def of_object(output: Any, y: Tensor) -> Tensor:
    return cross_entropy(output.u, y) + 0.1 * output.v.mean()


def of_two_targets(output: Any, y: Any) -> Tensor:
    return cross_entropy(output[0], y["label"]) + (output[1] - y["energy"]).square().mean()


def pixels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, WAYS, 1))


def some_ignored(draw: Draw) -> Tensor:
    found = draw.whole(WAYS, 6, 6)
    found[:, :, 0] = -100
    return found


def of_tags(output: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, y.to(output.dtype))


def ranked(output: Tensor, y: Tensor) -> Tensor:
    """Over all pairs: the larger target should have the larger score."""
    return F.softplus(-(output - output.mT) * (y - y.mT).sign()).mean()


def contrasted(output: Tensor, y: Tensor) -> Tensor:
    """Over all pairs: examples of a class should be near each other."""
    near = F.normalize(output, dim=1) @ F.normalize(output, dim=1).mT
    same = (y[:, None] == y).to(near.dtype)
    return -(near.log_softmax(1) * same).mean()


def quantiles(output: Tensor, y: Tensor) -> Tensor:
    off, q = y - output, output.new_tensor([0.1, 0.5, 0.9])
    return torch.maximum(q * off, (q - 1) * off).mean()


def likelihood(output: Any, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output[0], y, output[1].exp()[:, None].expand_as(y))


def ctc(output: Tensor, y: Tensor) -> Tensor:
    lengths = (torch.full((len(y),), n) for n in (output.shape[1], y.shape[1]))
    return F.ctc_loss(output.log_softmax(-1).transpose(0, 1), y, *lengths)


def loss(function: Any, **others: Any) -> dict[str, Any]:
    return {"options": {"loss": function}, **others}


def query(function: Any, **others: Any) -> dict[str, Any]:
    return {"options": {"query_loss": function}, **others}


TARGETS = {
    "a dict out": Case(lambda: energetic(lambda a, b: {"logits": a, "energy": b}), **loss(of_dict)),
    "a tuple out": Case(lambda: energetic(lambda *both: both), **loss(of_tuple)),
    "a dataclass out": Case(lambda: energetic(Pair), **loss(of_object)),
    "two targets": Case(
        lambda: energetic(lambda *both: both),
        y=lambda d: {"label": labels(d), "energy": d.real()},
        **loss(of_two_targets),
    ),
    "a label for each pixel": Case(pixels, images, lambda d: d.whole(WAYS, 6, 6)),
    "ignored labels": Case(pixels, images, some_ignored),
    "several labels": Case(mlp, y=lambda d: d.whole(2, WAYS), **loss(of_tags)),
    "several labels, as integers": Case(
        mlp,
        y=lambda d: d.whole(2, WAYS),
        **loss(
            nn.BCEWithLogitsLoss(), refused=r"loss does not take.*targets int64 \(6, 3\).*can't"
        ),
    ),
    "another loss for the query": Case(
        mlp,
        options={"loss": nn.CrossEntropyLoss(label_smoothing=0.2), "query_loss": cross_entropy},
    ),
    "mean and log-variance": Case(
        lambda: energetic(lambda *both: both),
        y=lambda d: d.real(WAYS),
        **loss(likelihood, under_vmap="differentiate loss under torch.func.vmap.*vectorize off"),
    ),
    "quantiles": Case(mlp, y=lambda d: d.real(1), **loss(quantiles)),
    "ranks": Case(
        lambda: nn.Sequential(mlp(), nn.Linear(WAYS, 1)), y=lambda d: d.real(1), **loss(ranked)
    ),
    "contrast": Case(mlp, **loss(contrasted)),
    "ctc": Case(
        mlp,
        series,
        lambda d: 1 + d.whole(2, 2),
        **loss(ctc, refused="cannot differentiate loss twice.*adjoint='first'"),
    ),
    "a loss for each example": Case(
        mlp, **loss(nn.CrossEntropyLoss(reduction="none"), refused=r"shape \(6,\).*be a scalar")
    ),
    "a query loss for each example": Case(
        mlp, **query(nn.CrossEntropyLoss(reduction="none"), refused=r"query_loss has shape \(6,\)")
    ),
    "a loss that is no tensor": Case(
        mlp, **loss(lambda *a: cross_entropy(*a).item(), refused="gave a float; .*leave out item")
    ),
    "a loss that is detached": Case(
        mlp, **loss(lambda *a: cross_entropy(*a).detach(), refused="without a gradient; .*detach")
    ),
    "a query loss that is detached": Case(
        mlp, **query(lambda *a: cross_entropy(*a).detach(), refused="query_loss is .*without a gr")
    ),
    "a loss that is not finite": Case(
        mlp, **loss(lambda *a: cross_entropy(*a) / 0, refused="is inf on the first task, before")
    ),
    "a loss with a mistake": Case(
        mlp, **loss(lambda output, y: output.logits, refused="loss does not take.*no attribute")
    ),
}
