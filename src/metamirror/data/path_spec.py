"""The user's own data on the command line: `folder:PATH`, `arrays:FILE.npz`, `hf:PATH`."""

import re
from pathlib import Path
from typing import NamedTuple

from metamirror.core.files import expanded

OPTIONS = {
    "folder": ("split_seed",),
    "arrays": ("split_seed",),
    "hf": ("x", "y", "split", "split_seed"),
}
"""What may follow the path of each kind, as in `:split_seed=1`."""


class PathSpec(NamedTuple):
    """Where data are, and what the user said about them."""

    kind: str
    path: Path
    options: dict[str, str]

    @property
    def split_seed(self) -> int:
        """The seed of a random split of the classes."""
        word = self.options.get("split_seed", "0")
        if not re.fullmatch(r"\d{1,18}", word):
            raise ValueError(f"split_seed is {word!r}; give a whole number from 0")
        return int(word)

    def refuse_size(self, image_size: int | None) -> None:
        """Refuse to resize what is used as it is."""
        if image_size is not None:
            raise ValueError(
                f"image_size is {image_size}; {self.kind}:{self.path} is used in its own size: "
                f"leave it out"
            )

    def __str__(self) -> str:
        own = {**self.options, "split_seed": str(self.split_seed)}
        words = [f":{name}={value}" for name, value in own.items() if (name, value) != UNSAID]
        return f"{self.kind}:{self.path}{''.join(words)}"


UNSAID = ("split_seed", "0")


def parse_path(spec: str, kind: str) -> PathSpec:
    """Return the parts of a data set's name that is a path.

    >>> parse_path("hf:my/news:x=embedding:split_seed=3", "hf").options
    {'x': 'embedding', 'split_seed': '3'}
    """
    words, options = spec.removeprefix(f"{kind}:"), {}
    option = re.compile(rf"(.+):({'|'.join(OPTIONS[kind])})=([^:]+)", re.DOTALL)
    while match := option.fullmatch(words):
        words, name, value = match.groups()
        if name in options:
            raise ValueError(f"{spec!r} gives {name} twice")
        options[name] = value
    if not words:
        raise ValueError(
            f"{spec!r} names no {'file' if kind == 'arrays' else 'folder'}: write {kind}:PATH"
        )
    return PathSpec(kind, expanded(words), dict(reversed(options.items())))


def find_path(spec: str) -> PathSpec | None:
    """Return the path in a data set's name; None if it has none."""
    kind = spec.partition(":")[0]
    return parse_path(spec, kind) if kind in OPTIONS and ":" in spec else None


def absolute(spec: str) -> str:
    """Name the same data so that they are found from anywhere."""
    found = find_path(spec)
    return spec if found is None else str(found._replace(path=found.path.resolve()))
