r"""ECML: gradient descent from a start whose Gauss-Newton matrix is taught to be well conditioned.

The outer level minimises

$$L(\phi^{(K)}; \mathrm{query})
        + \gamma \cdot \frac1K \sum_{k<K} \mathrm{Var}_i \log\lambda_i(\phi^{(k)}),$$

with $\lambda$ the non-zero eigenvalues of $JJ^\top$ and J the Jacobian of the support outputs in a
subset of the parameters. For the head alone $JJ^\top = (FF^\top + 11^\top) \otimes I$ with F the
head's inputs: an eigenproblem of the size of the support set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from metamirror.geometry import State
from metamirror.methods.anil import parameters_of
from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of
from metamirror.types import Batch, Params, Task

if TYPE_CHECKING:
    from metamirror.learner import Learner


@dataclass(frozen=True)
class Options:
    """Options of `ecml`.

    Attributes:
        gamma: weight of the condition loss; 0 is MAML. To be chosen on validation tasks.
        subset: parameters in which the Jacobian is taken: those of the head, or all that adapt.
        outputs: "logits", or the "residuals" of the softmax.
        closed_form: use the head's closed form where it applies (head, logits).
        head: name of the head; by default the last linear layer.
    """

    gamma: float = 0.01
    subset: Literal["head", "all"] = "head"
    outputs: Literal["logits", "residuals"] = "logits"
    closed_form: bool = True
    head: str | None = None


class ConditionedQueryLoss:
    """The query loss plus gamma times the condition loss at every point a gradient is taken at."""

    def __init__(self, options: Options, head: str, head_parameters: list[str]):
        self.options = options
        self.head = head
        self.head_parameters = head_parameters

    def __call__(self, learner: Learner, task: Task, state: State) -> Tensor:
        path = learner.descend(task.support, state, keep=True)
        loss = learner.query_loss(path.phi, task)
        visited = path.points[:-1]
        if self.options.gamma == 0 or not visited:
            return loss
        conditions = [self.condition(learner, phi, task.support) for phi in visited]
        return loss + self.options.gamma * torch.stack(conditions).mean()

    def condition(self, learner: Learner, phi: Params, support: Batch) -> Tensor:
        """Var_i log lambda_i at phi."""
        o = self.options
        if o.subset == "head" and o.outputs == "logits" and o.closed_form:
            gram, rank = self._head_gram(learner, phi, support)
        else:
            gram, rank = self._jacobian_gram(learner, phi, support)
        return log_eigenvalue_variance(gram, rank).to(gram.dtype)

    def _head_gram(self, learner: Learner, phi: Params, support: Batch) -> tuple[Tensor, int]:
        captured: list[Tensor] = []
        layer = learner.model.get_submodule(self.head)
        handle = layer.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
        try:
            learner.predict(phi, support.x)
        finally:
            handle.remove()
        features = captured[-1]
        gram, rank = features @ features.mT, features.shape[1]
        if layer.bias is not None:
            gram, rank = gram + 1, rank + 1
        return gram, min(features.shape[0], rank)

    def _jacobian_gram(self, learner: Learner, phi: Params, support: Batch) -> tuple[Tensor, int]:
        names = self.head_parameters if self.options.subset == "head" else list(phi)
        rest = {name: p for name, p in phi.items() if name not in names}

        def outputs(chosen: Params) -> Tensor:
            logits = learner.predict({**rest, **chosen}, support.x)
            # The residual's one-hot part is constant: only the softmax has a derivative.
            return logits if self.options.outputs == "logits" else logits.softmax(-1)

        jacobian = torch.func.jacrev(outputs)({name: phi[name] for name in names})
        examples, ways = next(iter(jacobian.values())).shape[:2]
        rows = torch.cat([j.reshape(examples * ways, -1) for j in jacobian.values()], 1)
        # Softmax outputs sum to one: each example has one exact null direction.
        independent = examples * (ways - (self.options.outputs == "residuals"))
        rank = min(independent, rows.shape[1])
        if self.options.subset == "head" and self.options.outputs == "logits":
            rank = min(rank, rows.shape[1] // ways * ways)
        return rows @ rows.mT, rank


def log_eigenvalue_variance(gram: Tensor, rank: int) -> Tensor:
    """The population variance of the logarithms of the `rank` largest eigenvalues.

    The floor under an eigenvalue is relative to the largest one, so that the value does not
    change when the Jacobian is scaled.
    """
    # Apple's GPUs have no double precision.
    precise = torch.float32 if gram.device.type == "mps" else torch.float64
    values: Tensor = torch.linalg.eigvalsh(gram.to(precise))[-rank:]
    floor = values[-1] * torch.finfo(precise).eps
    logs = (values.clamp_min(0) + floor).log()
    return logs.var(correction=0)


def build(model: nn.Module, options: Options, lr: float) -> Parts:
    """MAML's inner level, and the condition loss above it."""
    if not 0 <= options.gamma < float("inf"):
        raise ValueError(f"ecml:gamma is {options.gamma}; it must be finite and at least 0")
    head = options.head or head_of(model)
    names = parameters_of(model, head)
    if options.closed_form and not isinstance(model.get_submodule(head), nn.Linear):
        raise ValueError(f"{head} is not an nn.Linear: the closed form needs one")
    objective = ConditionedQueryLoss(options, head, names)
    return Parts(model, objective=objective)


METHOD = Method(
    key="ecml",
    title="ECML",
    optimizer="PGD",
    geometry="Gauss-Newton approximation",
    paper="Hiller, Harandi, Drummond 2022",
    build=build,
    options=Options,
    published={1: "48.94 ± 0.80", 5: "65.26 ± 0.67"},
)
