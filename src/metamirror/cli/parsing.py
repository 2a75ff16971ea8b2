"""The words behind a command's name, as a call of the command."""

import contextlib
import functools
import importlib
import io
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from metamirror.cli.arguments import bound
from metamirror.training.config import RunConfig, load_config
from metamirror.training.user_modules import import_modules, modules_named


def command(name: str, place: str, rest: list[str]) -> Callable[[], None]:
    """Return a command, ready to run.

    Args:
        name: what it is called.
        place: the module of this package and the function in it, as `runs:train`.
        rest: the words behind its name.
    """
    room, _, attribute = place.partition(":")
    module = importlib.import_module(f"metamirror.cli.{room}")
    function: Callable[..., Any] = bound(getattr(module, attribute))
    continues = name in ("train", "pretrain")
    if (continues or name == "compare") and (base := _base_settings(rest, continues=continues)):
        function = functools.partial(function, settings=module.settings_of(base))
    # What is typed may be imported; what a file names may not.
    known = continues or name in ("compare", "evaluate")
    own = modules_named(_typed(rest)) if known else []
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            call: Callable[[], None] = tyro.cli(
                function, prog=f"metamirror {name}", args=rest, config=(tyro.conf.SuppressFixed,)
            )
            return functools.partial(_with_modules, own, call) if own else call
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro draws a box around its complaint, and its hook for another form is not stable yet; a
        # plain line serves terminals and logs alike. The box's title repeats what is in it.
        boxed = re.sub(r"^\u256d.*$", "", complaint.getvalue(), flags=re.MULTILINE)
        plain = re.sub(r"[\u2500-\u257f]|-{3,}", " ", boxed).split()
        raise ValueError(" ".join(plain)) from None


@dataclass
class _Origin:
    """The flags that say which settings the others of `train` or `compare` override."""

    config: Path | None = None
    out: Path | None = None
    resume: bool = False


def _base_settings(words: list[str], *, continues: bool) -> RunConfig | None:
    """Return what flags override: those of a file, or of the run that is to be continued."""
    try:
        origin, _ = tyro.cli(
            _Origin, args=words, return_unknown_args=True, add_help=False, console_outputs=False
        )
    except SystemExit:
        return None  # the command's own parser says what is wrong
    if origin.config is not None:
        return load_config(origin.config)
    if continues and origin.resume and origin.out and (origin.out / "config.json").is_file():
        return load_config(origin.out / "config.json")
    return None


def _with_modules(names: list[str], call: Callable[[], None]) -> None:
    import_modules(names)
    call()


@dataclass
class _Names:
    """The flags of commands that may name something of the user's own."""

    data: str = RunConfig.data
    model: str | None = None
    loss: str | None = None
    query_loss: str | None = None
    metric: str | None = None


def _typed(words: list[str]) -> RunConfig:
    """Return the settings that are named on the command line, whatever a file has."""
    try:
        names, _ = tyro.cli(
            _Names, args=words, return_unknown_args=True, add_help=False, console_outputs=False
        )
    except SystemExit:
        names = _Names()  # the command's own parser says what is wrong
    return RunConfig("maml", **asdict(names))
