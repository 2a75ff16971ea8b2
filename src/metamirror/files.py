"""Files that are either the old ones or the new ones, never something between."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Writes to a temporary file, flushes it to disk, and renames it over the target."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder outlive a power failure, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_json(value: Any) -> str:
    """One JSON document, readable by people. JSON has no NaN or infinity: null stands for them."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON document."""
    write_atomically(path, (to_json(value) + "\n").encode())


def read_json(path: Path) -> Any:
    """One JSON document; a damaged one is named."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
