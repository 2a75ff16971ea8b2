"""An adapted model for other programs: ONNX, or torch's own exported program.

What is in the graph: exchange of dark and light, the network with its adapted parameters and fixed
statistics, the outputs of the task's classes alone, temperature and softmax. What is not: reading,
cropping and scaling of images, which `estimators.inputs.images` does before.
"""

import copy
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from metamirror._version import __version__
from metamirror.core.files import write_atomically
from metamirror.core.learner import averaged
from metamirror.core.normalisation import fixed_statistics
from metamirror.estimators.base import FewShotEstimator, fitted_model
from metamirror.estimators.fitting import FittedModel, lock_of, named_statistics, statistics_of
from metamirror.estimators.inputs.images import Images
from metamirror.estimators.labels import classes_to_json
from metamirror.models.conv4 import ConvBlock

Format = Literal["onnx", "torch"]
FACTS = "metamirror.json"  # the name of the extra file that an exported program of torch carries
ANY_BATCH = ({0: torch.export.Dim("batch", min=1)},)


class AdaptedModule(nn.Module):
    """An adapted model as one module without state: examples in, probabilities or values out."""

    def __init__(self, fitted: FittedModel):
        super().__init__()
        adapted, learner = fitted.adapted, fitted.learner
        statistics = named_statistics(learner.model, adapted.statistics)
        with lock_of(learner):
            model = copy.deepcopy(learner.model).cpu().eval().requires_grad_(False)
        for module in model.modules():
            if isinstance(module, ConvBlock):
                # The same function in operations that every exporter knows.
                module.fast = False
        self.members = nn.ModuleList(copy.deepcopy(model) for _ in adapted.members)
        for member, params in zip(self.members, adapted.members, strict=True):
            own = {**dict(member.named_parameters()), **dict(member.named_buffers())}
            for name, value in params.items():
                # Not copied into it: what was computed from the support set may have another shape.
                own[name].data = value.detach().cpu().clone()
        self.buffers_of = {name: "statistics_" + name.replace(".", "_") for name in statistics}
        for name, buffer in self.buffers_of.items():
            self.register_buffer(buffer, statistics[name].cpu().clone())
        self.invert = isinstance(fitted.reader, Images) and bool(fitted.reader.invert)
        self.classes = None if fitted.classes is None else len(fitted.classes)
        self.temperature = fitted.temperature or 1.0

    def forward(self, x: Tensor) -> Tensor:
        named = {name: self.get_buffer(buffer) for name, buffer in self.buffers_of.items()}
        outputs: list[Tensor] = []
        for member in self.members:
            with fixed_statistics(statistics_of(member, named)):
                outputs.append(member(1 - x if self.invert else x))
        output: Tensor = averaged(outputs, self.classes is not None)
        if self.classes is None:
            return output
        return (output[:, : self.classes] / self.temperature).softmax(1)


def export(estimator: FewShotEstimator, path: Path, form: Format) -> None:
    """Write a fitted estimator, for batches of any size, as ONNX or torch's exported program."""
    fitted = fitted_model(estimator)
    if form not in get_args(Format):
        raise ValueError(f"format is {form!r}; choose from {', '.join(get_args(Format))}")
    # Two examples: one would make the exporters take the size of a batch for a constant.
    examples = fitted.support.x[[0, 0]].cpu()
    content = _onnx if form == "onnx" else _torch
    # The exporters' remarks are for their own developers.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            write_atomically(path, content(AdaptedModule(fitted), examples, describe(fitted)))
    finally:
        logger.setLevel(level)


def describe(fitted: FittedModel) -> dict[str, Any]:
    """Return what goes into an exported model and what comes out."""
    shape = fitted.support.x.shape[1:]
    facts: dict[str, Any] = {"metamirror": __version__, "input": ["batch", *shape]}
    if isinstance(fitted.reader, Images):
        facts["values"] = "images as floats in 0..1, channels first"
        if fitted.reader.ink:
            facts["values"] += "; what is drawn on them in the middle, light on dark"
    if fitted.classes is not None:
        facts["classes"] = classes_to_json(fitted.classes)
    return facts


def _torch(module: AdaptedModule, examples: Tensor, facts: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    program = torch.export.export(module, (examples,), dynamic_shapes=ANY_BATCH)
    torch.export.save(program, content, extra_files={FACTS: json.dumps(facts)})
    return content.getvalue()


def _onnx(module: AdaptedModule, examples: Tensor, facts: dict[str, Any]) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401 - what torch's exporter is built on
    except ImportError as error:
        raise ValueError("ONNX needs an extra: pip install 'metamirror[export]'") from error
    program = torch.onnx.export(
        module,
        (examples,),
        input_names=["x"],
        output_names=["values" if module.classes is None else "probabilities"],
        dynamic_shapes=ANY_BATCH,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    words = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
    }
    onnx.helper.set_model_props(proto, words)
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content
