"""Files that are either the old ones or the new ones, never something between."""

import contextlib
import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, flush it to disk, and rename it over the target."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # A full disk names no file of its own accord.
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    finally:
        # Where it could not be made it cannot be removed, and the first error is the one to tell.
        with contextlib.suppress(OSError):
            temporary.unlink()


def expanded(path: str | Path) -> Path:
    """Return the path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} names nobody's home folder: write the path in full") from error


def file_name(words: str) -> str:
    """Return words as part of a file's name.

    >>> file_name("blockiaf:variant=released")
    'blockiaf-variant-released'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "-", words)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing. Call it while holding the folder's lock."""
    for temporary in folder.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a loss of power, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(path: Path, kind: str) -> str:
    """Return the checksum of a file, md5 or sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return an indented JSON document, with null for NaN and infinities."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document."""
    write_atomically(path, (to_json(value) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read one JSON document; an error names a damaged file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
