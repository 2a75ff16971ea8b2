"""Checks on what users pass in: a mistake is named before it fails deep inside torch."""

from numbers import Integral, Real

import torch
from torch import Tensor

from metamirror.core.losses import IGNORED
from metamirror.core.tasks import Batch, Task, Tasks, as_batch
from metamirror.core.trees import Tree, leaves


def check_steps(steps: int) -> int:
    """Return K if it is a count."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
        raise ValueError(f"steps is {steps!r}; the number of inner steps is a whole number from 0")
    return int(steps)


def check_lr(lr: float) -> float:
    """Return alpha if it is finite and not negative."""
    if isinstance(lr, bool) or not (isinstance(lr, Real) and 0 <= lr < float("inf")):
        raise ValueError(f"lr is {lr!r}; the inner step size is finite and at least 0")
    return float(lr)


def all_finite(tensor: Tensor) -> bool:
    """Return whether no entry is infinite or NaN.

    A sum is finite only if all its terms are, and takes a fraction of the time.
    """
    return bool(tensor.sum().isfinite()) or bool(torch.isfinite(tensor).all())


def check_batch(batch: Batch, name: str, *, stacked: bool) -> None:
    """Refuse a batch that is malformed, empty, not finite, or has negative labels."""
    if not (isinstance(batch, tuple) and len(batch) == 2):
        raise ValueError(f"{name} must be a Batch(x, y), not {type(batch).__name__}")
    x, y = map(leaves, batch)
    for label, part in (("x", x), ("y", y)):
        odd = [type(leaf).__name__ for leaf in part if not isinstance(leaf, Tensor)]
        if odd or not part:
            found = odd[0] if odd else "nothing"
            raise ValueError(
                f"{name}.{label} holds {found}; give a tensor or an array, or a tuple, dict or "
                f"dataclass of them"
            )
    leading = 2 if stacked else 1
    heads = {tuple(t.shape[:leading]) for t in (*x, *y)}
    if len(heads) > 1 or len(next(iter(heads))) < leading:
        axes = "(tasks, examples, ...)" if stacked else "(examples, ...)"
        shapes = [" and ".join(str(tuple(t.shape)) for t in part) for part in (x, y)]
        raise ValueError(
            f"{name}.x has shape {shapes[0]} and {name}.y {shapes[1]}; "
            f"both must start with the same {axes}"
            + ("; a single task goes in a list: [task]" if stacked else "")
            + ("; torch.stack joins the examples of a list" if list in map(type, batch) else "")
        )
    if 0 in next(iter(heads)):
        raise ValueError(
            f"{name} is empty: x has shape {tuple(x[0].shape)}; at least one example is needed"
        )
    if x[0].device.type == "meta":
        return
    for label, part in (("x", x), ("y", y)):
        for tensor in part:
            if tensor.is_floating_point() and not all_finite(tensor):
                where = tuple(torch.nonzero(~torch.isfinite(tensor))[0].tolist())
                raise ValueError(
                    f"{name}.{label} holds {float(tensor[where])} at index {where}; "
                    f"every value must be finite: remove or repair that example"
                )


def are_labels(y: Tree) -> bool:
    """Return whether targets are the labels of classes, one for each example."""
    return isinstance(y, Tensor) and not y.is_floating_point() and not y.is_complex()


def check_labels(batch: Batch, name: str, ways: int) -> None:
    """Refuse labels for which the model has no output; `IGNORED` stands for no label."""
    if not are_labels(batch.y) or batch.y.device.type == "meta":
        return
    given = batch.y.long()
    given = given[given != IGNORED]
    if not len(given):
        raise ValueError(f"{name}.y holds no label that counts: all are {IGNORED}")
    if int(given.min()) < 0:
        raise ValueError(
            f"{name}.y holds the label {int(given.min())}; labels run from 0 to ways-1, and "
            f"{IGNORED} is ignored"
        )
    largest = int(given.max())
    if largest >= ways:
        raise ValueError(
            f"{name}.y holds the label {largest}, but the model has {ways} outputs: "
            f"labels run from 0 to {ways - 1}; relabel the task or build the model with more ways"
        )


def asked_outputs(y: Tensor, own: int) -> int:
    """Return how many outputs targets ask for; `own`, the model's, where they have no values.

    >>> asked_outputs(torch.tensor([0, 2, 1]), 5)
    3
    """
    if not are_labels(y):
        return len(y[0].flatten()) if isinstance(y, Tensor) else own
    return own if y.device.type == "meta" else int(y.max()) + 1


def check_every_class(y: Tensor, ways: int | None = None) -> None:
    """Refuse a support set in which a class has no example; by default up to its largest label."""
    if not are_labels(y) or y.device.type == "meta":
        return
    ways = int(y.max()) + 1 if ways is None else ways
    if absent := set(range(ways)) - set(y.tolist()):
        raise ValueError(
            f"support.y has no example of class {min(absent)}, from which its part of the head "
            f"would be computed: label the {ways} classes of each task from 0 on, without gaps"
        )


def check_tasks(tasks: Tasks, like: Tensor) -> Tasks:
    """Return a stack or a list of tasks; refuse what is malformed.

    Whether support and query examples fit each other is for the model to say. Arrays become
    tensors like `like`.
    """
    if isinstance(tasks, Task):
        task = Task(as_batch(tasks[0], like, "support"), as_batch(tasks[1], like, "query"))
        check_batch(task.support, "support", stacked=True)
        check_batch(task.query, "query", stacked=True)
        if task.support.examples != task.query.examples:
            raise ValueError(
                f"support holds {task.support.examples} tasks and query {task.query.examples}; "
                f"each task needs both"
            )
        return task
    rule = "give a Task that is a stack, or a list of single tasks"
    if not (isinstance(tasks, list | tuple) and tasks):
        what = "empty" if isinstance(tasks, list | tuple) else type(tasks).__name__
        raise ValueError(f"tasks is {what}; {rule}")
    found = []
    for i, task in enumerate(tasks):
        if not (isinstance(task, list | tuple) and len(task) == 2):
            raise ValueError(f"tasks[{i}] is {type(task).__name__}, not Task(support, query)")
        names = [f"tasks[{i}].{part}" for part in Task._fields]
        found.append(Task(*(as_batch(b, like, name) for b, name in zip(task, names, strict=True))))
        for batch, name in zip(found[-1], names, strict=True):
            check_batch(batch, name, stacked=False)
    return found
