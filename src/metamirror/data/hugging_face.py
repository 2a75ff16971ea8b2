"""Hugging Face's data sets, in memory or saved on disk: columns become examples and labels.

Nothing is downloaded and no code of a data set is run: `load_from_disk` reads Arrow files, and
images are decoded here, from bytes that the files themselves hold.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from metamirror.console import say
from metamirror.data.image_set import ImageSet
from metamirror.data.installing.layouts import SPLIT_WORDS
from metamirror.data.labelled import Rows, labelled_set
from metamirror.data.path_spec import parse_path
from metamirror.data.readers.archives import LIMIT, bounded
from metamirror.data.store import Store

EXAMPLES = ("image", "img", "embedding", "embeddings", "features", "input_ids", "x")
LABELS = ("label", "labels", "class", "target", "y")
"""Names of columns that are found without being told."""


def is_data_set(source: Any) -> bool:
    """Return whether something is one of Hugging Face's data sets, or a dictionary of them."""
    if isinstance(source, Mapping):
        return bool(source) and all(map(is_data_set, source.values()))
    return hasattr(source, "column_names") and hasattr(source, "features")


def open_saved(spec: str, store: Store, image_size: int | None = None) -> ImageSet:
    """Open `hf:PATH`, which `save_to_disk` wrote."""
    where = parse_path(spec, "hf")
    where.refuse_size(image_size)
    if not where.path.is_dir():
        raise ValueError(
            f"there is no folder {where.path}: {spec} should name what save_to_disk wrote"
        )
    try:
        import datasets
    except ImportError:
        raise ValueError("hf:PATH needs a package: pip install 'metamirror[hf]'") from None
    try:
        source = datasets.load_from_disk(str(where.path.resolve()))
    except Exception as error:  # whatever its readers raise on a file that is none of theirs
        why = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{where.path} holds no data set that save_to_disk wrote: {why}"
        ) from error
    columns = (where.options.get("x"), where.options.get("y"))
    return labelled(
        source, spec, columns, where.options.get("split"), where.split_seed, files=False
    )


def labelled(
    source: Any,
    name: str,
    columns: Sequence[str | None] | None,
    splits: Any,
    split_seed: int,
    *,
    files: bool = True,
) -> ImageSet:
    """Return the examples of a data set, from the columns named or found.

    The splits of a dictionary count where no class is in two of them; otherwise its examples are
    put together, and the classes split anew. `files` allows images that are files beside it.
    """
    parts: Mapping[str, Any] = source if isinstance(source, Mapping) else {"": source}
    first = next(iter(parts.values()))
    if not hasattr(first, "__len__"):
        raise ValueError(f"{name} is streamed and has no examples by number: load it as a whole")
    x, y = columns or (None, None)
    y = _column(name, y, first.column_names, LABELS)
    taken = {y, splits} if isinstance(splits, str) else {y}
    x = _column(name, x, [c for c in first.column_names if c not in taken], EXAMPLES)
    each = {key: _values(part, y) for key, part in parts.items()}
    labels = np.concatenate(list(each.values()))
    if isinstance(splits, str) and splits in first.column_names:
        splits = np.concatenate([_values(part, splits) for part in parts.values()])
    elif splits is None and len(parts) > 1:
        splits = _apart(name, each)
    held = [_undecoded(part.select_columns([x]), x) for part in parts.values()]
    ends = np.cumsum([0, *(len(values) for values in each.values())]).tolist()

    def read(rows: list[int]) -> list[Any]:
        found: dict[int, Any] = {}
        for part, (begin, end) in zip(held, pairwise(ends), strict=True):
            own = sorted({row for row in rows if begin <= row < end})
            if own:
                found |= zip(own, part[[row - begin for row in own]][x], strict=True)
        return [_decoded(found[row], f"{name}, example {row}", files) for row in rows]

    if not len(labels):
        raise ValueError(f"{name} is empty: give some examples")
    words = getattr(first.features[y], "names", None)
    if words is not None and int(labels.min()) < 0:
        raise ValueError(f"{name}: the column {y} holds {labels.min()}, an example without a label")
    return labelled_set(
        name,
        Rows(name, len(labels), read),
        labels,
        splits=splits,
        split_seed=split_seed,
        names=str if words is None else lambda label: str(words[label]),
        checksum=" ".join(str(getattr(part, "_fingerprint", "")) for part in parts.values()),
    )


def _column(name: str, given: str | None, there: Sequence[str], usual: Sequence[str]) -> str:
    if given is not None:
        if given not in there:
            raise ValueError(f"{name} has no column {given!r}; it has {', '.join(there)}")
        return given
    for column in (*(c for c in usual if c in there), *(there if len(there) == 1 else ())):
        return column
    what = "examples" if usual is EXAMPLES else "labels"
    raise ValueError(
        f"{name} has the columns {', '.join(there)}, and which holds the {what} is not clear: say "
        f"it with columns=(x, y), or on the command line with hf:PATH:x=COLUMN:y=COLUMN"
    )


def _values(part: Any, column: str) -> Any:
    return np.asarray(part.select_columns([column]).with_format(None)[:][column])


def _apart(name: str, each: Mapping[str, Any]) -> Any:
    """Return the split of each example, where a dictionary's keys are splits of the classes."""
    words = [SPLIT_WORDS.get(key.lower(), "") for key in each]
    owner: dict[Any, str] = {}
    apart = all(
        owner.setdefault(label, key) == key
        for key, values in each.items()
        for label in np.unique(values).tolist()
    )
    if apart and "" not in words:
        return np.repeat(words, [len(values) for values in each.values()])
    say(f"{name}: its splits {', '.join(each)} share classes; they are put together and split anew")
    return None


def _undecoded(part: Any, column: str) -> Any:
    """Return the data set with images as the bytes in its files, and lists as arrays."""
    feature = part.features[column]
    if type(feature).__name__ != "Image":
        return part.with_format("numpy")
    return part.with_format(None).cast_column(column, type(feature)(decode=False))


def _decoded(item: Any, name: str, files: bool) -> Any:
    if not isinstance(item, Mapping):
        return item
    from metamirror.data.readers.images import decode

    content, path = item.get("bytes"), item.get("path")
    if content is None and files and path and Path(path).is_file():
        with Path(path).open("rb") as file:
            content = bounded(file, LIMIT, str(path))
    if content is None:
        raise ValueError(f"{name} is not in the data set but elsewhere ({path}): save it with it")
    return decode(content, name)
