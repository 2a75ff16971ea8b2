"""A function of the user's own as a backbone: of images, sentences, or anything else."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor

from metamirror.data.image_set import SUFFIXES
from metamirror.estimators.inputs.images import open_image
from metamirror.estimators.inputs.numbers import Numbers, as_array

AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Function:
    """A function from a list of examples to rows of numbers (examples, d).

    Image files are opened for it, as PIL images in colour; anything else, sentences for example,
    is handed over as it is. Its rows are not kept on disk: nobody knows when it has changed.
    """

    function: Callable[[list[Any]], Any]
    facts: ClassVar[None] = None

    @property
    def name(self) -> str:
        """What it is called."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def read(self, x: Any) -> Tensor:
        """Return one row of numbers for each example, in double precision."""
        if isinstance(x, str | bytes | os.PathLike | Image.Image):
            raise ValueError(f"X is {x!r}; give a list of examples, even of one: [X]")
        examples = [opened(item) for item in x]
        found = []
        for start in range(0, len(examples), AT_ONCE):
            part = examples[start : start + AT_ONCE]
            try:
                given = self.function(part)
            except Exception as error:  # whatever a user's function raises
                raise ValueError(f"{self.name} fails: {type(error).__name__}: {error}") from error
            rows = as_array(given, f"what {self.name} gives")
            if rows.ndim != 2 or len(rows) != len(part):
                raise ValueError(
                    f"{self.name} gives {rows.shape} for {len(part)} examples: a backbone gives "
                    f"one row of numbers for each"
                )
            found.append(rows)
        return Numbers().read(np.concatenate(found) if found else np.zeros((0, 1)))


def opened(item: Any) -> Any:
    """Return an image file as an image; anything else as it is."""
    if isinstance(item, str):
        named = item.lower().endswith(SUFFIXES) and Path(item).is_file()
        return open_image(Path(item)) if named else item
    return open_image(Path(item)) if isinstance(item, os.PathLike) else item
