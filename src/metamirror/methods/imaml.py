r"""iMAML: gradient descent towards the minimiser of loss plus prior, differentiated implicitly.

The lower level is $L(\phi) + \frac\lambda2 |\phi - \theta|^2$, and the adjoint `implicit`: the
meta-gradient v solves $(I + H_L/\lambda)\, v = \nabla L(\phi^{(K)}; \mathrm{query})$, nearly, by a
few steps of conjugate gradients, whatever path led to $\phi^{(K)}$.

The released code takes its steps on the loss alone and one step towards $\theta$ at the end, and
divides $H_L$ by $\lambda + 10$; here both are as published. Its other settings: 16 steps of size
0.01, five of conjugate gradients with damping 1, and $\lambda = 1$.
"""

from dataclasses import dataclass

from torch import nn

from metamirror.core.priors import Isotropic
from metamirror.core.settings import Settings
from metamirror.methods.registry import Method, Parts


@dataclass(frozen=True)
class Options:
    """Options of `imaml`; those of the adjoint follow as in `imaml:adjoint=implicit:cg=10`.

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
    build=build,
    options=Options,
    defaults={"adjoint": "implicit"},
    group="relative",
)
