"""Few-shot tasks by name."""

from pathlib import Path

from metamirror.data.benchmarks import BENCHMARKS
from metamirror.data.image_set import ImageClass, ImageSet
from metamirror.data.image_tasks import Augment, ImageTasks, augmentation
from metamirror.data.registry import DATA_SETS, DataSet, find_data_set, open_images
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
    name: str,
    split: str = "train",
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    seed: int = 0,
    batch: int = 4,
    image_size: int | None = None,
    augment: str | Augment | None = None,
    data_dir: str | Path | None = None,
) -> TaskStream:
    """Return the tasks of a data set: `tasks(...)[step]` is a stack of `batch` of them.

    Args:
        name: `sinusoid`, `glyphs`, a benchmark's name, or `folder:PATH`.
        split: train, val or test.
        ways: classes of a task (not for regression).
        shots: support examples of each class (for regression: of the task).
        queries: query examples of each class (for regression: of the task).
        seed: the seed of the tasks.
        batch: tasks of a step.
        image_size: height and width of the images, if other than stored.
        augment: changes to the images, such as "flip,shift", or a function of your own.
        data_dir: where installed data live, if not under METAMIRROR_HOME.

    >>> tasks("sinusoid", split="test", shots=5, batch=2)[7].query.y.shape
    torch.Size([2, 15, 1])
    """
    stream = find_data_set(name).stream
    if stream is not None:
        return stream(split, shots, queries, seed, batch)
    return ImageTasks(
        open_images(name, image_size=image_size, data_dir=data_dir),
        split,
        ways=ways,
        shots=shots,
        queries=queries,
        seed=seed,
        batch=batch,
        augment=augmentation(augment) if isinstance(augment, str) else augment,
    )
