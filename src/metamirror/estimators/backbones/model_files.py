"""Networks of other programs as backbones: ONNX files, and programs that torch has exported."""

import copy
import hashlib
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metamirror.estimators.backbones.backbone import Backbone

USUAL_SIZE = 224


def onnx(path: Path) -> Backbone:
    """Return the network of an ONNX file, run by onnxruntime.

    Size and channels are read from its input, mean, std and crop from its metadata where they are.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(
            f"{path} needs onnxruntime, which is not installed: pip install 'metamirror[backbones]'"
        ) from error
    checksum = checksum_of(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=onnxruntime.get_available_providers()
        )
    except Exception as error:  # of onnxruntime's own kinds
        raise ValueError(f"{path} cannot be run: {str(error).splitlines()[0]}") from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or "float" not in inputs[0].type:
        words = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
        raise ValueError(f"{path} takes {words}; a backbone takes images, one tensor of floats")
    shape = inputs[0].shape[1:]
    last = shape[0] not in (1, 3) and shape[2] in (1, 3)
    channels, side = (shape[2], shape[0]) if last else (shape[0], shape[2])
    stated = _stated(session.get_modelmeta().custom_metadata_map, path)
    return Backbone(
        OnnxNetwork(session, last, path, checksum),
        side if isinstance(side, int) else USUAL_SIZE,
        channels=channels if channels in (1, 3) else 3,
        name=str(path),
        fingerprint=checksum,
        **stated,
    )


class OnnxNetwork:
    """A network in a session of onnxruntime, which is opened again where this is unpickled."""

    def __init__(self, session: Any, last: bool, path: Path, checksum: str):
        self.session, self.last = session, last
        self.path, self.checksum = path.resolve(), checksum
        (self.input,), self.output = session.get_inputs(), session.get_outputs()[0].name
        self.half = "float16" in self.input.type
        # Some networks were written for batches of one size.
        batch = self.input.shape[0]
        self.batch = batch if isinstance(batch, int) and batch > 0 else None

    def __call__(self, images: Tensor) -> Tensor:
        kind = np.float16 if self.half else np.float32
        pixels = images.numpy().astype(kind)
        pixels = np.ascontiguousarray(np.moveaxis(pixels, 1, 3)) if self.last else pixels
        size = self.batch or len(pixels)
        # The last batch is filled up.
        missing = np.zeros((-len(pixels) % size, *pixels.shape[1:]), kind)
        parts = np.split(np.concatenate([pixels, missing]), -(-len(pixels) // size))
        found = [self.session.run([self.output], {self.input.name: part})[0] for part in parts]
        rows = torch.from_numpy(np.concatenate(found)[: len(pixels)])
        return rows.movedim(3, 1) if self.last and rows.dim() == 4 else rows

    def __deepcopy__(self, memo: Any) -> "OnnxNetwork":
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (onnx, self.path, self.checksum)


class ProgramNetwork(nn.Module):
    """A program that torch has exported, which is opened again where this is unpickled."""

    def __init__(self, program: nn.Module, path: Path, checksum: str):
        super().__init__()
        self.program, self.path, self.checksum = program, path.resolve(), checksum

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.program(images)
        return found

    def train(self, mode: bool = True) -> "ProgramNetwork":
        return self  # programs have no modes, and some versions of torch refuse to be asked

    def __deepcopy__(self, memo: Any) -> "ProgramNetwork":
        with warnings.catch_warnings(action="ignore"):  # what torch says of its own copies
            return ProgramNetwork(copy.deepcopy(self.program, memo), self.path, self.checksum)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (exported, self.path, self.checksum)


def reopened(how: Callable[[Path], Backbone], path: Path, checksum: str) -> Any:
    """Return the network of a file, which must be the same as before."""
    found = how(path)
    if found.fingerprint != checksum:
        raise ValueError(f"{path} has changed since: fit again")
    return found.network


def checksum_of(path: Path) -> str:
    """Return a checksum of an ONNX file and of the files beside it that hold its weights."""
    content = path.read_bytes()
    digest = hashlib.sha256(content)
    for file in sorted(path.resolve().parent.iterdir()):
        if file.name != path.name and file.name.encode() in content and file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _stated(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("mean", "std", "crop"):
        if name in metadata:
            try:
                found[name] = json.loads(metadata[name])
            except ValueError as error:
                raise ValueError(f"{path} states {name} as {metadata[name]!r}: {error}") from error
    return found


def exported(path: Path) -> Backbone:
    """Return a program that torch.export has saved. Files that hold pickles are refused."""
    _check_archive(path)
    try:
        program = torch.export.load(path)
        example = program.example_inputs
        module = program.module()
    except Exception as error:  # there is no end to what a file can hold
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    images = example[0][0] if example and len(example[0]) == 1 else None
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"{path} was exported for other inputs than images: a backbone takes one tensor "
            f"(images, channels, height, width), and was exported with an example of it"
        )
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    channels, size, _ = images.shape[1:]
    network = ProgramNetwork(module, path, checksum)
    return Backbone(network, size, channels=channels, name=str(path), fingerprint=checksum)


def _check_archive(path: Path) -> None:
    """Refuse an archive in which torch would read pickles, which can run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            configs = [json.loads(archive.read(n)) for n in names if n.endswith(".json")]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no program that torch has exported: {error}") from error
    objects = [n for n in names if n.endswith(".pt") or "custom_obj" in n or "opaque" in n]
    if any(map(_says_pickle, configs)) or any("sample_inputs" not in name for name in objects):
        raise ValueError(
            f"{path} holds pickles, which can run code, and is not opened: export the network "
            f"again with torch {torch.__version__} and contiguous parameters, or as ONNX"
        )


def _says_pickle(config: Any) -> bool:
    """Return whether any part of a configuration, as deep as it may be, asks for a pickle."""
    if isinstance(config, dict):
        return bool(config.get("use_pickle")) or any(map(_says_pickle, config.values()))
    return isinstance(config, list) and any(map(_says_pickle, config))
