"""R2D2: ridge regression on learned features, in closed form, without an inner step.

The head is `start=ridge`; its penalty and the scale of its logits are learned with the body. With
`steps` above 0 gradient descent goes on from that head.
"""

from metamirror.methods.maml import build
from metamirror.methods.registry import Method

METHOD = Method(
    key="r2d2",
    title="R2D2",
    optimizer="none: ridge regression",
    geometry="none",
    paper="Bertinetto, Henriques, Torr, Vedaldi 2019",
    reported="51.2 ± 0.6 / 68.8 ± 0.1, conv4 of 96 to 512 filters",
    build=build,
    defaults={"start": "ridge", "steps": 0},
    group="relative",
)
