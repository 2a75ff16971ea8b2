"""MetaOptNet: a support vector machine on learned features, without an inner step.

The head is `start=svm`, solved to convergence for each task and differentiated through its
optimality conditions; the scale of its logits is learned with the body. With `steps` above 0
gradient descent goes on from that head.
"""

from metamirror.methods.maml import build
from metamirror.methods.registry import Method

METHOD = Method(
    key="metaoptnet",
    title="MetaOptNet",
    optimizer="none: SVM",
    geometry="none",
    paper="Lee, Maji, Ravichandran, Soatto 2019",
    reported="62.64 ± 0.61 / 78.63 ± 0.46, ResNet-12",
    build=build,
    defaults={"start": "svm", "steps": 0},
    group="relative",
)
