"""Few-shot tasks: of a data set by its name, or of what the user has."""

from pathlib import Path
from typing import Any

from metamirror.core import import_path
from metamirror.data.benchmarks import BENCHMARKS
from metamirror.data.given_tasks import GivenTasks, IteratedTasks
from metamirror.data.image_set import ImageClass, ImageSet
from metamirror.data.image_tasks import Augment, ImageTasks, augmentation
from metamirror.data.own_arrays import open_set
from metamirror.data.registry import DATA_SETS, DataSet, find_data_set, is_own, open_images
from metamirror.data.sizes import Count, only_one
from metamirror.data.task_stream import TaskStream

__all__ = [
    "BENCHMARKS",
    "DATA_SETS",
    "DataSet",
    "ImageClass",
    "ImageSet",
    "ImageTasks",
    "TaskStream",
    "open_images",
    "tasks",
]


def tasks(
    source: Any,
    split: str = "train",
    *,
    ways: Count | tuple[int, int] = 5,
    shots: Count | tuple[int, int] = 1,
    queries: int = 15,
    seed: int = 0,
    batch: int = 4,
    image_size: int | None = None,
    augment: str | Augment | None = None,
    data_dir: str | Path | None = None,
    splits: Any = None,
    split_seed: int = 0,
    columns: tuple[str, str] | None = None,
) -> TaskStream:
    """Return the tasks of a data set: `tasks(...)[step]` has `batch` of them.

    They are a stack where all have the same shapes, as with fixed ways and shots, and otherwise a
    list; every function that takes tasks takes both.

    Args:
        source: the name of a data set, such as `sinusoid`, `glyphs`, a benchmark's, `folder:PATH`,
            `arrays:FILE.npz`, `hf:PATH`, or `package.module:attribute` for what a function of your
            own returns; or examples and labels `(x, y)`; a
            `torch.utils.data.Dataset` of pairs (x, label); a Hugging Face `Dataset`; an iterator
            of tasks; or an object with a method `task(step, index)`.
        split: train, val or test.
        ways: classes of a task (not for regression); of a range, such as (5, 20), each task draws.
        shots: support examples of each class (for regression: of the task), or a range.
        queries: query examples of each class (for regression: of the task).
        seed: the seed of the tasks.
        batch: tasks of a step.
        image_size: height and width of the images, if other than stored.
        augment: changes to the images, such as "flip,shift", or a function of your own.
        data_dir: where installed data live, if not under METAMIRROR_HOME.
        splits: which classes are for train, val and test, where `source` has labels: a word for
            all, one for each example or class, a mapping from labels, or a column's name.
        split_seed: the seed by which classes are split if `splits` is not given.
        columns: the columns of examples and labels in a Hugging Face data set, if not found.

    An iterator and an object make their own tasks: of what follows `split` only seed and batch
    concern them.

    >>> tasks("sinusoid", split="test", shots=5, batch=2)[7].query.y.shape
    torch.Size([2, 15, 1])
    """
    if isinstance(source, TaskStream):
        return source
    if isinstance(source, str) and is_own(source):
        found = import_path.find(source, "data")
        asked: dict[str, Any] = {"split": split, "ways": ways, "shots": shots, "queries": queries}
        asked |= {"seed": seed, "batch": batch, "image_size": image_size, "data_dir": data_dir}
        source = import_path.called(found, source, asked) if callable(found) else found
        image_size = None  # which is the function's business
    if not isinstance(source, str):
        if hasattr(source, "task"):
            return GivenTasks(source, split, seed, batch)
        if hasattr(source, "__next__"):
            return IteratedTasks(source, split, seed, batch)
        if image_size is not None:
            raise ValueError(f"image_size is {image_size}; it is for data sets that have a name")
        images = open_set(source, splits, split_seed, columns)
    else:
        if (splits, split_seed, columns) != (None, 0, None):
            raise ValueError(
                f"splits, split_seed and columns are for data that are given themselves, and this "
                f"is the name {source!r}: write {source}:split_seed=1, where that is possible"
            )
        stream = find_data_set(source).stream
        if stream is not None:
            return stream(split, only_one("shots", shots, source), queries, seed, batch)
        images = open_images(source, image_size=image_size, data_dir=data_dir)
    return ImageTasks(
        images,
        split,
        ways=ways,
        shots=shots,
        queries=queries,
        seed=seed,
        batch=batch,
        augment=augmentation(augment) if isinstance(augment, str) else augment,
    )
