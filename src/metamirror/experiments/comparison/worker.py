"""A process that does jobs: one JSON document a line comes in, and one goes out for each.

    python -m metamirror.experiments.comparison.worker

An answer is the record of a job, failed or not, and whether this process is sound enough for more.
When the process that gave the jobs is gone, this one ends at once, in the midst of a step if need
be: a run continues from its last checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import metamirror as mm
from metamirror.experiments.comparison.jobs import Job, Place, Record, failed, log_file
from metamirror.experiments.comparison.nearest_mean import (
    Represent,
    features_of,
    judge_nearest_mean,
    pixels,
)
from metamirror.parallel.allocator import tune_allocator
from metamirror.storage.atomic import to_json
from metamirror.training.config import parse_config
from metamirror.training.device import choose_device
from metamirror.training.evaluate import (
    FOLDER,
    TaskResult,
    evaluate_run,
    evaluation_name,
    read_tasks,
    summary,
    write_tasks,
)
from metamirror.training.factory import build_stream, use_precision
from metamirror.training.train import train

CONTROLS = "controls"


def do(job: Job, place: Place) -> Record:
    """Does a job. Whatever was done of it before is not done again."""
    if job.work == "run":
        return _train_and_judge(job, place)
    return _judge_control(job, place)


def _train_and_judge(job: Job, place: Place) -> Record:
    assert job.folder is not None
    run, config = place.out / job.folder, parse_config(job.config, job.name)
    train(config, run, resume=True, device=place.device, data_dir=place.data_dir, processes=None)
    if not job.tasks:
        return Record(asdict(job), found={})
    # Of a table only the last step matters; `convergence` looks at the others.
    found = evaluate_run(
        run,
        split=job.split,
        tasks=job.tasks,
        every_step=False,
        device=place.device,
        data_dir=place.data_dir,
    )
    file = f"{job.folder}/{FOLDER}/{evaluation_name(found)}.jsonl"
    # What is said to be finished must be there: a full disk lets an evaluation go unwritten.
    results = read_tasks(place.out / file)
    figures = _figures(results)
    odd = sum(not math.isfinite(result.loss) for result in results)
    if no_answer(results) or not math.isfinite(figures["ci95"]):
        raise ValueError(
            f"it diverges: its error is not finite on {odd} of {job.tasks} {job.split} tasks; "
            f"lower lr ({config.lr})"
        )
    return Record(asdict(job), figures, file)


def no_answer(results: list[TaskResult]) -> bool:
    """Whether the error is finite on no task: each answer counts as wrong, and 0 % is no result."""
    return not any(math.isfinite(result.loss) for result in results)


def _judge_control(job: Job, place: Place) -> Record:
    config = parse_config(job.config, job.name)
    stream = build_stream(config, job.split, batch=1, data_dir=place.data_dir)
    represent: Represent = pixels
    if job.folder is not None:
        learner = mm.load(place.out / job.folder)
        use_precision(learner, config)
        represent = features_of(learner.to(choose_device(place.device)))
    results = judge_nearest_mean(stream, job.tasks, represent)
    file = f"{CONTROLS}/{job.name}.jsonl"
    (place.out / CONTROLS).mkdir(exist_ok=True)
    write_tasks(place.out / file, results)
    return Record(asdict(job), _figures(results), file)


def _figures(results: list[TaskResult]) -> dict[str, Any]:
    return {name: value for name, value in summary(results).items() if name != "loss"}


def main() -> int:
    """Does jobs until there are no more."""
    tune_allocator()
    # Whatever else this process prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    while line := orders.get():
        order = json.loads(line)
        job, place = Job(**order["job"]), _place(order["place"])
        with log_file(place.out, job.name).open("a") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
        sound = True
        try:
            record = do(job, place)
        except ValueError as error:
            # A run that cannot go on, such as one that diverges.
            record = failed(job, _here(error, place))
        except KeyboardInterrupt as stop:
            return getattr(stop, "code", 130)
        except Exception as error:
            # Out of memory, for example: what went wrong may have left its traces.
            traceback.print_exc()
            sound = False
            record = failed(job, f"{type(error).__name__}: {_here(error, place)}")
        answer = {"record": asdict(record), "sound": sound}
        print(to_json(answer, indent=None), file=answers, flush=True)
    return 0


def _here(error: Exception, place: Place) -> str:
    """A complaint with paths from the comparison's folder on: tables are read on other machines."""
    return str(error).replace(f"{place.out}{os.sep}", "")


def _place(words: dict[str, str | None]) -> Place:
    data_dir = words["data_dir"]
    assert words["out"] is not None
    assert words["device"] is not None
    return Place(Path(words["out"]), words["device"], None if data_dir is None else Path(data_dir))


def _listen(orders_in: TextIO, orders: queue.SimpleQueue[str]) -> None:
    for line in orders_in:
        orders.put(line)
        if not line.strip():
            return
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
