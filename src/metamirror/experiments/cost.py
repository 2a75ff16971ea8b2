"""What each method costs on this machine: time, against MAML's, memory, extra parameters."""

import itertools
import math
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from metamirror.console import Progress
from metamirror.core.learner import Learner
from metamirror.core.option_spec import split_specs
from metamirror.core.tasks import Batch, Task
from metamirror.experiments import paired_timing as timing
from metamirror.experiments.statistics import BASELINE
from metamirror.methods import METHODS, find_method, make_learner
from metamirror.models import Conv4
from metamirror.models.conv4 import check_sizes
from metamirror.parallel.allocator import spare_memory_for, tune_allocator
from metamirror.parallel.task_pool import TaskPool, processes_for
from metamirror.training.device import choose_device, place
from metamirror.training.factory import extra_parameters
from metamirror.training.user_modules import import_modules

SHAPES = {"omniglot": (1, 28, 28), "mini-imagenet": (3, 84, 84)}
# Shorter turns are lost in the noise of a clock and a scheduler.
TURN_SECONDS = 0.2
ROUNDS = 11


@dataclass(frozen=True)
class Workload:
    """One meta-iteration on random images with a conv4.

    Attributes:
        shape: channels, height and width of an image.
        ways: classes of a task.
        shots: support images a class.
        queries: query images a class.
        width: filters of each layer of the conv4.
        steps: inner steps, of the methods that take any.
        tasks: tasks of one iteration.
        recompute: build the graphs of inner steps again when needed: less memory, more time.
    """

    shape: tuple[int, int, int] = SHAPES["omniglot"]
    ways: int = 5
    shots: int = 5
    queries: int = 15
    width: int = 64
    steps: int = 5
    tasks: int = 4
    recompute: bool = False

    def check(self) -> None:
        """Refuse what no machine, or not this one, can hold."""
        sizes = ("ways", "shots", "queries", "width", "tasks", "steps")
        check_sizes(**{name: getattr(self, name) for name in sizes})
        _, height, size = self.shape
        if height != size or size < 16:
            raise ValueError(f"images are {height}x{size}; conv4 takes square ones from 16x16 on")
        # The output of the first layer must be kept for every image of a task and every step.
        kept = 1 if self.recompute else self.steps
        images = self.ways * (self.shots * kept + self.queries)
        least = 4 * images * self.width * size * size / 2**30
        memory = math.inf
        if hasattr(os, "sysconf"):  # which Windows lacks
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        if least > memory:
            raise ValueError(
                f"one task would need at least {least:,.0f} GB and this machine has "
                f"{memory:,.0f} GB: choose a smaller shape, width, number of shots or steps"
            )

    def model(self) -> Conv4:
        """Return the network, at its seeded start."""
        torch.manual_seed(0)
        channels, _, size = self.shape
        return Conv4(ways=self.ways, channels=channels, image_size=size, width=self.width)

    def stack(self, seed: int = 0) -> Task:
        """Return the tasks of the iteration."""
        generator = torch.Generator().manual_seed(seed)

        def batch(count: int) -> Batch:
            shape = (self.tasks, self.ways * count, *self.shape)
            labels = torch.arange(self.ways).repeat(self.tasks, count)
            return Batch(torch.rand(shape, generator=generator), labels)

        return Task(batch(self.shots), batch(self.queries))


