"""The model of a learner: what of it adapts, and how it runs with given parameters."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metamirror.core.attention import AttentionWatch, plain_attention
from metamirror.core.derivatives import Trial, brief, check_derivatives
from metamirror.core.layer_calls import recorded_calls
from metamirror.core.model_checks import check_model
from metamirror.core.normalisation import (
    BatchNorm,
    Statistics,
    averaging_norms,
    fixed_statistics,
    recorded_statistics,
    torch_norms,
    use_plain_weight_norm,
)
from metamirror.core.settings import Settings
from metamirror.core.tasks import Batch, Params
from metamirror.core.trees import Tree, leaves, mapped, registered


class Predictor(nn.Module):
    """A model that runs with parameters from outside.

    Args:
        model: any module.
        adapts: names of the parameters that adapt; by default all that require a gradient.
        computed: those of them that are computed for each task: their own values rest.
    """

    settings: Settings

    def __init__(self, model: nn.Module, adapts: Iterable[str] | None, computed: Sequence[str]):
        super().__init__()
        check_model(model)
        use_plain_weight_norm(model)
        self.model = model
        self.draws_noise = False
        """Whether the model was seen to draw random numbers, as a dropout layer does."""
        self.attends = True
        """Whether it may call fused attention; False once it was seen to run without."""
        self.joint = False
        """Whether examples belong together, as the nodes of a graph: two do not run alone."""
        self._tried: set[tuple[Any, ...]] = set()
        self._outputs: dict[tuple[Any, ...], int] = {}

        learned = {n for n, p in model.named_parameters() if p.requires_grad or n in computed}
        if isinstance(adapts, str):
            raise ValueError(f"adapts is {adapts!r}; give a list of names, or use make_learner")
        wanted = learned if adapts is None else set(adapts)
        if wanted - learned:
            raise ValueError(
                f"{sorted(wanted - learned)} cannot adapt: the model's learned parameters "
                f"are {sorted(learned)}"
            )
        if not wanted:
            raise ValueError("no parameter adapts: the model has none that requires a gradient")
        self.adapts = [name for name, _ in model.named_parameters() if name in wanted]
        for name in computed:
            model.get_parameter(name).requires_grad_(False)

    @property
    def norm(self) -> str:
        """Whose statistics normalise the query."""
        return self.settings.norm

    @property
    def is_ours(self) -> bool:
        """Whether the model is one of the library's, which needs no trial."""
        return type(self.model).__module__.startswith("metamirror.")

    def check_layers(self, settings: Settings) -> None:
        """Refuse settings that a layer of the model cannot serve."""
        batch_norms = torch_norms(self.model)
        if settings.norm == "inductive" and len(batch_norms) > len(averaging_norms(self.model)):
            raise ValueError(
                f"{batch_norms[0]} of torch.nn cannot take the support set's statistics, and has "
                f"no averages of a training either: pass the model through "
                f"metamirror.models.convert_batch_norm, or use norm='transductive'"
            )

    def train(self, mode: bool = True) -> Self:
        """Switch training mode; where norm is inductive, torch's batch averages stay in use."""
        super().train(mode)
        self.keep_averages()
        return self

    def keep_averages(self) -> None:
        """Let torch's batch normalisations use their averages, where norm is inductive."""
        if self.norm == "inductive":
            for layer in averaging_norms(self.model):
                layer.eval()

    def theta(self) -> Params:
        """Return the learned parameters that adapt: phi^(0), or its dual z^(0)."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.adapts}

    def fixed(self) -> Params:
        """Return the model's parameters that do not adapt, outside the graph."""
        return {
            name: p.detach() for name, p in self.model.named_parameters() if name not in self.adapts
        }

    def predict(self, phi: Params, x: Tree, statistics: Statistics | None = None) -> Any:
        """Return the model's output with parameters phi, for inputs as in `Batch`."""
        # Buffers are passed as copies: a layer that updates its own must not leave traces.
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        low = self.settings.autocast
        precision: AbstractContextManager[object] = nullcontext()
        if low is not None:
            # Without its cache: inner parameters are new tensors at every step.
            precision = torch.autocast(leaves(x)[0].device.type, low, cache_enabled=False)
        # Inside transforms nobody knows how often a result is differentiated.
        nested = self.attends and torch._C._are_functorch_transforms_active()
        attention = plain_attention() if nested else nullcontext()
        args = x if type(x) is tuple else () if type(x) is dict else (x,)
        kwargs = x if type(x) is dict else {}
        with fixed_statistics(statistics) if statistics else nullcontext(), precision, attention:
            output = functional_call(self.model, {**buffers, **phi}, args, kwargs)
        if low is None:
            return output
        # A loss is computed in full precision, whatever the model ran in.
        own = next(iter(phi.values())).dtype
        return mapped(
            lambda t: t.to(own) if isinstance(t, Tensor) and t.is_floating_point() else t,
            registered(output),
        )

    def layer_input(
        self, layer: str, phi: Params, x: Tree, statistics: Statistics | None = None
    ) -> Tensor:
        """Return what one layer is given when the model runs with parameters phi."""
        with recorded_calls(self.model, layer) as calls:
            self.predict(phi, x, statistics)
        if len(calls) != 1:
            raise ValueError(
                f"the layer {layer!r} is called {len(calls)} times when the model runs; a head "
                f"that is computed must be called once"
            )
        return calls[0][0]

    def statistics(self, phi: Params, support: Batch) -> Statistics | None:
        """Return the support set's statistics for normalisation at phi; None if transductive."""
        if self.norm == "transductive":
            return None
        if not any(isinstance(module, BatchNorm) for module in self.model.modules()):
            return {}
        with recorded_statistics() as recorded:
            self.predict(phi, support.x)
        return recorded

    def outputs(self, x: Tree) -> int:
        """Return how many numbers the model gives for each of such examples, or for each place.

        A model whose output is not one tensor gives 0: the loss alone knows what it means.
        """
        parts = leaves(x)
        key = (*((t.shape[1:], t.dtype, t.device) for t in parts), self.model.training)
        if key in self._outputs:
            return self._outputs[key]
        try:
            output = self._seen_output(twice(x))
        except Exception as error:
            try:
                output = self._seen_output(x)
                self.joint = True
            except Exception:
                forms = " and ".join(
                    f"shape {tuple(t.shape[1:])} and type {t.dtype}" for t in parts
                )
                raise ValueError(
                    f"the model does not take an example of {forms}: {brief(error)}"
                    f"{self._advice(x, error)}"
                ) from error
        single = isinstance(output, Tensor)
        self._outputs[key] = (output.shape[1] if output.dim() > 1 else 1) if single else 0
        return self._outputs[key]

    def _advice(self, x: Tree, error: Exception) -> str:
        """Return what to do about inputs that the model does not take, where it is known."""
        own = next(iter(self.theta().values())).dtype
        if isinstance(error, TypeError) and type(x) is dict:
            return "; a dict is given as keywords, and ({..},) as one argument"
        if any(t.is_floating_point() and t.dtype != own for t in leaves(x)):
            return f"; the model is {own}: convert the examples, as x.to({own}) does"
        return ""

    def _seen_output(self, x: Tree) -> Any:
        """Return the output for some examples, and note what the model does beside."""
        given = mapped(lambda t: t.clone(), x)
        # A layer that draws noise must not shift the random state of what follows.
        quiet = warnings.catch_warnings(action="ignore")  # it will warn again
        with torch.no_grad(), torch.random.fork_rng(), quiet, AttentionWatch() as watch:
            before = torch.get_rng_state()
            output = self.predict(self.theta(), given)
            if not torch.equal(before, torch.get_rng_state()):
                self.draws_noise = True
        self.attends = watch.seen or (self.attends and bool(self._outputs))
        pairs = zip(leaves(x), leaves(given), strict=True)
        if not all(t.is_meta or torch.equal(t, now) for t, now in pairs):
            raise ValueError("it changes its input in place, as x.mul_(2) does for x * 2")
        return output

    def check_derivatives(self, x: Tree, *, once: bool = False) -> None:
        """Refuse a model that torch cannot differentiate as the settings need, or `once`."""
        trial = self.trial(x if self.joint else twice(x))
        if once:
            trial = replace(trial, twice=False, vectorize=False)
        key = (trial.twice, trial.vectorize, self.model.training)
        # Inside a transform of torch.func a trial of its own cannot run.
        inside = torch._C._are_functorch_transforms_active()
        if key in self._tried or inside or leaves(x)[0].device.type == "meta":
            return
        with torch.random.fork_rng():
            check_derivatives(self.model, trial)
        self._tried.add(key)

    def trial(self, x: Tree) -> Trial:
        """Return a trial of the derivatives that these settings need."""
        s, theta = self.settings, self.theta()
        again = s.adjoint.differentiates_twice
        predict = without_fusion(self.predict) if again else self.predict
        rest: Params = {n: p for n, p in self.model.named_parameters() if n not in theta}
        return Trial(predict, theta, x, again, s.vectorize, rest)


def twice(x: Tree) -> Tree:
    """Return the first example two times: torch's batch normalisation does not train on one."""
    return mapped(lambda t: torch.cat([t[:1], t[:1]]), x)


def without_fusion(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, in which attention has second derivatives."""

    def run(phi: Params, x: Any) -> Any:
        with plain_attention():
            return predict(phi, x)

    return run
