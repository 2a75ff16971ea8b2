r"""WarpGrad: warp layers between the adapted ones, which the inner level never changes.

They precondition implicitly: the gradient of an adapted layer passes through their Jacobians.
The outer level trains them with the start jointly (one query loss after K steps), or by the
trajectory objective: every point of an adaptation, detached, is evaluated by one further step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from metamirror.core.adjoints import Detached
from metamirror.core.episode import Episode
from metamirror.core.geometry import Inserted, PointState, Preconditioner
from metamirror.core.normalisation import BatchNorm
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params
from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of


@dataclass(frozen=True)
class Options:
    """Options of `warpgrad`.

    Attributes:
        objective: "joint" differentiates the query loss after K steps in the start and the warps;
            "trajectory" replays each visited point for the warps.
        start_rule: under "trajectory", how the start learns: "leap" (along the path) or "maml".
        approximate: under "trajectory", evaluate each visited point without the further step.
        kernel: size of a warp convolution, 1 or 3; linear layers are warped by linear ones.
        batch_norm: batch normalisation in front of each warp.
        activation: a ReLU behind each warp.
        residual: add the warp to its input.
        head: a warp behind the head's outputs too.
        warp_after: names of the modules to warp, or names with the number of channels they put
            out; our own models name theirs.
    """

    objective: Literal["joint", "trajectory"] = "joint"
    start_rule: Literal["leap", "maml"] = "leap"
    approximate: bool = False
    kernel: int = 3
    batch_norm: bool = False
    activation: bool = False
    residual: bool = False
    head: bool = False
    warp_after: Sequence[str] | Mapping[str, int] | None = None


class _Apply:
    """A forward hook that sends a module's output through a warp.

    An object, not a closure, so that a deep copy of the model refers to the copy of the warp.
    """

    def __init__(self, warp: nn.Module):
        self.warp = warp

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        warped: Tensor = self.warp(output)
        return warped


KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Warp(Inserted):
    """A convolution or linear map that starts as the identity, with the options' decorations."""

    def __init__(self, channels: int, kind: type[nn.Module], options: Options):
        super().__init__()
        self.norm = BatchNorm(channels) if options.batch_norm else nn.Identity()
        k = options.kernel
        size = {} if kind is nn.Linear else {"kernel_size": k, "padding": k // 2}
        layer: Any = kind(channels, channels, **size)
        self.map = layer
        self.residual = options.residual
        self.activation = options.activation
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        if not options.residual:
            centre = [k // 2] * (layer.weight.dim() - 2)
            index = torch.arange(channels)
            with torch.no_grad():
                layer.weight[index, index, *centre] = 1

    def forward(self, x: Tensor) -> Tensor:
        warped: Tensor = self.map(self.norm(x))
        if self.residual:
            warped = x + warped
        return warped.relu() if self.activation else warped


def insert_warps(model: nn.Module, options: Options) -> list[str]:
    """Add the warp layers to the model, at its own warp points or where the user says.

    Returns the names of the modules that they are behind.
    """
    points = options.warp_after
    if points is None:
        points = getattr(model, "warp_points", None)
    if points is None:
        raise ValueError(
            f"{type(model).__name__} does not say where warp layers go: pass "
            f"warp_after=[module names], or set model.warp_points"
        )
    named = list(dict.fromkeys([*points, *([head_of(model)] if options.head else [])]))
    found = {name: output_of(model, name) for name in named}
    channels = points if isinstance(points, Mapping) else {}
    like = next(model.parameters())
    for name in named:
        warp = Warp(channels.get(name, found[name][0]), found[name][1], options)
        attach(warp.to(device=like.device, dtype=like.dtype), model.get_submodule(name), name)
    return named


def attach(warp: Warp, module: nn.Module, name: str) -> None:
    """Put a warp behind a module, as its child, so that other parameters keep their names."""
    if isinstance(module, nn.Sequential):
        # Its children run one after the other: the last of them is behind it.
        module.append(warp)
        return
    if hasattr(module, "warp"):
        raise ValueError(f"{name} has an attribute 'warp' already: rename it")
    module.add_module("warp", warp)
    module.register_forward_hook(_Apply(warp))


def output_of(model: nn.Module, name: str) -> tuple[int, type[nn.Module]]:
    """Return channels and kind of a module's output, from its last layer or the one before it.

    An activation or a normalisation has none of its own, so that what stands before it counts.
    """
    modules = list(model.named_modules())
    names = [n for n, _ in modules]
    if name not in names[1:]:
        raise ValueError(f"warp_after names {name!r}; the modules are {names[1:]}")
    last = max(i for i, n in enumerate(names) if n == name or n.startswith(f"{name}."))
    for _, module in reversed(modules[: last + 1]):
        layer: Any = module
        for kind in KINDS:
            if isinstance(module, kind):
                return layer.out_features if kind is nn.Linear else layer.out_channels, kind
    raise ValueError(
        f"warp_after names {name!r}, and neither in it nor before it stands a convolution or "
        f"linear layer to take the number of channels from"
    )


class WarpGeometry(Preconditioner):
    """Gradient descent in the warped network: the geometry is in the model, and no map is known.

    Args:
        warps_head: whether a warp behind the head takes a fixed number of outputs.
    """

    def __init__(self, warps_head: bool):
        super().__init__()
        self.any_outputs = not warps_head

    def direction(self, grad: Params, prepared: None) -> Params:
        return grad


class TrajectoryLoss:
    """Replay for the warps, and Leap or MAML for the start.

    Its value is the mean query loss over the visited points; Leap's part has a gradient only.
    """

    def __init__(self, options: Options):
        self.options = options

    def __call__(self, episode: Episode) -> Tensor:
        path = episode.descend(adjoint=Detached(), keep=True)
        visited = [
            PointState({name: t.detach() for name, t in state.z.items()}) for state in path.states
        ]
        # Without a step there is nothing to replay but the start.
        replayed = visited[:-1] or visited
        losses = [self._replay(episode, point, path.points[0]) for point in replayed]
        replay = torch.stack(losses).mean()
        if self.options.start_rule == "maml":
            # MAML's outer loss, in which only the start has a gradient.
            warps = episode.inner.fixed()
            loss = episode.query_loss({**warps, **episode.descend(fixed=warps).phi})
        else:
            loss = leap_surrogate(episode.state.z, [s.z for s in visited])
        return replay + (loss - loss.detach())

    def _replay(self, episode: Episode, point: PointState, phi0: Params) -> Tensor:
        if self.options.approximate:
            return episode.query_loss(point.z)
        return episode.query_loss(episode.descend(state=point, steps=1, phi0=phi0).phi)


def leap_surrogate(start: Params, visited: Sequence[Params]) -> Tensor:
    r"""Return a scalar with gradient $\sum_k (z_k - z_{k+1}) / \|z_k - z_{k+1}\|$ in the start."""
    total = next(iter(start.values())).new_zeros(())
    for before, after in pairwise(visited):
        change = {name: z - after[name] for name, z in before.items()}
        norm = torch.stack([c.square().sum() for c in change.values()]).sum().sqrt()
        # A step of length zero has no direction: it contributes nothing.
        inverse = torch.where(norm > 0, 1 / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0)
        products = [(start[name] * c).sum() for name, c in change.items()]
        total = total + torch.stack(products).sum() * inverse
    return total


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Add warp layers to the model; everything but them adapts."""
    if options.kernel not in (1, 3):
        raise ValueError(f"warpgrad:kernel is {options.kernel}; choose 1 or 3")
    adapts = [name for name, p in model.named_parameters() if p.requires_grad]
    # Before there are warps, which may be linear layers too.
    head = head_of(model) if any(isinstance(m, nn.Linear) for m in model.modules()) else None
    warped = insert_warps(model, options)
    objective = TrajectoryLoss(options) if options.objective == "trajectory" else None
    return Parts(model, WarpGeometry(head in warped), objective, adapts=adapts)


METHOD = Method(
    key="warpgrad",
    title="WarpGrad",
    optimizer="PGD",
    geometry="NN-based low-rank matrix",
    paper="Flennerhag, Rusu, Pascanu, Visin, Yin, Hadsell 2020",
    build=build,
    options=Options,
    published={1: "52.3 ± 0.8", 5: "68.4 ± 0.6"},
    group="paper",
)
