"""First-order MAML: MAML whose outer level takes each inner gradient as a constant.

The adapted parameters and the query loss are MAML's. The meta-gradient is that of the query loss at
the adapted parameters, summed over tasks. `adjoint=unrolled` makes it MAML again.
"""

from metamirror.methods.maml import build
from metamirror.methods.registry import Method

METHOD = Method(
    key="fomaml",
    title="FOMAML",
    optimizer="GD",
    geometry="identity matrix",
    paper="Finn, Abbeel, Levine 2017",
    reported="48.07 ± 1.75 / 63.15 ± 0.91, conv4-32, transductive",
    build=build,
    defaults={"adjoint": "first"},
    group="relative",
)
