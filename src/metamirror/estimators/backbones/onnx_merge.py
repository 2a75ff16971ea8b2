"""The graph of an ONNX network between two of ours, as one graph from raw images to predictions.

Ours are modules that torch exports: `Pixels` in front of the network, `Rows` behind it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metamirror.estimators.backbones.backbone import Backbone, pooled
from metamirror.estimators.backbones.model_files import OnnxNetwork, checksum_of
from metamirror.estimators.inputs.raw import RawImages

CLOSE = 1e-2
"""The share by which predictions of the merged graph may differ: half precision rounds."""


class MergeError(ValueError):
    """A network that cannot become part of another graph, and why."""


class Pixels(nn.Module):
    """Raw images in, what an ONNX network takes out."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, network: OnnxNetwork):
        super().__init__()
        self.raw = RawImages(backbone.channels, backbone.size, False, backbone.crop)
        self.flip, self.last, self.batch = backbone.flip, network.last, network.batch
        self.kind = torch.float16 if network.half else torch.float32
        for name in ("mean", "std"):
            values = torch.tensor(getattr(backbone, name))
            self.register_buffer(name, values.view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        pixels = self.raw(images)
        if self.flip:
            pixels = torch.cat([pixels, pixels.flip(-1)])
        pixels = ((pixels - self.mean) / self.std).to(self.kind)
        pixels = pixels.permute(0, 2, 3, 1) if self.last else pixels
        # A batch of a fixed size is filled with copies of one image: see `_one_by_one`.
        return pixels if self.batch is None else _copies(pixels, self.batch)


class Rows(nn.Module):
    """What an ONNX network gives for `Pixels` in, features out."""

    def __init__(self, backbone: Backbone, network: OnnxNetwork, kind: torch.dtype):
        super().__init__()
        self.flip, self.last, self.batch = backbone.flip, network.last, network.batch
        self.kind, self.name = kind, backbone.name
        shape = backbone.channels, backbone.size, backbone.size
        found = network(torch.zeros(4 if self.flip else 2, *shape))
        found = found.movedim(1, 3) if self.last and found.dim() == 4 else found
        self.examples = found if self.batch is None else _copies(found, self.batch)

    def forward(self, output: Tensor) -> Tensor:
        output = output if self.batch is None else output[:, 0]
        output = output.movedim(3, 1) if self.last and output.dim() == 4 else output
        rows = pooled(output.to(self.kind), self.name)
        return rows.unflatten(0, (2, -1)).mean(0) if self.flip else rows


def _copies(rows: Tensor, count: int) -> Tensor:
    """Return (rows, count, ...)."""
    return rows.unsqueeze(1).expand(-1, count, *rows.shape[1:])


def merged(before: Any, network: OnnxNetwork, after: Any) -> Any:
    """Return one model of three: raw images to pixels, the network's file, its output and on."""
    from onnx import compose

    try:
        middle = _opened(network)
        newest = max(_opset(model) for model in (before, middle, after))
        before, middle, after = (_at_opset(model, newest) for model in (before, middle, after))
        for model in (before, middle, after):
            model.ir_version = max(m.ir_version for m in (before, middle, after))
        # Any two graphs may use a name twice; what users see of ours keeps its name.
        before = compose.add_prefix(before, "images/", rename_inputs=False)
        middle = compose.add_prefix(middle, "backbone/")
        after = compose.add_prefix(after, "head/", rename_outputs=False)
        if network.batch is not None:
            _one_by_one(middle)
        found = compose.merge_models(before, middle, _seam(before, middle))
        found = compose.merge_models(found, after, _seam(found, after))
    except Exception as error:  # of onnx's own kinds, and there is no end to what a file can hold
        raise MergeError(_first_line(error)) from error
    # Sizes of the parts: what two of them call "batch" need not be one number.
    del found.graph.value_info[:]
    found.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found.graph.name, found.graph.doc_string = after.graph.name, ""
    found.producer_name, found.producer_version = after.producer_name, after.producer_version
    return found


def check(content: bytes, backbone: Backbone, head: nn.Module, kind: torch.dtype) -> None:
    """Raise a MergeError unless the merged file computes what its parts do."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    raw = RawImages(backbone.channels, backbone.size, False, backbone.crop)
    random = torch.Generator().manual_seed(0)
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        for shape in ((1, 50, 40, 3), (3, 40, 50, 3)):
            images = torch.randint(256, shape, generator=random, dtype=torch.uint8)
            found = session.run(None, {"images": images.numpy()})[0]
            expected = head(backbone.features(raw(images)).to(kind)).numpy()
            # Values of a regressor may be large.
            most = CLOSE * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found, expected, rtol=0, atol=most)
    except AssertionError as error:
        raise MergeError("the merged graph predicts something else") from error
    except Exception as error:  # of onnxruntime's own kinds
        raise MergeError(f"the merged graph does not run: {_first_line(error)}") from error


def _opened(network: OnnxNetwork) -> Any:
    """Return the network's file with its weights, one input and one output."""
    import onnx
    from onnx import inliner

    if checksum_of(network.path) != network.checksum:
        raise ValueError(f"{network.path.name} has changed since")
    # Without functions of its own, which the converter of versions loses.
    model = inliner.inline_local_functions(onnx.load(network.path))
    graph = model.graph
    # Before version 4, files list their weights as inputs, too.
    model.ir_version = max(model.ir_version, 4)
    for values, name in ((graph.input, network.input.name), (graph.output, network.output)):
        kept = [value for value in values if value.name == name]
        del values[:]
        values.extend(kept)
    del graph.value_info[:], model.metadata_props[:]
    for own in model.opset_import:
        own.domain = "" if own.domain == "ai.onnx" else own.domain
    return model


def _opset(model: Any) -> int:
    return next(int(own.version) for own in model.opset_import if own.domain == "")


def _at_opset(model: Any, version: int) -> Any:
    """Return a model in operations of this version."""
    from onnx import version_converter

    if _opset(model) == version:
        return model
    try:
        return version_converter.convert_version(model, version)
    except Exception as error:
        raise MergeError(
            f"its operations, of opset {_opset(model)}, do not become those of opset {version}"
        ) from error


def _one_by_one(model: Any) -> None:
    """Let a network of a fixed batch see one filled batch after another: (any number, batch, ...).

    Constants inside of it may know the size of its batch, so that it cannot be given another.
    """
    from onnx import helper

    whole = type(model.graph)()
    whole.name = model.graph.name
    for ours, theirs in ((whole.input, model.graph.input), (whole.output, model.graph.output)):
        kind = theirs[0].type.tensor_type
        shape = [None] * (1 + len(kind.shape.dim))
        ours.append(helper.make_tensor_value_info(f"all/{theirs[0].name}", kind.elem_type, shape))
    names = [whole.input[0].name], [whole.output[0].name]
    whole.node.append(helper.make_node("Scan", *names, body=model.graph, num_scan_inputs=1))
    model.graph.CopyFrom(whole)


def _seam(first: Any, second: Any) -> list[tuple[str, str]]:
    return [(first.graph.output[0].name, second.graph.input[0].name)]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
