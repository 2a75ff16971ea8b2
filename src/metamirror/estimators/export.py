"""An adapted model for other programs: ONNX, or torch's own exported program.

What is in the graph: for images their scaling and cropping, exchange of dark and light; a frozen
network, if there is one and it can be (docs/deploy.md); the network with its adapted parameters and
fixed statistics, the outputs of the task's classes alone, temperature and softmax. What is not:
decoding of files, and the search for ink.
"""

import copy
import importlib.util
import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from metamirror._version import __version__
from metamirror.console import say
from metamirror.core.adapted import averaged
from metamirror.core.files import write_atomically
from metamirror.core.normalisation import fixed_statistics
from metamirror.estimators.backbones.backbone import Backbone, FeatureModule
from metamirror.estimators.backbones.model_files import OnnxNetwork
from metamirror.estimators.backbones.onnx_merge import MergeError, Pixels, Rows, check, merged
from metamirror.estimators.backbones.opening import Frozen
from metamirror.estimators.backbones.tokens import Tokens
from metamirror.estimators.base import FewShotEstimator, fitted_model
from metamirror.estimators.fitting import FittedModel, FixedStatistics, lock_of, named_statistics
from metamirror.estimators.inputs.images import Images, Reader
from metamirror.estimators.inputs.raw import RawImages
from metamirror.estimators.labels import classes_to_json
from metamirror.models.conv4 import ConvBlock

Format = Literal["onnx", "torch"]
FACTS = "metamirror.json"  # the name of the extra file that an exported program of torch carries
BYTES = "bytes in 0..255: images of any size, red, green and blue last"
BATCH = {0: torch.export.Dim("batch", min=1)}
ANY_SIZE = {1: torch.export.Dim("height", min=1), 2: torch.export.Dim("width", min=1)}
RAW = torch.zeros(2, 40, 50, 3, dtype=torch.uint8)

_one_at_a_time = threading.Lock()  # exporters change what belongs to the whole process


class AdaptedModule(nn.Module):
    """An adapted model as one module without state: examples in, probabilities or values out.

    Args:
        fitted: the model.
        reader: what is done with its inputs first, if other than what its graph can hold.
    """

    def __init__(self, fitted: FittedModel, reader: nn.Module | None = None):
        super().__init__()
        adapted, learner = fitted.adapted, fitted.learner
        with lock_of(learner):
            model = copy.deepcopy(learner.model).cpu().eval().requires_grad_(False)
        use_plain_blocks(model)
        self.members = nn.ModuleList(copy.deepcopy(model) for _ in adapted.members)
        for member, params in zip(self.members, adapted.members, strict=True):
            own = {**dict(member.named_parameters()), **dict(member.named_buffers())}
            for name, value in params.items():
                # Not copied into it: what was computed from the support set may have another shape.
                own[name].data = value.detach().cpu().clone()
        self.statistics = FixedStatistics(named_statistics(learner.model, adapted.statistics))
        self.reader = in_graph(fitted.reader) if reader is None else reader
        self.classes = None if fitted.classes is None else len(fitted.classes)
        self.temperature = fitted.temperature or 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.reader(x)
        outputs: list[Tensor] = []
        for member in self.members:
            with fixed_statistics(self.statistics.of(member)):
                outputs.append(member(x))
        output: Tensor = averaged(outputs, self.classes is not None)
        if self.classes is None:
            return output
        return (output[:, : self.classes] / self.temperature).softmax(1)


def in_graph(reader: Reader) -> nn.Module:
    """Return what is done with the examples first, as far as a graph can do it."""
    if isinstance(reader, Images):
        return RawImages(reader.channels, reader.size, bool(reader.invert), reader.crop)
    if isinstance(reader, Backbone) and reader.is_module:
        features = FeatureModule(reader)
        use_plain_blocks(features)
        raw = RawImages(reader.channels, reader.size, False, reader.crop)
        return nn.Sequential(raw, features)
    return nn.Identity()


def use_plain_blocks(model: nn.Module) -> None:
    """Let a model compute the same function in operations that every exporter knows."""
    for module in model.modules():
        if isinstance(module, ConvBlock):
            module.fast = False


def export(estimator: FewShotEstimator, path: Path, form: Format) -> None:
    """Write a fitted estimator, for batches of any size, as ONNX or torch's exported program."""
    write_atomically(path, exported(fitted_model(estimator), form))


def exported(fitted: FittedModel, form: Format) -> bytes:
    """Return the content of the file that `export` writes."""
    if form not in get_args(Format):
        raise ValueError(f"format is {form!r}; choose from {', '.join(get_args(Format))}")
    if form == "onnx" and (missing := missing_extra()):
        raise ValueError(missing)
    reader, why = fitted.reader, ""
    with _exporting():
        if isinstance(reader, Backbone) and isinstance(reader.network, OnnxNetwork):
            why = " (an ONNX network fits into ONNX alone)"
            if form == "onnx":
                try:
                    return _onnx_around(fitted, reader, reader.network)
                except MergeError as error:
                    why = f" ({error})"
        module, in_front = AdaptedModule(fitted), takes_images(reader)
        if isinstance(reader, Frozen) and not in_front:
            what = "tokens" if isinstance(reader, Tokens) else "images"
            say(
                f"note: what is exported takes features of {reader.name}, and no {what}{why}: run "
                f"that before it"
            )
        # Two examples: one would make the exporters take the size of a batch for a constant.
        examples, shapes = fitted.support.x[[0, 0]].cpu(), BATCH
        if in_front:
            examples, shapes = RAW, BATCH | ANY_SIZE
        facts = describe(fitted)
        if form == "torch":
            return _torch(module, examples, shapes, facts)
        proto = _onnx(module, examples, shapes, "images" if in_front else "x", _output(fitted))
        return _finished(proto, facts)


