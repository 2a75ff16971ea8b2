"""Packages that are not required: imported where they are asked for."""

import importlib
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Return a module of an optional package; refuse in one line where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise ValueError(
            f"{module.split('.')[0]} is not installed: pip install 'metamirror[{extra}]'"
        ) from None
