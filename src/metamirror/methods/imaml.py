r"""iMAML: gradient descent towards the minimiser of loss plus prior, differentiated implicitly.

The lower level is $L(\phi) + \frac\lambda2 |\phi - \theta|^2$, and the adjoint `implicit`: the
meta-gradient v solves $(I + H_L/\lambda)\, v = \nabla L(\phi^{(K)}; \mathrm{query})$, nearly, by a
few steps of conjugate gradients, whatever path led to $\phi^{(K)}$.

The released code takes its steps on the loss alone and one step towards $\theta$ at the end; here
they are on both, as published. Its settings: $\lambda = 1$, 16 steps of size 0.01, five of
conjugate gradients, and a system $(2 I + H_L / (\lambda + 10))\, v = q$. Up to a factor 2 that is
the default `damping=21` at $\lambda = 1$: $(I + H_L / 22)\, v = q$, whose solution is within a few
per cent of q, the first-order gradient, where $H_L$ has eigenvalues up to about 1. `damping=0` is
the published system. After few steps it follows the gradient of the path worse than a first-order
adjoint does, and learns more slowly.
"""

from dataclasses import dataclass

from torch import nn

from metamirror.core.priors import Isotropic
from metamirror.core.settings import Settings
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `imaml`; those of the adjoint follow as in `imaml:adjoint=implicit:damping=0`.

    Attributes:
        lam: lambda, above 0: how strongly the adapted parameters are held at the start. Steps of
            size lr diverge where lr * lam is above 2.
    """

    lam: float = 1.0


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Hold the adapted parameters at the start by an isotropic prior."""
    if not 0 < options.lam < float("inf"):
        raise ValueError(f"imaml:lam is {options.lam}; it must be finite and above 0")
    return Parts(model, prior=Isotropic(options.lam))


METHOD = Method(
    key="imaml",
    title="iMAML",
    optimizer="GD to a regularised minimum",
    geometry="identity matrix",
    paper="Rajeswaran, Finn, Kakade, Levine 2019",
    reported="49.30 ± 1.88 / –, conv4",
    build=build,
    options=Options,
    defaults={"adjoint": "implicit:damping=21"},
    group="relative",
)
