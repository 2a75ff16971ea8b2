"""The registry. A new method is one file beside this one and one line here."""

import re
from copy import deepcopy
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from torch import nn

from metamirror import heads
from metamirror.core import adjoints, priors
from metamirror.core.copied_model import CopiedModel
from metamirror.core.learner import Learner
from metamirror.core.model_checks import check_model
from metamirror.core.option_spec import parse_spec
from metamirror.core.settings import Settings
from metamirror.methods import adapting
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.around_head import AroundHead
from metamirror.mirror_maps.mirror_descent import MirrorDescent
from metamirror.models import config_of, head_of

METHODS: dict[str, Method] = {
    key: import_module(f"metamirror.methods.{key}").METHOD
    for key in (
        "maml",
        "metasgd",
        "mtnet",
        "warpgrad",
        "metacurvature",
        "metakfo",
        "ecml",
        "blockiaf",
        "gradnet",
        "gap",
        "metamd",
        "mamlpp",
        "fomaml",
        "reptile",
        "imaml",
        "ibaml",
        "metalstm",
        "boil",
        "protonet",
        "protomaml",
        "r2d2",
        "metaoptnet",
        "snail",
        "anil",
    )
}
"""Every method by its key, group by group, the paper's in the order of its table."""

OTHERS = ("prior", "adapts", "copy", "first_order", "recompute")

COMMON = (*(field.name for field in fields(Settings)), *OTHERS)
"""What every method takes as a keyword, beside its own options."""

COMMON_WORDS = ("adjoint", "start", "adapts", "prior")
"""Those that may also follow a method's key, as in `metasgd:adjoint=first`."""

PRIOR = re.compile(r":prior=(?P<prior>[^:,=]+(:[^:,=]+)?)(?=[:,]|$)")
"""A prior in a specification, where colons part options: its weight belongs to it."""

__all__ = ["METHODS", "Method", "Parts", "check_method", "find_method", "make_learner"]


def find_method(spec: str) -> tuple[Method, dict[str, str]]:
    """Return the method and the options of a specification such as `metasgd:positive=true`.

    >>> find_method("maml:adjoint=implicit:cg=5,damping=1")[1]
    {'adjoint': 'implicit:cg=5,damping=1'}
    >>> find_method("gradnet:prior=isotropic:2:adjoint=implicit")[1]
    {'adjoint': 'implicit', 'prior': 'isotropic:2'}
    """
    if not isinstance(spec, str):
        raise ValueError(f"method is {spec!r}; give a name, one of {', '.join(METHODS)}")
    spec, adapts = adapting.cut_out(spec)
    prior = PRIOR.search(spec)
    key, options = parse_spec(PRIOR.sub("", spec, count=1).replace(",", ":"))
    if key not in METHODS:
        raise ValueError(f"no method is called {key!r}; choose from {', '.join(METHODS)}")
    # The numbers of an adjoint follow it: maml:adjoint=implicit:cg=5:damping=1.
    kind = adjoints.ADJOINTS.get(options.get("adjoint", ""))
    own = [] if kind is None else [f.name for f in fields(kind) if f.name in options]  # type: ignore[arg-type]
    if own:
        words = ",".join(f"{name}={options.pop(name)}" for name in own)
        options["adjoint"] += f":{words}"
    if prior:
        options["prior"] = prior["prior"]
    return METHODS[key], options if adapts is None else {**options, "adapts": adapts}


def check_method(spec: str) -> None:
    """Refuse a specification of which a word is wrong, before a learner is built from it."""
    method, words = find_method(spec)
    common = {name: words.pop(name) for name in COMMON_WORDS if name in words}
    for name in ("adapts", "prior"):  # which depend on the model
        common.pop(name, None)
    method.make_options(words, COMMON)
    Settings(**common)  # type: ignore[arg-type]


def takes_real_targets(spec: str) -> bool:
    """Return whether a method is one for regression too.

    >>> takes_real_targets("maml"), takes_real_targets("maml:start=prototypes")
    (True, False)
    """
    method, options = find_method(spec)
    head = heads.HEADS.get(options.get("start", method.defaults.get("start")) or "")
    return head is None or not head.labels_only


