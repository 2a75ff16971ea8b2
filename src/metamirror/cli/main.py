"""The command line. A user's mistake ends with exit code 2 and a line that says what to do."""

import contextlib
import functools
import importlib
import io
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from metamirror._version import __version__
from metamirror.cli.arguments import bound
from metamirror.console import say
from metamirror.parallel.allocator import memory_ran_out, tune_allocator
from metamirror.training.config import RunConfig, load_config
from metamirror.training.divergence import DivergedError
from metamirror.training.user_modules import import_modules, import_plugins, modules_named

COMMANDS = {
    "methods": ("runs:methods", "list the methods, with their papers and extra parameters"),
    "data list": ("data:list_data", "list the data sets, and which of them are installed"),
    "data add": ("data:add_data", "install a data set"),
    "data check": ("data:check_data", "compare an installed data set with its checksums"),
    "data show": ("data:show_data", "draw a sample task"),
    "pretrain": ("pretrain:pretrain", "train a network on labels, as a start for train --init"),
    "train": ("runs:train", "meta-train one method and leave a run folder"),
    "evaluate": ("runs:evaluate", "adapt a trained run to new tasks and report the mean"),
    "convergence": ("experiments:convergence", "draw loss and gradient norm at each inner step"),
    "report": ("experiments:report", "write one HTML page from a folder of runs"),
    "cost": ("experiments:cost", "measure the time and memory of each method here"),
    "inspect": ("runs:inspect", "report whether a learned geometry is a mirror map"),
    "compare": ("experiments:compare", "train methods under one protocol, write the table"),
    "compare --status": ("cluster:show_status", "show what a comparison runs, and where"),
    "compare --stop": ("cluster:stop", "end a comparison, from any terminal"),
    "quickstart": ("experiments:quickstart", "train the paper's methods on built-in letters"),
    "embed": ("adapt:embed", "write the features that a frozen network gives a data set"),
    "adapt": ("adapt:adapt", "adapt a trained start to labelled images of your own"),
    "predict": ("adapt:predict", "classify images with an adapted model"),
    "export": ("adapt:export", "write an adapted model as ONNX or for torch"),
    "playground": ("adapt:playground", "serve a page on which to draw and classify"),
}
"""Where each command is, so that only the modules of the one that runs are imported; a summary."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        import_plugins()
        parse(sys.argv[1:] if arguments is None else arguments)()
    except BrokenPipeError:
        # The reader has seen enough, as in `metamirror methods | head`: nothing to report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, MemoryError) as error:
        # Under torchrun several processes may complain, each for itself.
        rank = f"rank {os.environ['RANK']}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        say(f"{rank}{error or 'memory ran out'}")
        # A run that has diverged was asked for rightly, and is no mistake in the words.
        return 1 if isinstance(error, DivergedError) else 2
    except RuntimeError as error:
        if not memory_ran_out(error):
            raise
        say(f"memory ran out: {str(error).splitlines()[0]}")
        return 2
    except KeyboardInterrupt as stop:
        say("interrupted")
        return getattr(stop, "code", 130)
    return 0


def parse(arguments: Sequence[str]) -> Callable[[], None]:
    """Return the command that the arguments ask for, ready to run."""
    words = list(arguments)
    if words == ["--version"]:
        versions = f"Python {platform.python_version()}, torch {torch.__version__}"
        return functools.partial(print, f"metamirror {__version__} ({versions})")
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:count]), words[count:]
    if name not in COMMANDS:
        return _listing(words)
    room, _, attribute = COMMANDS[name][0].partition(":")
    module = importlib.import_module(f"metamirror.cli.{room}")
    command: Callable[..., Any] = bound(getattr(module, attribute))
    continues = name in ("train", "pretrain")
    if (continues or name == "compare") and (base := _base_settings(rest, continues=continues)):
        command = functools.partial(command, settings=module.settings_of(base))
    # What is typed may be imported; what a file names may not.
    known = continues or name in ("compare", "evaluate")
    own = modules_named(_typed(rest)) if known else []
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            call: Callable[[], None] = tyro.cli(
                command, prog=f"metamirror {name}", args=rest, config=(tyro.conf.SuppressFixed,)
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


def _listing(words: list[str]) -> Callable[[], None]:
    """Return what prints the commands, or those of a group; refuse a name that is none."""
    group = [name for name in COMMANDS if words[:1] == [name.split()[0]]]
    if words[len(group[:1]) :][:1] not in (["--help"], ["-h"]):
        given = f"there is no command {' '.join(words[:2])!r}" if words else "no command is given"
        raise ValueError(f"{given}; choose from {', '.join(group or COMMANDS)}, or add --help")
    lines = [f"  {name:<16} {COMMANDS[name][1]}" for name in group or COMMANDS]
    return functools.partial(
        print,
        "usage: metamirror COMMAND [OPTIONS]\n",
        "Meta-learning with learned loss geometries. COMMAND --help says more about each:\n",
        *lines,
        "\n  --version        print the versions of metamirror, Python and torch",
        sep="\n",
    )


def entry() -> None:
    """Run the installed `metamirror` command."""
    tune_allocator()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What an old terminal cannot show, such as ±, must not cost the result that it stands in.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
