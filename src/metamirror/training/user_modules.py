"""Modules of the user that register methods: imported where a command names them, never by a file.

A run's config.json records them. It does not have them imported: a configuration is data.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from metamirror.methods import find_method
from metamirror.training.config import RunConfig


def import_modules(names: Sequence[str]) -> None:
    """Import modules by name, from the current folder or from what is installed."""
    here = os.getcwd()
    if names and here not in sys.path and "" not in sys.path:
        # Last, so that a file here hides nothing that is installed; worker processes inherit it.
        sys.path.append(here)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a user's code raises
            missing = isinstance(error, ImportError) and error.name in (name, name.split(".")[0])
            if missing or not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(
                    f"there is no module {name!r} in {here} or among the installed packages: give "
                    f"--import a name as in Python's import, without .py"
                ) from error
            raise ValueError(
                f"importing {name} failed: {type(error).__name__}: {error}; mend the module, or "
                f"leave out --import {name}"
            ) from error


def check_method(config: RunConfig) -> None:
    """Refuse a run whose method is not known here; say which modules defined it."""
    try:
        find_method(config.method)
    except ValueError as error:
        if not config.imports:
            raise
        flags = " ".join(f"--import {name}" for name in config.imports)
        raise ValueError(f"{error}; the run was trained with {flags}: add {flags}") from error
