"""Modules of the user: imported where a command names them, never by a file.

A run's config.json records them. It does not have them imported: a configuration is data.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points

from metamirror.console import warn
from metamirror.core.import_path import allow_module, missing, split_path
from metamirror.data.registry import is_own
from metamirror.methods import find_method
from metamirror.models import MODELS
from metamirror.training.config import RunConfig

PLUGINS = "metamirror"
"""The group of entry points whose modules every command imports."""


def import_modules(names: Sequence[str]) -> None:
    """Import modules by name, from the current folder or from what is installed."""
    for name in names:
        allow_module(name)


def import_plugins() -> None:
    """Import the modules that installed packages offer under the entry point `metamirror`."""
    for point in entry_points(group=PLUGINS):
        try:
            allow_module(point.module)
        except ValueError as error:
            warn(f"the plugin {point.name} is left out: {error}")


def modules_named(config: RunConfig) -> list[str]:
    """Return the modules of the import paths among a run's settings."""
    specs = [config.loss, config.query_loss, config.metric]
    specs += [config.model] if config.model and config.model.split(":")[0] not in MODELS else []
    specs += [config.data] if is_own(config.data) else []
    paths = [split_path(spec) for spec in specs if spec is not None]
    return list(dict.fromkeys(path[0] for path in paths if path is not None))


def with_imports(config: RunConfig, imports: Sequence[str]) -> RunConfig:
    """Record the modules that a command was told to import, and those that its settings name."""
    own = [name for name in modules_named(config) if name not in imports]
    return replace(config, imports=(*imports, *own) or config.imports)


def import_flags(config: RunConfig) -> str:
    """Return the flags by which other commands know what a run was trained with."""
    names = dict.fromkeys((*config.imports, *modules_named(config)))
    return " ".join(f"--import {name}" for name in names)


def check_method(config: RunConfig) -> None:
    """Refuse a run whose method, model or data are not known here; say which modules have them."""
    if missing(modules_named(config)):
        raise ValueError(f"the run uses code of your own: add {import_flags(config)}")
    try:
        find_method(config.method)
    except ValueError as error:
        if not config.imports:
            raise
        flags = import_flags(config)
        raise ValueError(f"{error}; the run was trained with {flags}: add {flags}") from error
