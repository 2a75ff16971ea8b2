"""The pages of docs/gallery/, from the scripts of examples/gallery/.

    python tools/gallery.py                    # says which pages are out of date
    python tools/gallery.py --write            # writes them
    python tools/gallery.py --run [NAME ...]   # runs the scripts first: minutes on one core

A run leaves the figures in docs/gallery/, and what each cell prints in results/gallery/NAME.json,
beside the JSON files that the script writes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from metamirror.core.files import read_json, write_atomically, write_json

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"
PAGES = ROOT / "docs" / "gallery"
RESULTS = ROOT / "results" / "gallery"
NAMES = ("sinusoid", "letters", "photographs", "own_geometry", "learned_map", "comparing")
FIGURE = re.compile(r'\.savefig\("([\w.]+)"')


class Cell(NamedTuple):
    is_code: bool
    text: str
    listed: bool = True
    """Whether the page shows its code; `# %% [not listed]` is for plumbing, whose output counts."""


def cells(source: str) -> list[Cell]:
    r"""Return the cells of a script in the percent format.

    >>> _, code = cells("# %% [markdown]\n# # A title\n#\n# Words.\n\n# %%\nprint(1)\n")
    >>> code
    Cell(is_code=True, text='print(1)', listed=True)
    """
    found = []
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        is_code = kind.strip() != "[markdown]"
        text = text if is_code else re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        found.append(Cell(is_code, text.strip("\n"), kind.strip() != "[not listed]"))
    return found


def fingerprint(source: str) -> str:
    """Return the SHA-256 of the code: words may change without another run."""
    code = "\n".join(cell.text for cell in cells(source) if cell.is_code)
    return hashlib.sha256(code.encode()).hexdigest()


def run(name: str) -> None:
    """Run a script cell by cell in a folder of its own, and keep figures and output."""
    import matplotlib

    matplotlib.use("agg")
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # figures without a date
    source = (SCRIPTS / f"{name}.py").read_text()
    space: dict[str, Any] = {"__name__": "__main__"}
    outputs, began = [], sum(os.times()[:4])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with matplotlib.rc_context({"svg.hashsalt": name}):
            for cell in cells(source):
                if cell.is_code:
                    with contextlib.redirect_stdout(io.StringIO()) as printed:
                        exec(compile(cell.text, f"{name}.py", "exec"), space)
                    outputs.append(printed.getvalue().strip())
        PAGES.mkdir(exist_ok=True)
        for figure in FIGURE.findall(source):
            shutil.copy(figure, PAGES)
        RESULTS.mkdir(parents=True, exist_ok=True)
        for numbers in Path().glob("*.json"):
            shutil.copy(numbers, RESULTS)
    record = {
        "command": f"python tools/gallery.py --run {name}",
        "code": fingerprint(source),
        "processor_seconds": round(sum(os.times()[:4]) - began, 1),  # with those it started
        "outputs": outputs,
    }
    write_json(RESULTS / f"{name}.json", record)


def page(name: str) -> str:
    """Return the page of a script: words, listings, what they print, and figures."""
    source = (SCRIPTS / f"{name}.py").read_text()
    record = read_json(RESULTS / f"{name}.json")
    if record["code"] != fingerprint(source):
        raise ValueError(f"{name}.py has changed: python tools/gallery.py --run {name}")
    outputs = iter(record["outputs"])
    parts = []
    for cell in cells(source):
        if not cell.is_code:
            parts.append(cell.text)
            continue
        if cell.listed:
            # Not ```python: the tests of the pages would run it again.
            parts.append(f"``` {{ .python }}\n{cell.text}\n```")
        if printed := next(outputs):
            parts.append(f"``` {{ .text .output }}\n{printed}\n```")
        # A link to the file: on a phone the figure is small, and alone it can be enlarged.
        parts += [f"[![{described(source, f)}]({f})]({f})" for f in FIGURE.findall(cell.text)]
    parts.append(
        f"The whole script: `examples/gallery/{name}.py`. "
        f"Output: `results/gallery/{name}.json`, by "
        f"`{record['command']}`, {record['processor_seconds']:.0f} seconds of one core."
    )
    return "\n\n".join(parts) + "\n"


def described(source: str, figure: str) -> str:
    """Return a figure's description for those who do not see it: the script's title."""
    return f"Figure {figure} of: {cells(source)[0].text.splitlines()[0].strip('# ')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the pages")
    parser.add_argument("--run", nargs="*", choices=NAMES, metavar="NAME", help="run scripts first")
    given = parser.parse_args()
    names = given.run or NAMES
    if given.run is not None:
        for name in names:
            run(name)
    writes = given.write or given.run is not None
    old = []
    for name in names:
        file, new = PAGES / f"{name}.md", page(name)
        if not file.exists() or file.read_text() != new:
            old.append(name)
            if writes:
                write_atomically(file, new.encode())
    if old and not writes:
        sys.exit(f"out of date: {', '.join(old)}; python tools/gallery.py --write")


if __name__ == "__main__":
    main()
