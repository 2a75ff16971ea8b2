"""What people type: commands, and the small languages inside their arguments."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from hypothesis import strategies as st

import tests.warm  # noqa: F401 - what a command imports is no write of its own
from metamirror.cli.main import COMMANDS, main, parse
from metamirror.cli.runs import default_folder
from metamirror.core import priors
from metamirror.data.image_tasks import augmentation
from metamirror.data.path_spec import absolute
from metamirror.data.sizes import as_count
from metamirror.experiments.comparison.spec import read_counts, read_methods, read_per_row
from metamirror.experiments.cost import parse_shape
from metamirror.methods import METHODS, find_method
from metamirror.training.config import RunConfig
from metamirror.training.device import choose_device
from tests.data import sources
from tests.faults.damage import ODD_WORDS
from tests.faults.fuzzing import Target
from tests.faults.of_runs import write

FLAGS = [
    *(
        "--method",
        "--data",
        "--ways",
        "--shots",
        "--steps",
        "--lr",
        "--config",
        "--out",
        "--resume",
    ),
    *("--seed", "--norm", "--device", "--model", "--width", "--json", "--tasks", "--split"),
    *("--first-order", "--no-first-order", "--from", "--data-dir", "--support", "--image-size"),
    *(
        "--methods",
        "--seeds",
        "--jobs",
        "--search",
        "--port",
        "--host",
        "--minutes",
        "--help",
        "-h",
    ),
    *("--nothing", "--", "-x", "--out=", "--config=", "--lr=nan", "--tyro-write-completion"),
]
WORDS = st.one_of(
    st.sampled_from([*COMMANDS, "list", "add", "check", "show", *METHODS, "sinusoid", "omniglot"]),
    st.sampled_from(FLAGS),
    st.sampled_from(["5", "-1", "0.01", "1e400", "None", "True", "1,5", "best", "transductive"]),
    ODD_WORDS.filter(lambda word: "\0" not in word),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)
LINES = st.tuples(st.sampled_from([*COMMANDS]), st.lists(WORDS, max_size=7)).map(
    lambda line: [*line[0].split(), *line[1]]
)


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[io.StringIO]:
    """In a folder of its own, with its own data, unheard but for the complaints."""
    before, said = os.getcwd(), io.StringIO()
    os.chdir(folder)
    try:
        with (
            patch.dict(os.environ, {"METAMIRROR_HOME": str(folder / "home"), "COLUMNS": "200"}),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(said),
        ):
            yield said
    finally:
        os.chdir(before)


def read_line(folder: Path, words: list[str]) -> str:
    """Understands a command without running it."""
    with at_home(folder):
        try:
            parse(words)
        except SystemExit as stop:
            if stop.code:
                raise AssertionError(f"exit code {stop.code}") from stop
            return "help"
    return "understood"


QUICK = (
    *("methods", "evaluate", "inspect", "report", "convergence", "adapt", "predict", "export"),
    "data",
)
"""Commands that end by themselves, whatever they are given."""
ARGUMENTS = st.sampled_from(
    [
        *("nothing", "file", "folder", "empty", "run", "a.png", "broken.png", ".", "..", "/", ""),
        *("list", "check", "show", "add", "omniglot", "cub", "folder:folder", "folder:empty"),
        *("glyphs-maml", "--support", "folder", "--out", "out", "file/out", "--from", "--json"),
        *("--tasks", "2", "1", "--split", "train", "--steps", "-1", "--which", "last", "--device"),
        *(
            "cpu",
            "meta",
            "cuda:9",
            "--invert",
            "--format",
            "torch",
            "--seed",
            "--lr",
            "1e30",
            "nan",
        ),
    ]
)
RUNNABLE = st.tuples(st.sampled_from(QUICK), st.lists(ARGUMENTS | WORDS, max_size=6)).map(
    lambda line: [line[0], *line[1]]
)


def run_line(folder: Path, words: list[str]) -> str:
    if not (folder / "run").exists():
        write(folder / "file", b"not much")
        write(folder / "run" / "config.json", b'{"method": "maml"}')
        write(folder / "a.png", sources.picture(3))
        write(folder / "broken.png", sources.picture(3)[:40])
        write(folder / "folder" / "x" / "a.png", sources.picture(3))
        write(folder / "folder" / "y" / "b.png", sources.picture(9))
        (folder / "empty").mkdir()
    if "glyphs" in words:
        return "left out: letters would be drawn first"
    with at_home(folder) as said:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code or 0
    assert code in (0, 2), (code, said.getvalue())
    assert "Traceback" not in said.getvalue()
    if code == 2:
        assert said.getvalue().strip().startswith("metamirror:"), said.getvalue()
    return f"exit code {code}"


def read_words(folder: Path, word: str) -> str:
    """Every small language, one after the other."""
    readers = [
        find_method,
        lambda w: find_method(w)[0].make_options(find_method(w)[1]),
        *(lambda w, kind=kind: absolute(f"{kind}:{w}") for kind in ("folder", "arrays", "hf")),
        lambda w: as_count("ways", w),
        lambda w: default_folder(RunConfig(w, data=w)),
        lambda w: priors.make(w, {}),
        augmentation,
        choose_device,
        parse_shape,
        read_methods,
        lambda w: read_counts("shots", w),
        lambda w: read_per_row("lr", w, 0.1, ["maml"]),
    ]
    understood = 0
    for read in readers:
        with contextlib.suppress(ValueError):
            read(word)
            understood += 1
    # A folder may be called anything.
    return "understood" if understood > 4 else "refused by all"


SMALL = st.one_of(
    st.lists(
        st.sampled_from(
            [
                *("maml", "blockiaf", "metasgd", "gradnet", ":", "=", ",", "variant", "released"),
                *("positive", "true", "folder", "/", "isotropic", "0.1", "nan", "1e999", "x", "3"),
                *("cuda", "flip", "shift", "omniglot", "-", " ", "é", "split_seed", "9" * 5000),
            ]
        ),
        max_size=7,
    ).map("".join),
    st.text(max_size=20),
)

TARGETS = [
    Target("command line, understood", LINES, read_line, weight=0.25),
    Target("command line, run", RUNNABLE, run_line, weight=0.1),
    Target("words of options", SMALL, read_words, weight=6),
]
