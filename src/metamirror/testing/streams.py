"""What a task stream must keep: a task depends on its address alone."""

import torch

from metamirror.core.checks import check_labels, check_tasks
from metamirror.core.tasks import Task, split_tasks
from metamirror.data.task_stream import TaskStream
from metamirror.testing.differences import named, require


def check_task_stream(stream: TaskStream) -> None:
    """Check the form of a stream's tasks, and that each depends on its address alone.

    Resuming, distributing and comparing are exact only with such a stream.

    >>> import metamirror as mm
    >>> check_task_stream(mm.tasks("sinusoid", shots=5, batch=2))
    """
    for check in (check_form, check_repeats, check_variety, check_refusals):
        check(stream)


def check_form(stream: TaskStream) -> None:
    """Check shapes, labels and values against what the stream says of itself."""
    with named("stream[0] fails", "task(step, index) must return Task(Batch(x, y), Batch(x, y))"):
        tasks = stream[0]
        require(isinstance(stream.task(0, 0), Task), "stream.task(0, 0) is no Task: return a Task")
    try:
        each = split_tasks(check_tasks(tasks, torch.zeros(())))
        for task in each:
            for name, batch in zip(("support", "query"), task, strict=True):
                check_labels(batch, name, stream.outputs)
    except ValueError as error:
        raise AssertionError(f"stream[0] is no stack or list of tasks: {error}") from error
    count = len(each)
    require(count == stream.batch, f"stream[0] holds {count} tasks; batch is {stream.batch}")
    said = f"but example_shape is {stream.example_shape} and outputs is {stream.outputs}"
    for i, ((x, y), query) in enumerate(each):
        require(
            tuple(x.shape[1:]) == tuple(stream.example_shape) or stream.ragged,
            f"an example has shape {tuple(x.shape[1:])}, {said}: models are built from these",
        )
        if y.is_floating_point():
            require(
                tuple(y.shape[1:]) == (stream.outputs,),
                f"a target has shape {tuple(y.shape[1:])}, {said}: models are built from these",
            )
            continue
        ways = int(query.y.max()) + 1 if stream.ragged else stream.outputs
        missing = sorted(set(range(ways)) - set(y.tolist()))
        require(not missing, f"task {i} has no support example of the labels {missing}")


def check_repeats(stream: TaskStream) -> None:
    """Check that a task is the same in any order, beside any others, in any random state."""
    first = [stream[step] for step in (0, 1, 5)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        before = torch.get_rng_state()
        again = [stream[step] for step in (5, 1, 0)][::-1]
        untouched = torch.equal(torch.get_rng_state(), before)
    require(
        all(
            same_tasks(a, b)
            for one, other in zip(first, again, strict=True)
            for a, b in zip(split_tasks(one), split_tasks(other), strict=True)
        ),
        "stream[step] changes with the order or with torch's random state: draw a task from "
        "metamirror.data.addressing.task_generator(seed, split, step, index) alone",
    )
    require(untouched, "drawing a task changes torch's random state: use a generator of its own")
    for index in range(stream.batch):
        whole = split_tasks(first[1])[index]
        share = split_tasks(stream.stack(1, [index]))[0]
        require(
            same_tasks(whole, stream.task(1, index)) and same_tasks(whole, share),
            f"task {index} of stream[1] is not stream.task(1, {index}): a task must not depend on "
            f"those drawn with it",
        )


def check_variety(stream: TaskStream) -> None:
    """Check that steps and tasks differ, and that queries are not the support set again."""
    seen: list[tuple[int, int, Task]] = []
    for step in range(3):
        for index in range(stream.batch):
            task = stream.task(step, index)
            for s, i, other in seen:
                require(
                    not same_tasks(task, other),
                    f"task({step}, {index}) is task({s}, {i}): draw from both step and index",
                )
            seen.append((step, index, task))
            known = task.support.x.flatten(1)
            new = [not (known == x.flatten()).all(1).any() for x in task.query.x]
            require(any(new), f"task({step}, {index}) has no query that is not in its support set")


def check_refusals(stream: TaskStream) -> None:
    """Check that a negative step or index is refused."""
    for address in ((-1, 0), (0, -1)):
        try:
            stream.task(*address)
        except ValueError:
            continue
        raise AssertionError(f"task{address} gives a task; raise ValueError for a negative number")


def same_tasks(a: Task, b: Task) -> bool:
    """Return whether two tasks, or stacks of them, are equal to the bit."""
    return all(
        torch.equal(t, u) for x, y in zip(a, b, strict=True) for t, u in zip(x, y, strict=True)
    )
