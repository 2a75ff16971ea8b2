r"""What pretraining learns from: the labels of all train classes, by one linear classifier.

The loss is the cross-entropy of $W f(x) + b$ over all train classes, where f is the body of the
learner's model. W and b are trained beside the learner, and end with the run.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metamirror.core.learner import Learner
from metamirror.core.metrics import METRICS
from metamirror.core.normalisation import fused_normalisation
from metamirror.core.tasks import Task
from metamirror.data import TaskStream
from metamirror.data.labelled_batches import LabelledBatches
from metamirror.models import head_of
from metamirror.training.device import place
from metamirror.training.outer_step import OuterGradient
from metamirror.training.source import Source


def make_classifier(learner: Learner, classes: int) -> nn.Linear:
    """Return a linear layer on the features that a learner's head is given."""
    layer = learner.model.get_submodule(head_of(learner.model))
    assert isinstance(layer, nn.Linear)
    return nn.Linear(layer.in_features, classes).to(layer.weight)


class LabelSource(Source):
    """The gradient of a classifier over all train classes, on one batch a step.

    Batch normalisation takes the statistics of the batch, whatever the learner's `norm`, which is
    about tasks: no running averages exist, and tasks bring statistics of their own. To normalise
    most of a batch by a small part of it, as a support set does a query set, gave bodies that were
    no better in inductive tasks.

    Args:
        learner: its body gives the features.
        classifier: what is made of them.
        parameters: those of both, in the order of the gradient.
        batches: the labelled examples.
        stream: tasks of the same classes.
    """

    metric = METRICS["accuracy"]

    def __init__(
        self,
        learner: Learner,
        classifier: nn.Linear,
        parameters: Sequence[Tensor],
        batches: LabelledBatches,
        stream: TaskStream,
    ):
        self.learner, self.classifier, self.parameters = learner, classifier, parameters
        self.batches, self.stream, self.beside = batches, stream, classifier
        self.guessing, self.chance = math.log(batches.classes), 1 / batches.classes
        self.head = head_of(learner.model)

    def gradient(self, step: int, *, stop: bool) -> OuterGradient:
        batch = self.batches[step]
        (x, y), _ = place(Task(batch, batch), self.learner)
        logits = self.classifier(self.features(x))
        loss = F.cross_entropy(logits, y)
        grads = torch.autograd.grad(loss, tuple(self.parameters), materialize_grads=True)
        right = (logits.argmax(1) == y).double().mean().item()
        flat = torch.cat([grad.flatten() for grad in grads])
        return OuterGradient(flat, loss.item(), right, stop, {})

    def features(self, x: Tensor) -> Tensor:
        """Return what the head is given."""
        if x.dim() == 4 and self.learner.settings.autocast:
            x = x.contiguous(memory_format=torch.channels_last)
        with fused_normalisation():
            found = self.learner.layer_input(self.head, self.learner.theta(), x)
        return found.to(self.classifier.weight.dtype)
