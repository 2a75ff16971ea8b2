r"""MT-net: each layer's output units mixed by a learned T, and masks that choose which units adapt.

T follows a linear map, so $T(Wx + b) = (TW)x + Tb$ and no layer is added to the network: the inner
variable is $(W, b)$, the model runs with $\phi = (TW, Tb)$, and by the chain rule
$W \leftarrow W - \alpha\, m \odot T^\top \nabla_\phi L$. In $V = TW$ the update is preconditioned
by $T\,\mathrm{diag}(m)\,T^\top$.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metamirror.core.geometry import Geometry, moved
from metamirror.core.mirror_map import MirrorMap
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params, tensor_like
from metamirror.methods.registry import Method, Parts
from metamirror.mirror_maps.quadratic import Linear
from metamirror.models import head_of
from metamirror.models.low_rank import LowRank


@dataclass(frozen=True)
class Options:
    """Options of `mtnet`.

    Attributes:
        masks: sample a mask per task; without, this is T-net.
        head: mix and mask the head's outputs too.
        mask_logit: where the masks' logits start. At 4 a unit adapts with probability 0.98; at 0,
            as released, with 1/2, which costs accuracy until the logits are learned.
        temperature: of the Gumbel-softmax that the masks' gradient goes through.
    """

    masks: bool = True
    mask_logit: float = 4.0
    head: bool = True
    temperature: float = 1.0


class MaskedState(NamedTuple):
    """The untransformed parameters, T of each layer, and the masks of this task."""

    z: Params
    transforms: Params
    masks: Params


class TransformedGeometry(Geometry[MaskedState]):
    """T-layers folded into the parameters, and straight-through Gumbel masks on output units.

    A head that the start computes is the untransformed one.

    Args:
        layers: for each mixed layer, its output units and the names of its weight and bias.
        masks: whether masks are drawn.
        mask_logit: where their logits start.
        temperature: of the relaxation behind the masks' gradient.
    """

    moves_start = True

    def __init__(
        self,
        layers: dict[str, tuple[int, list[str]]],
        masks: bool,
        mask_logit: float,
        temperature: float,
    ):
        super().__init__()
        if not abs(mask_logit) < float("inf"):
            raise ValueError(f"mtnet:mask_logit is {mask_logit}; it must be finite")
        if not 0 < temperature < float("inf"):
            raise ValueError(f"mtnet:temperature is {temperature}; it must be finite, above 0")
        self.stochastic = masks
        self.candidate_note = "with the masks of one draw" if masks else None
        self.temperature = temperature
        self.units = {layer: units for layer, (units, _) in layers.items()}
        self.layer_of = {name: layer for layer, (_, names) in layers.items() for name in names}
        # Layer names hold dots, which a ParameterDict cannot: both lists follow `units`.
        self.transforms = nn.ParameterList(torch.eye(n) for n in self.units.values())
        self.logits = nn.ParameterList(
            torch.full((n,), mask_logit) for n in self.units.values() if masks
        )

    def prepare(self, theta: Params | None) -> Params:
        return dict(zip(self.units, self.transforms, strict=True))

    def draw(self, generator: torch.Generator) -> Params:
        """Draw the difference of two Gumbel variables per unit, a logistic one."""
        uniform = {
            layer: torch.rand(n, generator=generator, dtype=torch.float64)
            for layer, n in self.units.items()
        }
        return {f"noise.{layer}": torch.logit(u, eps=1e-12) for layer, u in uniform.items()}

    def begin(self, theta: Params, prepared: Params, noise: Params) -> MaskedState:
        # Without masks there are no logits.
        logits = zip(self.units, self.logits, strict=False)
        masks = {layer: self._mask(logit, noise[f"noise.{layer}"]) for layer, logit in logits}
        return MaskedState(theta, prepared, masks)

    def _mask(self, logit: Tensor, noise: Tensor) -> Tensor:
        soft = torch.sigmoid((logit + noise) / self.temperature)
        # Exactly 0 or 1 in value, with the gradient of the relaxation.
        return (soft > 0.5).to(soft.dtype) + (soft - soft.detach())

    def primal(self, state: MaskedState) -> Params:
        return self._transformed(state.z, state)

    def _transformed(self, z: Params, state: MaskedState) -> Params:
        mixed = {
            name: _mix(state.transforms[layer], z[name])
            for name, layer in self.layer_of.items()
            if name in z
        }
        return {**z, **mixed}

    def step(
        self, state: MaskedState, grad: Params, *, lr: float, loss: Tensor, k: int
    ) -> MaskedState:
        return state._replace(z=moved(state.z, self._direction(grad, state), lr))

    def _direction(self, grad: Params, state: MaskedState) -> Params:
        found = dict(grad)
        for name, layer in self.layer_of.items():
            if name in grad:
                found[name] = _mix(state.transforms[layer].mT, grad[name])
                if layer in state.masks:
                    mask = state.masks[layer].view(-1, *[1] * (grad[name].dim() - 1))
                    found[name] = mask * found[name]
        return found

    def candidate_mirror_map(self, theta: Params) -> MirrorMap:
        """Return P = T diag(m) T' in V = TW, with the masks of one draw."""
        like = self.transforms[0]
        noise = self.draw(torch.Generator().manual_seed(0)) if self.stochastic else {}
        noise = {name: tensor_like(value, like) for name, value in noise.items()}
        state = self.begin(theta, self.prepare(theta), noise)
        return Linear(lambda v: self._transformed(self._direction(v, state), state))


def _mix(matrix: Tensor, tensor: Tensor) -> Tensor:
    """Mix the output units, the first axis of a weight or bias."""
    return (matrix @ tensor.flatten(1)).view_as(tensor) if tensor.dim() > 1 else matrix @ tensor


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Learn a T for every linear layer and plain convolution."""
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    skipped = head_of(model) if not options.head else None
    layers: dict[str, tuple[int, list[str]]] = {}
    for layer, module in model.named_modules():
        if isinstance(module, LowRank) and id(module.A) in names:
            # Between A and B stand as many units as the update's rank: they are mixed and masked.
            layers[layer] = (len(module.A), [names[id(module.A)]])
        if layer == skipped or not _can_mix(module):
            continue
        bias = [] if module.bias is None else [module.bias]
        owned = [names[id(p)] for p in (module.weight, *bias) if id(p) in names]
        taken = {name for _, others in layers.values() for name in others}
        # A frozen bias cannot be mixed, and a tied weight can be mixed only once.
        if len(owned) == 1 + len(bias) and not taken & set(owned):
            layers[layer] = (module.weight.shape[0], owned)
    if not layers:
        raise ValueError(
            "mtnet finds no linear layer or plain convolution to mix in this model, of which "
            "weight and bias adapt"
        )
    geometry = TransformedGeometry(layers, options.masks, options.mask_logit, options.temperature)
    return Parts(model, geometry)


def _can_mix(module: nn.Module) -> bool:
    """Return whether mixed outputs are again those of a layer of this kind."""
    if isinstance(module, nn.Linear):
        return True
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1


METHOD = Method(
    key="mtnet",
    title="MT-net",
    optimizer="PGD",
    geometry="block diag. matrix",
    paper="Lee, Choi 2018",
    build=build,
    options=Options,
    published={1: "51.70 ± 1.84"},
    group="paper",
    shaped=True,
)
