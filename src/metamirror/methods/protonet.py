"""Prototypical networks: the nearest class mean of learned features, without an inner step.

The head is `start=prototypes`, whose logits are the negative squared distances to the class means
up to a term that all classes share. What is learned is the body. With `steps` above 0 gradient
descent goes on from that head, which is `protomaml`.
"""

from metamirror.methods.maml import build
from metamirror.methods.registry import Method

METHOD = Method(
    key="protonet",
    title="ProtoNet",
    optimizer="none: class means",
    geometry="none",
    paper="Snell, Swersky, Zemel 2017",
    reported="49.42 ± 0.78 / 68.20 ± 0.66, conv4-64, trained with 30 and 20 ways",
    build=build,
    defaults={"start": "prototypes", "steps": 0},
    group="relative",
)