def make_learner(method: str, model: nn.Module, **options: Any) -> Learner:
    """Return a learner for a method by name, around a copy of the model.

    Args:
        method: a key of `METHODS`; options may follow, as in `blockiaf:variant=released` or
            `metasgd:adjoint=first`.
        model: any module. It is copied: the learner's own parameters are in `learner.parameters()`.
            With `copy=False` the learner takes the model itself, which training then changes.
        **options: the settings (`steps`, `lr`, `adjoint`, `loss`, `query_loss`, `metric`,
            `norm`, `vectorize`, `autocast`, `start`), what `adapts` ("head", "bias", "last:2",
            "lora:rank=4", names; by default all), a `prior` (a `Prior`, or a word such as
            `isotropic:0.1`), the short forms `first_order` and `recompute` of an adjoint, and the
            method's own options.

    >>> import metamirror as mm
    >>> learner = mm.make_learner("metasgd", mm.models.MLP(1, 1), steps=1, lr=0.01, positive=True)
    >>> sum(p.numel() for p in learner.parameters())
    3522
    """
    found, words = find_method(method)
    if repeated := set(words) & set(options):
        raise ValueError(f"{method}: {sorted(repeated)} is given twice")
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is {model!r}; give an nn.Module, such as metamirror.models.Conv4()"
        )
    check_model(model)
    common = {name: options.pop(name) for name in COMMON if name in options}
    common |= {name: words.pop(name) for name in COMMON_WORDS if name in words}
    chosen = found.make_options({**words, **options}, COMMON)
    if common.get("start", "") is None:
        del common["start"]
    common = {**found.defaults, **_adjoint(common)}
    if "adjoint" in common:
        common["adjoint"] = adjoints.make(common["adjoint"], found.defaults.get("adjoint", ""))
    if common.get("start") != found.defaults.get("start", common.get("start")):
        raise ValueError(
            f"start is {common['start']!r}; {found.key} is defined by the start "
            f"{found.defaults['start']!r}: another one goes with maml, as in maml:start=ridge"
        )
    prior = common.pop("prior", None)
    copied = _flag("copy", common.pop("copy", True))
    own = _copied(model) if copied else model
    adapts = adapting.spelled(common.pop("adapts", None))
    settings = Settings(**common)
    parts = _built(found, own, chosen, settings, adapts)
    if settings.start == "dual" and not isinstance(parts.geometry, MirrorDescent):
        raise ValueError(f"start is 'dual'; {found.key} has no mirror map, and so no dual start")
    if prior is None or prior == priors.OF_THE_METHOD:
        prior = parts.prior
    elif isinstance(prior, str):
        prior = priors.make(prior, {n: parts.model.get_parameter(n) for n in parts.adapts or ()})
    start = parts.start
    if settings.computes_head:
        if start is not None:
            raise ValueError(f"start is {settings.start!r}; {found.key} has a start of its own")
        start = heads.make(str(settings.start), parts.model, parts.adapts or ())
    learner = Learner(
        parts.model,
        parts.geometry,
        parts.objective,
        start=start,
        prior=prior,
        adapts=parts.adapts,
        settings=settings,
    )
    learner.copied = CopiedModel(model.parameters() if copied else ())
    first = next(iter(learner.theta().values()))
    for part in (learner.geometry, learner.start, learner.prior):
        if part is not None:
            part.to(device=first.device, dtype=first.dtype)
    learner.config = {
        "method": found.key,
        "options": vars(chosen).copy(),
        "adapts": adapts,
        # What the method was built for; the learner's own may be changed later.
        "built_lr": settings.lr,
        "built_steps": settings.steps,
        "model": config_of(model),
    }
    return learner


def _built(
    method: Method, model: nn.Module, options: Any, settings: Settings, adapts: str
) -> Parts:
    """Return the method's parts, made for what adapts and for nothing else."""
    names = adapting.choose(model, adapts)
    vars(model).pop("adapted_modes", None)
    if adapts != "all":
        vars(model)["adapted_modes"] = adapting.long_axes(model, names)
    head, body = _computed_head(method, model, settings, names)
    with adapting.only(model, names):
        with adapting.only(model, body):
            parts = method.build(model, options, settings)
        if head and parts.geometry is not None:
            parts = replace(parts, geometry=AroundHead(parts.geometry, head))
        # Of the model that the method has made of it.
        every = [name for name, p in parts.model.named_parameters() if p.requires_grad]
        return replace(parts, adapts=parts.adapts or every)


def _computed_head(
    method: Method, model: nn.Module, settings: Settings, names: list[str]
) -> tuple[list[str], list[str]]:
    """Return the head around which a geometry is built, if it is, and what that is built for."""
    if not (method.shaped and settings.computes_head):
        return [], names
    layer = head_of(model)
    head = [name for name in names if name.rpartition(".")[0] == layer]
    body = [name for name in names if name not in head]
    # Where the head alone adapts, the geometry is the head's, of so many outputs.
    return (head, body) if body else ([], names)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return deepcopy(model)
    except Exception as error:
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"the model cannot be copied ({why}): with copy=False the learner takes the model "
            f"itself, which training then changes"
        ) from error


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; give True or False")
    return value


def _adjoint(common: dict[str, Any]) -> dict[str, Any]:
    """Replace the short forms `first_order` and `recompute` by the adjoint that they stand for."""
    for name, adjoint in (("first_order", "first"), ("recompute", "rematerialised")):
        if (
            _flag(name, common.pop(name, False))
            and common.setdefault("adjoint", adjoint) != adjoint
        ):
            raise ValueError(
                f"{name} stands for adjoint={adjoint}, and adjoint is {common['adjoint']}: "
                f"give one of them"
            )
    return common
