"""One safetensors file that carries a few facts as JSON, and a checksum over all of it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

KEY = "metamirror"
"""One entry of metadata: safetensors writes several in an order that changes from run to run."""


class DamagedFileError(ValueError):
    """A file that does not hold what was written to it."""


def pack(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Return the content of a file. Facts are what JSON can hold; floats come back bit for bit.

    >>> content = pack({"w": torch.ones(2)}, {"step": 3})
    >>> unpack(content, "a file")
    ({'w': tensor([1., 1.])}, {'step': 3})
    """
    plain = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
    words = json.dumps(dict(facts), allow_nan=False)
    return safetensors.torch.save(plain, {KEY: f"{_digest(plain, words)} {words}"})


def unpack(
    content: bytes, name: object, *, ours: bool = False, most_words: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and facts; a file that was changed after it was written is refused by name.

    A plain safetensors file, as other programs write them, has no checksum and no facts: where the
    file must be one of `ours`, that is damage. More than `most_words` letters of JSON are too.
    """
    try:
        tensors = safetensors.torch.load(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
        if KEY not in metadata and not ours:
            return tensors, {}
        digest, _, words = metadata.get(KEY, "").partition(" ")
        if not digest:
            raise ValueError("its checksum is missing")
        if digest != _digest(tensors, words):
            raise ValueError("its checksum does not fit its content")
        if most_words is not None and len(words) > most_words:
            raise ValueError(f"{len(words):,} letters of JSON in its header")
        facts = json.loads(words)
        if not isinstance(facts, dict):
            raise ValueError(f"its facts are {type(facts).__name__}")
    except Exception as error:  # whatever its header made safetensors, torch or json stumble on
        reason = str(error) or type(error).__name__
        raise DamagedFileError(f"{name} is damaged: {reason}") from error
    return tensors, facts


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and unpack a file."""
    try:
        return unpack(file.read_bytes(), file)
    except FileNotFoundError as error:
        raise ValueError(f"there is no {file}") from error


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the content of a tensor. numpy does not know every type of torch."""
    # A copy: an axis of length 1 may have any stride, which no view of bytes takes.
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1)
    return flat.view(torch.uint8).numpy().data


def _digest(tensors: Mapping[str, Tensor], words: str) -> str:
    digest = hashlib.sha256(words.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(as_bytes(tensor))
    return digest.hexdigest()
