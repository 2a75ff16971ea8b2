"""MAML: gradient descent from a learned start, eq. (2) of the paper. Every slot at its default."""

from torch import nn

from metamirror.core.option_spec import NoOptions
from metamirror.core.settings import Settings
from metamirror.methods.registry import Method, Parts


def build(model: nn.Module, options: NoOptions, settings: Settings) -> Parts:
    """Leave every slot at its default."""
    return Parts(model)


METHOD = Method(
    key="maml",
    title="MAML",
    optimizer="GD",
    geometry="identity matrix",
    paper="Finn, Abbeel, Levine 2017",
    build=build,
    published={1: "48.70 ± 1.84", 5: "63.11 ± 0.92"},
    group="paper",
)
