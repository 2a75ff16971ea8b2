"""Packages that are not required: imported where they are asked for."""

import importlib
from importlib.util import find_spec
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Return a module of an optional package; refuse in one line where it is not installed."""
    package = module.split(".")[0]
    if not is_installed(package):
        raise ValueError(f"{package} is not installed: pip install 'metamirror[{extra}]'")
    return importlib.import_module(module)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        found = find_spec(package)
    except ValueError:  # it was put among the imported modules by hand
        return True
    # Without a file it is a folder of that name, such as the `wandb` that W&B leaves where it ran.
    return found is not None and found.origin is not None
