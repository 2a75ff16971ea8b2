"""Learners on disk: safetensors for tensors, JSON for the rest, no pickle."""

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from metamirror import models
from metamirror.console import warn
from metamirror.core import losses
from metamirror.core.files import read_json, write_atomically, write_json
from metamirror.core.learner import Learner
from metamirror.core.tasks import Loss
from metamirror.methods import make_learner
from metamirror.storage import tensor_file

FORMAT = 3
CONFIG, TENSORS = "learner.json", "learner.safetensors"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types in which a learner can compute."""
SETTINGS = ("steps", "lr", "adjoint", "norm", "vectorize", "start")
"""The settings that a file holds; the loss and the precision are given by who loads it."""
RENAMED = {"metric": "scaling"}
"""Options of gradnet that had other names."""
FIELDS = {"method", "options", "built_lr", "model", *SETTINGS, "prior", "loss", "frozen"}


class EarlierVersionError(ValueError):
    """A learner that is intact, but that this version can no longer build."""


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers, tied ones once."""
    persistent = set(learner.state_dict())
    named = (*learner.named_parameters(), *learner.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name in persistent}


def save(
    learner: Learner,
    folder: str | Path,
    *,
    step: int | None = None,
    tensors: dict[str, Tensor] | None = None,
) -> None:
    """Write a learner made by `make_learner` into a folder, from which `load` restores it.

    Of a prior or model of the user's own class only tensors are written: pass it to `load` again.

    Args:
        learner: what is written.
        folder: where it is written.
        step: how many outer steps it has been trained for, if that is to be known.
        tensors: earlier values of its tensors, to be written in place of the present ones.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    publish(learner, Path(folder), step=step, tensors=tensors)


def publish(
    learner: Learner, folder: Path, *, step: int | None, tensors: dict[str, Tensor] | None = None
) -> None:
    """Write a learner into a folder of a run; a run that was moved away is not begun anew here."""
    description = describe(learner)
    folder.mkdir(exist_ok=True)
    facts = {} if step is None else {"step": step}
    # In a run the description stays the same: replacing the tensors, which is atomic and carries
    # the step, is all that happens after the first time.
    own = tensors_of(learner) if tensors is None else tensors
    write_atomically(folder / TENSORS, tensor_file.pack(own, facts))
    write_json(folder / CONFIG, description)


def describe(learner: Learner) -> dict[str, Any]:
    """Return how to build the learner again."""
    if learner.config is None:
        raise ValueError("only a learner made by make_learner knows how to be built again")
    # What the start computes rests, and is frozen again by who builds the learner.
    own = [(n, p) for n, p in learner.model.named_parameters() if n not in learner.start.computed]
    frozen = [name for name, p in own if not p.requires_grad]
    if late := [name for name in frozen if name in learner.adapts]:
        raise ValueError(
            f"{late[0]} was frozen after the learner was built around it, and could not come back "
            f"the same: freeze it before make_learner"
        )
    return {
        "format": FORMAT,
        **learner.config,
        **{name: getattr(learner.settings, name) for name in SETTINGS},
        "adjoint": learner.settings.adjoint.spec,
        "prior": None if learner.prior is None else learner.prior.spec or "custom",
        "loss": losses.name_of(learner.settings.loss),
        "query_loss": losses.name_of(learner.settings.query_loss),
        "metric": (metric := learner.settings.metric) and (metric.spec or "custom"),
        "frozen": frozen,
    }


def step_of(path: str | Path, which: Literal["best", "last"] = "best") -> int | None:
    """Return after how many outer steps a learner on disk was saved, if that was written."""
    step: int | None = tensor_file.read(_find(Path(path), which) / TENSORS)[1].get("step")
    return step


def load(
    path: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    model: nn.Module | None = None,
    loss: Loss | None = None,
    query_loss: Loss | None = None,
    metric: Any = None,
    prior: Any = None,
) -> Learner:
    """Load a learner from a folder that `save` or a run wrote.

    Args:
        path: the folder.
        which: the learner of a run with the best validation score, or the last one.
        model: needed where the learner was built around a class of the user's own.
        loss: needed where a loss of the user's own was given.
        query_loss: needed where one for the query set was given.
        metric: one of the user's own, in place of the usual one.
        prior: needed where a prior of the user's own class was given.
    """
    folder = _find(Path(path), which)
    config, file = folder / CONFIG, folder / TENSORS
    tensors, _ = tensor_file.read(file)
    given = {"loss": loss, "query_loss": query_loss, "metric": metric, "prior": prior}
    return restore(read_json(config), tensors, config, file, model, given)


def restore(
    description: Any,
    tensors: dict[str, Tensor],
    described_in: object,
    origin: object,
    model: nn.Module | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Learner:
    """Build a learner from `describe` and `tensors_of`; errors name `described_in` and `origin`.

    What is `given` goes before what the description names.
    """
    config = checked(description, described_in)
    chosen = {name: config.get(name) for name in ("loss", "query_loss", "metric", "prior")}
    chosen |= {name: value for name, value in given.items() if value is not None}
    if chosen["metric"] == "custom":
        warn(f"{described_in} was made with the user's own metric, which is left out: pass metric=")
        chosen["metric"] = None  # it decides what is reported, and nothing else
    for name, value in chosen.items():
        if value == "custom":
            raise ValueError(f"{described_in} was made with the user's own {name}: pass {name}=...")

    def build(own: nn.Module) -> Learner:
        for name, p in own.named_parameters():
            p.requires_grad_(name not in config["frozen"])
        return make_learner(
            config["method"],
            own,
            **{name: config[name] for name in SETTINGS}
            | {"lr": config["built_lr"], "steps": config["built_steps"]},
            adapts=config["adapts"],
            **copy.deepcopy(chosen),
            **config["options"],
        )

    if model is not None:
        learner = build(copy.deepcopy(model))
    elif config["model"] is None:
        raise ValueError(f"{described_in} holds a model of the user's own class: pass model=...")
    elif config["model"].get("name") not in models.MODELS:
        learner = build(models.build(**config["model"]))
    else:
        # What a file claims is compared with what it holds before time and memory are spent on it.
        depths = [len(v) for v in config["model"].values() if isinstance(v, list)]
        depth = config["model"].get("depth", 0)
        if any(isinstance(n, int) and n > len(tensors) for n in (*depths, depth)):
            raise ValueError(f"{described_in} describes more layers than {origin} has tensors")
        try:
            with torch.device("meta"):
                sketch = build(models.build(**config["model"]))
        except ValueError:
            raise
        except Exception as error:  # there is no end to what a file can claim
            words = str(error) or type(error).__name__
            raise ValueError(f"{described_in} describes no learner: {words}") from error
        check_fit(sketch, tensors, origin)
        # Our own models compute in one type.
        types = {str(tensor.dtype) for tensor in tensors.values() if tensor.is_floating_point()}
        if len(types) > 1:
            raise ValueError(f"{origin} is damaged: it holds both {' and '.join(sorted(types))}")
        learner = build(models.build(**config["model"]))
    learner.configure(lr=config["lr"], steps=config["steps"])
    fill(learner, tensors, origin)
    return learner


def checked(description: Any, origin: object) -> dict[str, Any]:
    """Return a description, once its fields are known to be there and of the right kind."""
    if not isinstance(description, dict) or description.get("format") not in range(1, FORMAT + 1):
        raise ValueError(f"{origin} is not a learner of format {FORMAT}")
    if description["format"] < FORMAT:
        description = _upgraded(description, origin)
    if missing := FIELDS - set(description):
        raise ValueError(f"{origin} is damaged: it lacks {sorted(missing)}")
    if description["method"] == "gradnet" and isinstance(description["options"], dict):
        # The option had the name of what is measured on the query set now.
        options = {RENAMED.get(name, name): v for name, v in description["options"].items()}
        description = {**description, "options": options}
    # Files from before one could choose what adapts do not have it.
    description = {"adapts": "all", **description}
    kinds = {"method": str, "options": dict, "model": dict | None, "frozen": list, "adapts": str}
    if odd := [name for name, kind in kinds.items() if not isinstance(description[name], kind)]:
        raise ValueError(f"{origin} is damaged: {odd[0]} is {description[odd[0]]!r}")
    # Files from before a method could depend on the number of steps do not have it.
    return {"built_steps": description["steps"], **description}


def _upgraded(description: dict[str, Any], origin: object) -> dict[str, Any]:
    """Return a description of an earlier format in the words of this one."""
    options = description.get("options")
    if not isinstance(options, dict):
        return description  # damaged, as `checked` says
    options = dict(options)
    found = {"start": None, **description, "options": options}
    if description["format"] == 1:
        # It had a flag in place of the adjoint's name.
        found["adjoint"] = "first" if description.get("first_order") is True else "unrolled"
    method = description.get("method")
    if method == "gradnet":
        raise EarlierVersionError(
            f"{origin} is of an earlier version, whose gradient networks were parametrised "
            f"differently: train it again"
        )
    if method == "blockiaf":
        found["start"] = "primal" if options.pop("anchored", False) else "dual"
        options["parametrisation"] = "standard"
        if options.get("variant") == "live":
            options["scale"] = options.get("scale") or "bounded"
    if method == "warpgrad" and "start" in options:
        options["start_rule"] = options.pop("start")
    if method == "ecml":
        options["floor"] = 0.0
    return found


def _find(path: Path, which: str) -> Path:
    if which not in ("best", "last"):
        raise ValueError(f"which is {which!r}; choose 'best' or 'last'")
    for folder in (path, path / which, path / "last"):
        if (folder / CONFIG).is_file():
            return folder
    raise ValueError(f"{path} holds no learner: there is no {CONFIG} in it, nor in {path / which}")


def check_fit(
    learner: Learner, stored: dict[str, Tensor], origin: object, *, same_types: bool = False
) -> None:
    """Refuse tensors of other names, shapes or, if asked to, types than the learner's."""
    own = tensors_of(learner)
    if set(stored) != set(own):
        raise ValueError(
            f"{origin} does not fit this learner: it lacks {sorted(set(own) - set(stored))[:3]} "
            f"and has {sorted(set(stored) - set(own))[:3]} besides"
        )
    for name, tensor in own.items():
        if tensor.shape != stored[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(stored[name].shape)} in {origin} and "
                f"{tuple(tensor.shape)} in the learner"
            )
        kind = stored[name].dtype
        fits = tensor.is_floating_point() == (kind in FLOATS)
        if not fits or (same_types and kind != tensor.dtype):
            raise ValueError(f"{name} is {kind} in {origin}, not {tensor.dtype}")


def fill(learner: Learner, stored: dict[str, Tensor], origin: object) -> None:
    """Put tensors into a learner, in place."""
    check_fit(learner, stored, origin)
    for name, tensor in (*learner.named_parameters(), *learner.named_buffers()):
        if name in stored:
            # The type is the file's: what was saved comes back bit for bit; the strides stay.
            value = stored[name]
            tensor.data = torch.empty_like(tensor.data, dtype=value.dtype).copy_(value)
    # Buffers that are not stored follow.
    like = next(iter(learner.parameters()))
    for name, buffer in learner.named_buffers():
        if name not in stored and buffer.is_floating_point():
            buffer.data = buffer.data.to(like.dtype)


def check_continues(folder: Path) -> None:
    """Refuse to continue a run of an earlier version whose method meant something else then."""
    description = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    if not isinstance(description, dict) or description.get("format") not in range(1, FORMAT):
        return
    if description.get("method") in ("blockiaf", "gradnet", "ecml", "warpgrad"):
        raise ValueError(
            f"{folder.parent} was begun with an earlier version, whose {description['method']} was "
            f"another: it can be evaluated, but not continued. Train it again"
        )
