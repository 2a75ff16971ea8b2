"""Runs jobs and writes their records.

    python -m metamirror.experiments.comparison.worker [DIR/jobs/NAME.json ...]

Without files, their names come in by standard input, a JSON string a line, and one line goes out
for each job that has ended. If the launcher dies, the worker ends at once, in the middle of a step
if need be: a run continues from its last checkpoint.
"""

import json
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from metamirror.core.files import read_json
from metamirror.core.metrics import METRICS, described
from metamirror.experiments import inner_paths
from metamirror.experiments.comparison import nearest_mean
from metamirror.experiments.comparison.jobs import Job, Record, failed, write_record
from metamirror.parallel.allocator import tune_allocator
from metamirror.storage import learner_file
from metamirror.storage.locks import FolderInUseError
from metamirror.training.config import parse_config
from metamirror.training.device import choose_device
from metamirror.training.distributed import Ranks
from metamirror.training.evaluate_run import FOLDER, evaluate_run, evaluation_name
from metamirror.training.factory import build_stream, use_precision
from metamirror.training.task_results import TaskResult, read_tasks, summary, write_tasks
from metamirror.training.train import train
from metamirror.training.user_modules import import_modules, import_plugins

CONTROLS = "controls"
SECONDS_TO_LET_GO = 60


def do(job: Job) -> Record:
    """Do a job. Whatever was done of it before is not done again."""
    # First, since a method, a model or a data set may be the user's own.
    import_modules(job.config.get("imports") or ())
    data = None if job.data_dir is None else Path(job.data_dir)
    if job.work == "convergence":
        return _measure(job, data)
    return (_train_and_evaluate if job.work == "run" else _evaluate_control)(job, data)


def _measure(job: Job, data: Path | None) -> Record:
    config = parse_config(job.config, job.name)
    stream = build_stream(config, job.split, batch=1, data_dir=data)
    own = {"steps": job.options["steps"], "which": job.options["which"], "tasks": job.tasks}
    ranks = Ranks(choose_device(job.device))
    run = job.run_folder
    assert run is not None
    paths = inner_paths.measure(run, stream, ranks=ranks, **own)
    inner_paths.write(job.file("safetensors"), paths)
    return Record(found={})


def _when_free(job: Job) -> Record:
    """Do a job; one that was lost may take a moment to let go of its run."""
    deadline = time.monotonic() + SECONDS_TO_LET_GO
    while True:
        try:
            return do(job)
        except FolderInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _train_and_evaluate(job: Job, data: Path | None) -> Record:
    run, config = Path(job.out, str(job.folder)), parse_config(job.config, job.name)
    place: dict[str, Any] = {"device": job.device, "data_dir": data}
    train(config, run, resume=True, log=job.log, processes=None, **place)
    if not job.tasks:
        return Record(found={})
    # A table shows the last step alone; `convergence` shows the others.
    found = evaluate_run(run, split=job.split, tasks=job.tasks, every_step=False, **place)
    file = f"{job.folder}/{FOLDER}/{evaluation_name(found)}.jsonl"
    # What is said to be finished must be there: a full disk lets an evaluation go unwritten.
    results = read_tasks(Path(job.out, file))
    figures = _figures(results)
    if no_answer(results) or not math.isfinite(figures["ci95"]):
        odd = sum(not math.isfinite(result.loss) for result in results)
        raise ValueError(
            f"it diverges: its error is not finite on {odd} of {job.tasks} {job.split} tasks; "
            f"lower lr ({config.lr})"
        )
    return Record(figures, file)


def no_answer(results: list[TaskResult]) -> bool:
    """Return whether no task has a finite error: 0 % would be no result."""
    return not any(math.isfinite(result.loss) for result in results)


def _evaluate_control(job: Job, data: Path | None) -> Record:
    config = parse_config(job.config, job.name)
    stream = build_stream(config, job.split, batch=1, data_dir=data)
    learner = None if job.folder is None else learner_file.load(Path(job.out, job.folder))
    if learner is not None:
        use_precision(learner, config)
        learner = learner.to(choose_device(job.device))
    results = nearest_mean.evaluate(stream, job.tasks, learner)
    file = f"{CONTROLS}/{job.name}.jsonl"
    Path(job.out, CONTROLS).mkdir(exist_ok=True)
    write_tasks(Path(job.out, file), results)
    return Record(_figures(results), file)


def _figures(results: list[TaskResult]) -> dict[str, Any]:
    metric, found = results[0].metric, summary(results)
    own = {} if metric.name in METRICS else described(metric)
    return own | {name: value for name, value in found.items() if name in (metric.name, "ci95")}


def main(files: Sequence[str]) -> int:
    """Run jobs until there are no more, or until one leaves this process unfit for others."""
    tune_allocator()
    import_plugins()
    # Whatever else this process prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    record = Record(found={})
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, _hear_that_time_is_up)
    for file in files or map(json.loads, _lines(sys.stdin)):
        job = Job(**read_json(Path(file)))
        job.file("log").parent.mkdir(parents=True, exist_ok=True)
        with job.file("log").open("a") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
        try:
            record = _when_free(job)
        except KeyboardInterrupt as stop:
            return getattr(stop, "code", 130)
        except Exception as error:
            # With paths below the comparison: tables are read elsewhere too.
            reason = str(error).replace(f"{job.out}{os.sep}", "")
            record = failed(reason)
            if not isinstance(error, ValueError):
                # Not a run that diverges but want of memory, say: this process may not recover.
                traceback.print_exc()
                write_record(job, failed(f"{type(error).__name__}: {reason}"))
                return 1
        write_record(job, record)
        print(job.name, file=answers, flush=True)
    return 0 if record.done else 1


def _hear_that_time_is_up(number: int, frame: FrameType | None) -> None:
    """Save and end, as on SIGTERM."""
    # Slurm tells it, and so may the process that started it: a second SIGTERM would end it at once.
    signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines as they come; end this process when there can be no more."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in file:
            lines.put(line)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield lines.get()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
