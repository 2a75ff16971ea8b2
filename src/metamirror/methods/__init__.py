"""The registry. A new method is one file beside this one and one line here."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from torch import nn

from metamirror.core import priors
from metamirror.core.learner import Learner, check_lr
from metamirror.core.option_spec import parse_spec
from metamirror.methods import (
    anil,
    blockiaf,
    ecml,
    gradnet,
    maml,
    metacurvature,
    metakfo,
    metasgd,
    mtnet,
    warpgrad,
)
from metamirror.methods.metasgd import learned
from metamirror.methods.registry import Method, Parts
from metamirror.models import MODELS

METHODS: dict[str, Method] = {
    module.METHOD.key: module.METHOD
    for module in (
        maml,
        metasgd,
        mtnet,
        warpgrad,
        metacurvature,
        metakfo,
        ecml,
        blockiaf,
        gradnet,
        anil,
    )
}
"""Every method by its key, in the order of the paper's table."""

LEARNER_OPTIONS = ("steps", "lr", "first_order", "loss", "prior", "norm", "vectorize", "recompute")

__all__ = ["METHODS", "Method", "Parts", "find_method", "make_learner"]


def find_method(spec: str) -> tuple[Method, dict[str, str]]:
    """The method and the options that a specification such as `metasgd:positive=true` names."""
    if not isinstance(spec, str):
        raise ValueError(f"method is {spec!r}; give a name, one of {', '.join(METHODS)}")
    key, options = parse_spec(spec)
    if key not in METHODS:
        raise ValueError(f"no method is called {key!r}; choose from {', '.join(METHODS)}")
    return METHODS[key], options


def make_learner(method: str, model: nn.Module, **options: Any) -> Learner:
    """A learner for a method by name, around a copy of the model.

    Args:
        method: a key of `METHODS`; its options may follow, as in `blockiaf:variant=released`.
        model: any module. It is copied: the learner's own parameters are in `learner.parameters()`.
        **options: the learner's (`steps`, `lr`, `first_order`, `loss`, `prior`, `norm`,
            `vectorize`, `recompute`) and the method's. `prior` is a `Prior` or a word such as
            `isotropic:0.1`.

    >>> import metamirror as mm
    >>> learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), steps=1, lr=0.01, positive=True)
    >>> sum(p.numel() for p in learner.parameters())
    3522
    """
    found, words = find_method(method)
    common = {name: options.pop(name) for name in LEARNER_OPTIONS if name in options}
    if repeated := set(words) & set(options):
        raise ValueError(f"{method}: {sorted(repeated)} is given twice")
    chosen = found.make_options({**words, **options})
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is {model!r}; give an nn.Module, such as metamirror.models.Conv4()"
        )
    lr = check_lr(common.get("lr", inspect.signature(Learner).parameters["lr"].default))
    parts = found.build(copy.deepcopy(model), chosen, lr)
    if isinstance(prior := common.get("prior"), str):
        start = learned(parts.model)
        adapting = {name: start[name] for name in parts.adapts or start}
        common["prior"] = priors.make(prior, adapting)
    learner = Learner(parts.model, parts.geometry, parts.objective, adapts=parts.adapts, **common)
    first = next(iter(learner.start().values()))
    for part in (learner.geometry, learner.prior):
        if part is not None:
            part.to(device=first.device, dtype=first.dtype)
    learner.config = {
        "method": found.key,
        "options": vars(chosen).copy(),
        # What the method was built for; the learner's own step size may be changed later.
        "built_lr": lr,
        # A class of the user's own may derive from one of ours, or have a config of its own.
        "model": model.config if type(model) in MODELS.values() else None,
    }
    return learner
