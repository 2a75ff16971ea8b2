"""Starting a run from the body of another one: everything of its network but the head."""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from metamirror.core.learner import Learner
from metamirror.core.tasks import Params
from metamirror.models import config_of, head_of
from metamirror.models.low_rank import LowRank, merged_weights
from metamirror.storage import checkpoint, learner_file, tensor_file
from metamirror.training.config import RunConfig
from metamirror.training.distributed import Ranks

OF_THE_HEAD = ("ways", "outputs")
"""What two networks may differ in of which one takes the other's body."""


class Body(NamedTuple):
    """The tensors of a network's body, and how the network was built."""

    origin: str
    network: dict[str, Any]
    tensors: Params


def initial_body(config: RunConfig, out: Path, ranks: Ranks) -> Body | None:
    """Return the body that a run starts from; None where it has none, or has begun already.

    What a run holds that has begun is in its checkpoints: the one it started from may be gone.
    """
    if config.init is None:
        return None
    content = None
    if ranks.first and not checkpoint.files(out):
        body = body_of(learner_file.load(config.init), config.init)
        content = tensor_file.pack(body.tensors, {"network": body.network})
    if not (received := ranks.from_first(content)):
        return None
    tensors, facts = tensor_file.unpack(received, config.init, ours=True)
    return Body(config.init, facts["network"], tensors)


def body_of(learner: Learner, origin: str) -> Body:
    """Return the body with which a learner begins a task: mapped by g, with low-rank updates."""
    model = copy.deepcopy(learner.model)
    with torch.no_grad():
        if learner.geometry.moves_start:
            prepared = learner.geometry.prepare(None)
            begun = learner.geometry.begin(learner.theta(), prepared, learner.noise(0))
            for name, value in learner.geometry.primal(begun).items():
                model.get_parameter(name).copy_(value)
        named: Params = dict(model.named_parameters()) | merged_weights(model)
    inserted = [name for name, module in model.named_modules() if isinstance(module, LowRank)]
    left_out = tuple(f"{name}." for name in (head_of(model), *inserted))
    tensors = {n: t.detach() for n, t in named.items() if not n.startswith(left_out)}
    return Body(origin, config_of(model) or {}, tensors)


def fill_body(model: nn.Module, body: Body) -> None:
    """Put a body into a network, in place; its head stays as it is."""
    own = config_of(model) or {}
    apart = [
        f"{name} {body.network.get(name)}, not {own.get(name)}"
        for name in {**own, **body.network}
        if name not in OF_THE_HEAD and own.get(name) != body.network.get(name)
    ]
    if apart:
        raise ValueError(
            f"init is {body.origin}, whose network has {' and '.join(apart)}: give both runs the "
            f"same model, width, image_size and kind of data"
        )
    head = f"{head_of(model)}."
    named = {n: p for n, p in model.named_parameters() if not n.startswith(head)}
    for name, p in named.items():
        given = body.tensors.get(name)
        if given is None or given.shape != p.shape:
            found = "none" if given is None else f"one of shape {tuple(given.shape)}"
            raise ValueError(
                f"init is {body.origin}, which has {found} for {name} of shape {tuple(p.shape)}: "
                f"start from a run of the same network"
            )
        p.data.copy_(given)
