"""Arrays and data sets of the user's own: `(x, y)`, a map-style `Dataset`, `arrays:FILE.npz`."""

import zipfile
from collections.abc import Mapping
from typing import Any

from metamirror.data import hugging_face
from metamirror.data.image_set import ImageSet
from metamirror.data.labelled import Rows, as_examples, labelled_set
from metamirror.data.path_spec import parse_path
from metamirror.data.readers.archives import damage, read_npz
from metamirror.data.store import Store

LONGEST = 2**28
"""Bytes of labels at most: a file that claims more holds something else under that name."""


def open_set(
    source: Any, splits: Any, split_seed: int, columns: tuple[str, str] | None
) -> ImageSet:
    """Return the user's own examples as a set: arrays, a map-style data set, or Hugging Face's."""
    if isinstance(source, ImageSet):
        return source
    name = type(source).__name__
    if hugging_face.is_data_set(source):
        return hugging_face.labelled(source, name, columns, splits, split_seed)
    if columns is not None:
        raise ValueError(f"columns is {columns!r}; it is for Hugging Face's data sets")
    options: dict[str, Any] = {"splits": splits, "split_seed": split_seed}
    if isinstance(source, tuple | list) and len(source) == 2:
        return labelled_set("(x, y)", as_examples(source[0], "(x, y)"), source[1], **options)
    if isinstance(source, Mapping) or not (
        hasattr(source, "__getitem__") and hasattr(source, "__len__")
    ):
        raise ValueError(
            f"no tasks can be made of {name}: give a name, (x, y), a data set with a length whose "
            f"items are (x, label), an iterator of tasks, or an object with task(step, index)"
        )
    if not len(source):
        raise ValueError(f"{name} is empty: give some examples")
    examples = Rows(name, len(source), lambda rows: (_pair(source, row)[0] for row in rows))
    return labelled_set(name, examples, _labels(source), **options)


def _pair(source: Any, row: int) -> tuple[Any, Any]:
    try:
        x, label = source[row]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"item {row} of {type(source).__name__} is not (x, label): {error}"
        ) from error
    return x, label


def _labels(source: Any) -> list[Any]:
    # torchvision's sets have all labels at hand; reading every image for them may take minutes.
    known = getattr(source, "targets", None)
    if known is not None and getattr(source, "target_transform", None) is None:
        labels = known.tolist() if hasattr(known, "tolist") else list(known)
        if len(labels) == len(source):
            return labels
    labels = [_pair(source, row)[1] for row in range(len(source))]
    return [label.item() if hasattr(label, "item") else label for label in labels]


def open_arrays(spec: str, store: Store, image_size: int | None = None) -> ImageSet:
    """Open `arrays:FILE.npz`, which has arrays x and y, and may have split."""
    where = parse_path(spec, "arrays")
    where.refuse_size(image_size)
    path = where.path
    if not path.is_file():
        raise ValueError(f"there is no file {path}: {spec} should name an .npz with arrays x and y")
    with damage(path), zipfile.ZipFile(path) as archive:
        sizes = {info.filename: info for info in archive.infolist()}
    for key in ("y", "split"):
        if (info := sizes.get(f"{key}.npy")) and info.file_size > LONGEST:
            raise ValueError(f"the array {key} of {path} has {info.file_size:,} bytes: too many")
    x, y = (read_npz(path, key, str(path)) for key in ("x", "y"))
    splits = read_npz(path, "split", str(path)) if "split.npy" in sizes else None
    examples = as_examples(x, str(path))
    checksum = f"{sizes['x.npy'].CRC:08x}"
    return labelled_set(
        spec, examples, y, splits=splits, split_seed=where.split_seed, checksum=checksum
    )
