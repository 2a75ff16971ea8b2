"""What a full disk or a stranger leaves in a folder: passed over where it can be, else named."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from metamirror.core.files import write_atomically
from metamirror.data.path_spec import absolute
from metamirror.data.store import data_home
from metamirror.experiments.comparison.jobs import read_record
from metamirror.training.logs.metrics_file import seconds_per_iteration
from metamirror.training.task_results import read_tasks
from tests.faults.of_runs import JOB, RECORD, TASKS, as_json, write

CLOCK = [
    b'{"step": 1, "seconds": 2.0, "steps_per_second": 0.5}\n',
    b'{"step": 3, "seconds": 6.0, "steps_per_second": 0.5}\n',
]


@pytest.mark.parametrize("half", [b'{"step": 2, "sec', b"\xff\n", b"[]\n", b'{"step": 2}\n', b"["])
def test_half_a_line_of_a_clock_times_nothing(half: bytes, tmp_path: Path):
    write(tmp_path / "timing.jsonl", CLOCK[0] + half + b"\n" + CLOCK[1])
    assert seconds_per_iteration(tmp_path) == 2.0
    write(tmp_path / "timing.jsonl", half)
    assert seconds_per_iteration(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]\n", b'{"loss": []}\n', b'{"loss": ["x"]}\n', TASKS + b'{"loss": [1e9', b"["],
)
def test_results_that_are_none_are_named(content: bytes, tmp_path: Path):
    with pytest.raises(ValueError, match=r"tasks\.jsonl holds no results of tasks"):
        read_tasks(write(tmp_path / "tasks.jsonl", content))


@pytest.mark.parametrize("change", [{"found": 3}, {"tasks_file": 3}, {"reason": []}, {"more": 1}])
def test_an_odd_record_is_none(change: dict, tmp_path: Path):
    write(tmp_path / "records" / f"{JOB.name}.json", as_json(RECORD | change))
    assert read_record(replace(JOB, out=str(tmp_path))) is None


def test_a_home_of_nobody_is_named():
    for read, words in ((absolute, "folder:~nobody-at-all/birds"), (data_home, "~nobody-at-all")):
        with pytest.raises(ValueError, match="~nobody-at-all"):
            read(words)


def test_a_path_below_a_file_is_named_and_not_its_temporary_one(tmp_path: Path):
    below = write(tmp_path / "file", b"mine") / "out.json"
    with pytest.raises(NotADirectoryError) as caught:
        write_atomically(below, b"")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, str(below))
