"""An adapted model for other programs: ONNX, or torch's own exported program.

What is in the graph: exchange of dark and light, the network with its adapted parameters and fixed
statistics, the outputs of the task's classes alone, temperature and softmax. What is not: reading,
cropping and scaling of pictures, which `estimators.inputs.images` does before.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metamirror._version import __version__
from metamirror.core.normalisation import Statistics, fixed_statistics
from metamirror.estimators.base import FewShotEstimator, picture_shape
from metamirror.estimators.in_turn import in_turn
from metamirror.estimators.labels import classes_to_json
from metamirror.estimators.sklearn_api import not_fitted
from metamirror.models.conv4 import ConvBlock
from metamirror.storage.atomic import write_atomically

Format = Literal["onnx", "torch"]
FACTS = "metamirror.json"
"""The name of the extra file that an exported program of torch carries."""


ANY_BATCH = ({0: torch.export.Dim("batch", min=1)},)


class AdaptedModule(nn.Module):
    """An adapted model as one module without state: examples in, probabilities or values out."""

    def __init__(self, estimator: FewShotEstimator):
        super().__init__()
        adapted, learner = estimator.adapted_, estimator.learner_
        names = {module: name for name, module in learner.model.named_modules()}
        with in_turn(learner):
            self.model = copy.deepcopy(learner.model).cpu().eval().requires_grad_(False)
        own = dict(self.model.named_parameters())
        for name, value in adapted.params.items():
            own[name].copy_(value)
        for module in self.model.modules():
            if isinstance(module, ConvBlock):
                # The same function in operations that every exporter knows.
                module.fused = False
        self.norms: list[tuple[str, int]] = []
        for norm, uses in (adapted.statistics or {}).items():
            self.norms.append((names[norm], len(uses)))
            for use, pair in enumerate(uses):
                for part, value in zip(("mean", "var"), pair, strict=True):
                    self.register_buffer(_buffer(names[norm], use, part), value.cpu().clone())
        self.invert = bool(getattr(estimator.reader_, "invert", False))
        classes = getattr(estimator, "classes_", None)
        self.classes = None if classes is None else len(classes)
        self.temperature = float(getattr(estimator, "temperature_", 1.0))

    def forward(self, x: Tensor) -> Tensor:
        with fixed_statistics(self._statistics()):
            output: Tensor = self.model(1 - x if self.invert else x)
        if self.classes is None:
            return output
        return (output[:, : self.classes] / self.temperature).softmax(1)

    def _statistics(self) -> Statistics:
        modules: dict[str, Any] = dict(self.model.named_modules())
        return {
            modules[name]: [
                (
                    self.get_buffer(_buffer(name, use, "mean")),
                    self.get_buffer(_buffer(name, use, "var")),
                )
                for use in range(uses)
            ]
            for name, uses in self.norms
        }


def export(estimator: FewShotEstimator, path: Path, form: Format) -> None:
    """Writes a fitted estimator as an ONNX file or as torch's exported program (.pt2).

    Either takes batches of any size, and says in its metadata what goes in and what comes out.
    """
    if not hasattr(estimator, "adapted_"):
        raise not_fitted(estimator)
    if form not in get_args(Format):
        raise ValueError(f"format is {form!r}; choose from {', '.join(get_args(Format))}")
    content = _onnx if form == "onnx" else _torch
    write_atomically(path, content(estimator))


def describe(estimator: FewShotEstimator) -> dict[str, Any]:
    """What goes into an exported model and what comes out."""
    shape = list(estimator.support_.x.shape[1:])
    pictures = picture_shape(estimator.learner_.model) is not None
    facts: dict[str, Any] = {"metamirror": __version__, "input": ["batch", *shape]}
    if pictures:
        facts["values"] = "pictures as floats in 0..1, channels first"
        if getattr(estimator.reader_, "ink", False):
            facts["values"] += "; what is drawn on them in the middle, light on dark"
    if hasattr(estimator, "classes_"):
        facts["classes"] = classes_to_json(estimator.classes_)
    return facts


def _example(estimator: FewShotEstimator) -> tuple[Tensor]:
    """Two examples: one would make the exporters take the size of a batch for a constant."""
    first = estimator.support_.x[:1].cpu()
    return (torch.cat([first, first]),)


def _torch(estimator: FewShotEstimator) -> bytes:
    content = io.BytesIO()
    with _quiet(), torch.no_grad():
        program = torch.export.export(
            AdaptedModule(estimator), _example(estimator), dynamic_shapes=ANY_BATCH
        )
        facts = {FACTS: json.dumps(describe(estimator))}
        torch.export.save(program, content, extra_files=facts)
    return content.getvalue()


def _onnx(estimator: FewShotEstimator) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 - what torch's exporter is built on
    except ImportError as error:
        raise ValueError("ONNX needs an extra: pip install 'metamirror[export]'") from error
    output = "probabilities" if hasattr(estimator, "classes_") else "values"
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            AdaptedModule(estimator),
            _example(estimator),
            input_names=["x"],
            output_names=[output],
            dynamic_shapes=ANY_BATCH,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    words = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in describe(estimator).items()
    }
    onnx.helper.set_model_props(proto, words)
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def _buffer(name: str, use: int, part: str) -> str:
    return f"statistics_{name.replace('.', '_')}_{use}_{part}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks to their own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
