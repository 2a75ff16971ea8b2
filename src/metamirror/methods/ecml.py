r"""ECML: gradient descent from a start whose Gauss-Newton matrix is taught to be well conditioned.

The outer level minimises

$$L(\phi^{(K)}; \mathrm{query})
        + \gamma \cdot \frac1K \sum_{k<K} \mathrm{Var}_i \log\lambda_i(\phi^{(k)}),$$

with $\lambda$ the non-zero eigenvalues of $JJ^\top$ and J the Jacobian of the support outputs in a
subset of the parameters. For the head alone $JJ^\top = (FF^\top + 11^\top) \otimes I$ with F the
head's inputs: an eigenproblem of the size of the support set.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from metamirror.core.episode import Episode
from metamirror.core.layer_calls import recorded_calls
from metamirror.core.settings import Settings
from metamirror.core.tasks import Params, precise
from metamirror.methods.named_parameters import parameters_of
from metamirror.methods.registry import Method, Parts
from metamirror.models import head_of


@dataclass(frozen=True)
class Options:
    """Options of `ecml`.

    Attributes:
        gamma: weight of the condition loss; 0 is MAML. To be chosen on validation tasks.
        floor: what is added to each eigenvalue, relative to the largest one. Without it the
            logarithms of eigenvalues near zero dominate the condition loss.
        subset: parameters in which the Jacobian is taken: those of the head, or all that adapt.
        outputs: "logits", or the "residuals" of the softmax.
        closed_form: use the head's closed form where it holds, instead of the Jacobian.
        head: name of the head; by default the last linear layer.
    """

    gamma: float = 0.01
    floor: float = 1e-4
    subset: Literal["head", "all"] = "head"
    outputs: Literal["logits", "residuals"] = "logits"
    closed_form: bool = True
    head: str | None = None


class ConditionedQueryLoss:
    """The query loss plus gamma times the condition loss at every point a gradient is taken at."""

    def __init__(self, options: Options, head: str | None, head_parameters: list[str]):
        self.options = options
        self.head = head
        self.head_parameters = head_parameters

    def __call__(self, episode: Episode) -> Tensor:
        path = episode.descend(keep=True)
        loss = episode.query_loss(path.phi)
        visited = path.points[:-1]
        if self.options.gamma == 0 or not visited:
            return loss
        conditions = [self.condition(episode, phi) for phi in visited]
        return loss + self.options.gamma * torch.stack(conditions).mean()

    def condition(self, episode: Episode, phi: Params) -> Tensor:
        """Return Var_i log lambda_i at phi."""
        found = self._head_gram(episode, phi)
        gram, rank = self._jacobian_gram(episode, phi) if found is None else found
        found_loss = log_eigenvalue_variance(gram, rank, self.options.floor)
        return found_loss.to(next(iter(phi.values())).dtype)

    def _head_gram(self, episode: Episode, phi: Params) -> tuple[Tensor, int] | None:
        """Return JJ' up to the factor kron I, and its rank; None where the closed form fails.

        It holds where the logits are the head's one output, as it came, and its weight and bias are
        its own: tied ones reach the logits by another way too.
        """
        o = self.options
        weight, bias = f"{self.head}.weight", f"{self.head}.bias"
        if o.subset != "head" or o.outputs != "logits" or not o.closed_form or weight not in phi:
            return None
        with recorded_calls(episode.inner.model, str(self.head)) as calls:
            logits = episode.inner.predict(phi, episode.task.support.x)
        if len(calls) != 1 or calls[0][1] is not logits or logits.dim() != 2:
            return None
        features = precise(calls[0][0])
        gram, rank = features @ features.mT, features.shape[1]
        if bias in phi:
            gram, rank = gram + 1, rank + 1
        return gram, min(features.shape[0], rank)

    def _jacobian_gram(self, episode: Episode, phi: Params) -> tuple[Tensor, int]:
        names = self.head_parameters if self.options.subset == "head" else list(phi)
        rest = {name: p for name, p in phi.items() if name not in names}

        def outputs(chosen: Params) -> Tensor:
            logits: Tensor = episode.inner.predict({**rest, **chosen}, episode.task.support.x)
            # The residual's one-hot part is constant: only the softmax has a derivative.
            return logits if self.options.outputs == "logits" else logits.softmax(-1)

        jacobian = torch.func.jacrev(outputs)({name: phi[name] for name in names})
        shapes = {name: phi[name].dim() for name in names}
        outputs_shape = next(j.shape[: j.dim() - shapes[n]] for n, j in jacobian.items())
        examples, ways = outputs_shape[0], outputs_shape[1:].numel()
        if self.options.outputs == "residuals" and ways < 2:
            raise ValueError("ecml:outputs is 'residuals', which need two classes: use 'logits'")
        rows = torch.cat([j.reshape(examples * ways, -1) for j in jacobian.values()], 1)
        rows = precise(rows)
        # Softmax outputs sum to one: each example has one exact null direction.
        independent = examples * (ways - (self.options.outputs == "residuals"))
        rank = min(independent, rows.shape[1])
        if self.options.subset == "head" and self.options.outputs == "logits":
            rank = min(rank, rows.shape[1] // ways * ways)
        return rows @ rows.mT, rank


def log_eigenvalue_variance(gram: Tensor, rank: int, floor: float = 0.0) -> Tensor:
    """Return the variance of the logarithms of the non-zero eigenvalues, at most `rank` of them.

    Zero and the floor are relative to the largest one, so that the value does not change when the
    Jacobian is scaled; examples that repeat, or features that are all off, take eigenvalues away.
    """
    values = torch.linalg.eigvalsh(gram)[-rank:]
    smallest = values[-1] * (10 * gram.shape[-1] * torch.finfo(gram.dtype).eps)
    present = values > smallest
    logs = torch.where(present, values + floor * values[-1], 1).log()
    count = present.sum().clamp_min(1)
    mean = logs.sum() / count
    variance: Tensor = torch.where(present, logs - mean, 0).square().sum() / count
    return variance


def build(model: nn.Module, options: Options, settings: Settings) -> Parts:
    """Add the condition loss to MAML's objective."""
    if not 0 <= options.gamma < float("inf"):
        raise ValueError(f"ecml:gamma is {options.gamma}; it must be finite and at least 0")
    if not 0 <= options.floor < 1:
        raise ValueError(f"ecml:floor is {options.floor}; it must lie in [0, 1)")
    if options.subset == "all":
        return Parts(model, objective=ConditionedQueryLoss(options, None, []))
    head = options.head or head_of(model)
    everywhere = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    if any(everywhere.count(id(p)) > 1 for p in model.get_submodule(head).parameters()):
        options = replace(options, closed_form=False)
    objective = ConditionedQueryLoss(options, head, parameters_of(model, head))
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
    group="paper",
)