def parse_shape(shape: str) -> tuple[int, int, int]:
    """Return a shape by the name of its data set, or as channels x height x width.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    if shape in SHAPES:
        return SHAPES[shape]
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6})x(\d{1,6})", shape)
    sizes = tuple(int(n) for n in found.groups()) if found else ()
    if len(sizes) != 3 or 0 in sizes:
        raise ValueError(
            f"shape is {shape!r}; give {', '.join(SHAPES)}, or channels x height x width as in "
            f"3x32x32"
        )
    return sizes


def parse_methods(methods: str) -> list[str]:
    """Return the methods of a list with commas, MAML first, since all are compared with it."""
    given = list(METHODS) if methods == "all" else split_specs(methods)
    return list(dict.fromkeys([BASELINE, *given]))


def prepare(
    method: str, work: Workload, imports: Sequence[str] = (), device: str = "cpu"
) -> timing.Work:
    """Return one iteration of meta-training: the meta-gradient, and a step of Adam along it."""
    import_modules(imports)
    tune_allocator()
    spare_memory_for(work.shape)
    steps = find_method(method)[0].steps_among_others(work.steps)
    learner = make_learner(method, work.model(), steps=steps, lr=0.01, recompute=work.recompute)
    learner.to(device)
    tasks = place(work.stack(), learner)
    elsewhere = device != "cpu"
    # As `metamirror train` decides: on a CPU, vmap makes convolutions slower.
    learner.configure(vectorize=elsewhere and learner.settings.adjoint.vectorizes)
    learned = [p for p in learner.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=1e-3, fused=True)
    pool = None if elsewhere else pool_as_trained(learner, work)

    def iterate() -> None:
        _, gradient = learner.meta_gradient(tasks, learned, pool=pool)
        for p, grad in zip(learned, gradient, strict=True):
            p.grad = grad
        optimizer.step()
        if elsewhere:
            torch.accelerator.synchronize()

    return iterate


def pool_as_trained(learner: Learner, work: Workload) -> TaskPool | None:
    """Return the processes that `train` would share the tasks with; they end with this one."""
    processes = processes_for(learner, work.shape, work.tasks)
    return TaskPool(learner, processes) if processes > 1 else None


def measure_cost(
    work: Workload,
    methods: Sequence[str],
    *,
    rounds: int = ROUNDS,
    threads: int | None = None,
    device: str = "cpu",
    imports: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what `metamirror cost --json` prints.

    Every method takes turns with MAML alone, so that two processes are in memory at a time.

    Args:
        work: what an iteration consists of.
        methods: with their options, MAML first.
        rounds: how often each method takes turns with MAML.
        threads: threads of torch; by default as many as torch takes here.
        device: cpu, cuda, cuda:N or mps; memory is then the process's and the device's together.
        imports: modules that register methods of the user's own.
    """
    work.check()
    if rounds < 3:
        raise ValueError(f"rounds is {rounds}; an interval needs at least 3 pairs")
    count = torch.get_num_threads() if threads is None else threads
    check_sizes(threads=count)
    where = str(choose_device(device))
    with torch.device("meta"):
        model = work.model()
    # Before any process starts, so that a wrong name is said at once.
    extra = {method: extra_parameters(method, model, steps=work.steps) for method in methods}
    programs = [
        timing.Program(m, partial(prepare, m, work, imports, where), count) for m in methods
    ]

    def row(worker: timing.Worker, against: timing.Ratio) -> dict[str, Any]:
        return {
            "method": worker.program.name,
            "ms_per_iteration": 1000 * statistics.median(worker.seconds),
            "relative_to_maml": against.median,
            "ci95": list(against.interval),
            "peak_mb": worker.peak_mb,
            "idle_mb": worker.idle_mb,
            "extra_parameters": extra[worker.program.name],
        }

    total = rounds * 2 * max(1, len(methods) - 1)
    with Progress("cost", total) as progress, timing.open_workers(programs[:1]) as [maml]:
        turns = itertools.count(1)

        def show(worker: timing.Worker) -> None:
            note = f"{worker.program.name} {1000 * worker.seconds[-1]:.0f} ms"
            progress.update(next(turns), note)

        measure = partial(
            timing.take_turns, rounds=rounds, turn_seconds=TURN_SECONDS, after_turn=show
        )
        rows = []
        for program in programs[1:]:
            with timing.open_workers([program]) as [worker]:
                seconds = measure([maml, worker])
            against = timing.ratio(seconds[program.name], seconds[methods[0]])
            rows.append(row(worker, against))
        if not rows:
            measure([maml])
        rows.insert(0, row(maml, timing.Ratio(1.0, (1.0, 1.0))))
    described = {
        **asdict(work),
        "shape": "x".join(map(str, work.shape)),
        **timing.machine(count, where),
    }
    return {**described, "model": "conv4", "rounds": rounds, "rows": rows}
