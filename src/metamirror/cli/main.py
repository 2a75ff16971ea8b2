"""The command line. A user's mistake ends with exit code 2 and a line that says what to do."""

import functools
import io
import os
import platform
import sys
from collections.abc import Callable, Sequence

# Nothing that imports torch: help is there at once, and what else is needed comes with a command.
from metamirror._version import __version__
from metamirror.console import say
from metamirror.parallel.allocator import memory_ran_out, tune_allocator

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
        return getattr(error, "exit_code", 2)
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
        return _show_versions
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    name = " ".join(words[:count])
    if name not in COMMANDS:
        return _listing(words)
    from metamirror.cli.parsing import command
    from metamirror.training.user_modules import import_plugins

    import_plugins()
    return command(name, COMMANDS[name][0], words[count:])


def _show_versions() -> None:
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"metamirror {__version__} ({versions})")


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