@contextmanager
def _exporting() -> Iterator[None]:
    """Let one exporter at a time work, without remarks, which are for its own developers."""
    logger = logging.getLogger("torch.onnx")
    with _one_at_a_time, warnings.catch_warnings(action="ignore"), torch.no_grad():
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def takes_images(reader: Reader) -> bool:
    """Return whether a module of ours goes from raw images to predictions."""
    return isinstance(reader, Images) or (isinstance(reader, Backbone) and reader.is_module)


def describe(fitted: FittedModel, merged: bool = False) -> dict[str, Any]:
    """Return what goes into an exported model, into which its network was merged, and comes out."""
    reader = fitted.reader
    facts: dict[str, Any] = {"metamirror": __version__}
    in_front = merged or takes_images(reader)
    if in_front:
        assert isinstance(reader, Backbone | Images)
        facts |= {"input": ["batch", "height", "width", 3], "values": BYTES}
        part = f"the middle {reader.crop:g} of " * (reader.crop < 1)
        grey = " in grey" * (reader.channels == 1)
        inverted = ", dark for light" * bool(getattr(reader, "invert", False))
        facts["preprocessing"] = (
            f"in the graph: {part}the middle square, by Lanczos to {reader.size} x {reader.size} "
            f"pixels{grey}{inverted}, divided by 255"
        )
    if isinstance(reader, Backbone) and in_front:
        facts["preprocessing"] += (
            f", less {reader.mean}, divided by {reader.std}; then the features of {reader.name}"
        )
    elif isinstance(reader, Images):
        if reader.ink:
            facts["preprocessing"] += (
                "; before it, what is drawn has to be found, as "
                "metamirror.estimators.inputs.ink.drawn_on does: light on dark, in the middle"
            )
    else:
        facts["input"] = ["batch", *fitted.support.x.shape[1:]]
        facts["values"] = str(fitted.support.x.dtype).removeprefix("torch.")
        if backbone := getattr(reader, "name", None):
            facts["values"] += f", the features that {backbone} gives"
    if fitted.classes is not None:
        facts["classes"] = classes_to_json(fitted.classes)
    return facts


def missing_extra() -> str | None:
    """Return what to do before models can become ONNX, if anything."""
    # onnxscript is what torch's exporter is built on.
    found = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript"))
    return None if found else "ONNX needs an extra: pip install 'metamirror[export]'"


def _torch(module: nn.Module, examples: Tensor, shapes: Any, facts: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    program = torch.export.export(module, (examples,), dynamic_shapes=(shapes,))
    torch.export.save(program, content, extra_files={FACTS: json.dumps(facts)})
    return content.getvalue()


def _onnx_around(fitted: FittedModel, backbone: Backbone, network: OnnxNetwork) -> bytes:
    """Return a file with the graph of an ONNX network inside, or raise a MergeError."""
    rows = Rows(backbone, network, fitted.support.x.dtype)
    before = _onnx(Pixels(backbone, network), RAW, BATCH | ANY_SIZE, "images", "pixels")
    # Each image and its mirror image are two.
    shapes = {0: 2 * BATCH[0]} if backbone.flip else BATCH
    after = _onnx(AdaptedModule(fitted, rows), rows.examples, shapes, "output", _output(fitted))
    content = _finished(merged(before, network, after), describe(fitted, merged=True))
    check(content, backbone, AdaptedModule(fitted), rows.kind)
    return content


def _output(fitted: FittedModel) -> str:
    return "values" if fitted.classes is None else "probabilities"


def _onnx(module: nn.Module, examples: Tensor, shapes: Any, name: str, output: str) -> Any:
    program = torch.onnx.export(
        module,
        (examples,),
        input_names=[name],
        output_names=[output],
        dynamic_shapes=(shapes,),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _finished(proto: Any, facts: dict[str, Any]) -> bytes:
    """Return the content of an ONNX file with what is known of it."""
    import onnx

    words = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
    }
    onnx.helper.set_model_props(proto, words)
    if "classes" in facts:
        _name_the_likeliest(proto.graph, [str(label) for label in facts["classes"]])
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def _name_the_likeliest(graph: Any, labels: list[str]) -> None:
    """Add an output, the likeliest label of each example: JavaScript sees no metadata."""
    from onnx import TensorProto, helper

    strings = np.array([label.encode() for label in labels], dtype=object)
    names = helper.make_tensor("class_names", TensorProto.STRING, [len(labels)], strings)
    graph.initializer.append(names)
    graph.node.append(
        helper.make_node("ArgMax", ["probabilities"], ["likeliest"], axis=1, keepdims=0)
    )
    graph.node.append(helper.make_node("Gather", ["class_names", "likeliest"], ["label"]))
    graph.output.append(helper.make_tensor_value_info("label", TensorProto.STRING, ["batch"]))
