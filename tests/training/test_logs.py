"""Trackers get every figure of a run, its settings, its code and an image; read back for real."""

from __future__ import annotations

import csv
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metamirror.cli.main import main
from metamirror.training.divergence import NonFiniteError
from metamirror.training.interrupts import InterruptedRun
from metamirror.training.logs.log import Logs, Opening
from metamirror.training.logs.registry import open_trackers, read_trackers
from metamirror.training.train import train
from tests.refusals import assert_command_refused, assert_refused
from tests.runs import forks, small

IMAGES = small(data="glyphs", image_size=16, width=4, shots=1, queries=2, iterations=6, log_every=1)
HALF = replace(IMAGES, iterations=3)
CELL = (
    *("compare", "--data", "sinusoid", "--methods", "maml", "--no-controls", "--shots", "3"),
    *("--seeds", "1", "--steps", "1", "--iterations", "2", "--width", "8", "--test-tasks", "2"),
    *("--log-every", "1", "--vectorize", "False"),
)


def figures(run: Path) -> dict[tuple[int, str], float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(e["step"], k): float(v) for e in lines for k, v in e.items() if k != "step"}


def stopped_and_continued(run: Path, log: str) -> dict[tuple[int, str], float]:
    """Train in two lives, the second of which repeats nothing; return what metrics.jsonl has."""
    train(HALF, run, log=log)
    train(IMAGES, run, resume=True, log=log)
    return figures(run)


def test_csv_has_every_figure_once(tmp_path: Path):
    expected = stopped_and_continued(tmp_path / "run", "csv")
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(expected)
    assert {(int(r["step"]), r["name"]): float(r["value"]) for r in rows} == expected
    assert (tmp_path / "run" / "task.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_killed_run_wrote_after_its_checkpoint_is_not_there_twice(tmp_path: Path):
    run = tmp_path / "run"
    train(HALF, run, log="csv")
    with (run / "metrics.csv").open("a") as file:
        file.write("4,loss,99\n5,lo")
    train(IMAGES, run, resume=True, log="csv")
    text = (run / "metrics.csv").read_text()
    assert "99" not in [line.split(",")[2] for line in text.splitlines()]
    assert text.count("\n4,loss,") == 1


def test_tensorboard_reads_back_what_was_written(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="pip install 'metamirror[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = stopped_and_continued(tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    tags: Any = found.Tags()
    read = {(e.step, tag): e.value for tag in tags["scalars"] for e in found.Scalars(tag)}
    assert read.keys() == expected.keys()
    assert read == pytest.approx(expected, rel=1e-6, abs=1e-30, nan_ok=True)
    assert tags["images"] == ["task"]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0] for tag in tags["tensors"]}
    assert b'"data": "glyphs"' in texts["config/text_summary"]
    assert b'"torch"' in texts["versions/text_summary"]


def test_mlflow_reads_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="pip install 'metamirror[mlflow]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    expected = stopped_and_continued(tmp_path / "run", "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("metamirror")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    read = {
        (point.step, name): point.value
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    }
    assert read == pytest.approx(expected, nan_ok=True)
    assert (run.data.params["data"], run.info.status) == ("glyphs", "FINISHED")
    assert "torch" in run.data.tags
    assert [entry.path for entry in client.list_artifacts(run.info.run_id)] == ["task.png"]


def experiments(store: Path) -> list[str]:
    metas = [file.read_text() for file in store.glob("*/meta.yaml")]
    return [meta for meta in metas if "name: metamirror\n" in meta]


def open_at_once(barrier: Any, folder: Path) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = (folder.parent / "mlruns").as_uri()
    opening = Opening(folder, -1, {}, {})
    folder.mkdir()
    barrier.wait()
    with Logs(open_trackers("mlflow", opening)) as logs:
        logs.add(1, {"loss": 1.0})


def test_runs_that_begin_at_once_share_one_experiment_of_mlflow(tmp_path: Path):
    mlflow = pytest.importorskip("mlflow.tracking", reason="pip install 'metamirror[mlflow]'")
    context = forks()
    barrier, folders = context.Barrier(4), [tmp_path / f"run-{i}" for i in range(4)]
    processes = [context.Process(target=open_at_once, args=(barrier, f)) for f in folders]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
        assert process.exitcode == 0
    assert len(experiments(tmp_path / "mlruns")) == 1
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("metamirror").experiment_id])
    assert sorted(run.info.run_name for run in runs) == [folder.name for folder in folders]


def twice(make: Any) -> Any:
    def made(*given: Any, **named: Any) -> Any:
        make(*given, **named)
        return make(*given, **named)

    return made


def test_what_another_process_makes_in_between_is_taken(tmp_path: Path, monkeypatch):
    """As on a server, which no lock is for: every step is found done by somebody else."""
    pytest.importorskip("mlflow", reason="pip install 'metamirror[mlflow]'")
    from mlflow.store.tracking.file_store import FileStore

    for name in ("_create_default_experiment", "create_experiment"):
        monkeypatch.setattr(FileStore, name, twice(getattr(FileStore, name)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    assert list(open_trackers("mlflow", Opening(tmp_path, -1, {}, {}))) == ["mlflow"]
    assert len(experiments(tmp_path / "mlruns")) == 1


def interrupt(run: Path) -> None:
    """Send this process SIGINT once its run has begun."""
    while not (run / "metrics.jsonl").is_file() or not figures(run):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_mlflow_and_wandb_tell_how_a_run_ended(tmp_path: Path, monkeypatch):
    for package in ("mlflow", "wandb"):
        pytest.importorskip(package, reason=f"pip install 'metamirror[{package}]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.delenv("WANDB_MODE", raising=False)
    from mlflow.tracking import MlflowClient

    def status(run: Path) -> str:
        number = json.loads((run / "mlflow.json").read_text())["run"]
        return MlflowClient((tmp_path / "mlruns").as_uri()).get_run(number).info.status

    failing, stopped = tmp_path / "failing", tmp_path / "stopped"
    with pytest.raises(NonFiniteError):
        train(small(lr=1e30), failing, log="mlflow,wandb")
    assert status(failing) == "FAILED"
    (file,) = failing.glob("wandb/offline-run-*/*.wandb")
    assert finished_records(file)[-1].exit.exit_code == 1
    threading.Thread(target=interrupt, args=(stopped,), daemon=True).start()
    with pytest.raises(InterruptedRun):
        train(small(iterations=10**6), stopped, log="mlflow")
    assert status(stopped) == "KILLED"
    opening = Opening(stopped, 0, {}, {})
    with Logs(open_trackers("mlflow", opening)):
        assert status(stopped) == "RUNNING"
    assert status(stopped) == "FINISHED"


def wandb_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: a header of 7 bytes, then LevelDB's log format."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def finished_records(file: Path) -> list[Any]:
    """Return the records of a .wandb file once the last is there: W&B's service writes it later."""
    from wandb.proto import wandb_internal_pb2

    deadline = time.monotonic() + 60
    while True:
        records = []
        for data in wandb_records(file.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if records and records[-1].HasField("exit"):
            return records
        assert time.monotonic() < deadline, f"{file} has no end: {len(records)} records"
        time.sleep(0.1)


def test_wandb_offline_reads_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="pip install 'metamirror[wandb]'")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    expected = stopped_and_continued(tmp_path / "run", "wandb")
    read: dict[tuple[int, str], float] = {}
    settings: dict[str, Any] = {}
    lives = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(lives) == 2
    assert len({file.name for file in lives}) == 1, "two lives of one run"
    for record in (record for file in lives for record in finished_records(file)):
        settings |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        items = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
        for name, value in items.items():
            if not name.startswith("_") and name != "task":
                read[record.history.step.num, name] = float(json.loads(value))
    assert read == pytest.approx(expected, nan_ok=True)
    assert settings["data"] == "glyphs"
    assert "torch" in settings["versions"]


def test_a_tracker_that_cannot_be_opened_costs_nothing_but_itself(tmp_path: Path, monkeypatch):
    pytest.importorskip("mlflow", reason="pip install 'metamirror[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at.all")
    assert main([*CELL, "--log", "mlflow,csv", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert row["status"] == "done"
    assert (tmp_path / "cells" / "maml-3shot-seed0" / "metrics.csv").is_file()
    said = (tmp_path / "records" / "maml-3shot-seed0.log").read_text()
    assert said.count("warning: mlflow gets nothing of this run, which goes on: ") == 1


def test_an_unknown_tracker_is_named(tmp_path: Path, capsys):
    code = main([*CELL, "--log", "csv,neptune", "--out", str(tmp_path / "out")])
    assert_command_refused(capsys, code, "log is 'csv,neptune'; choose from")
    assert not (tmp_path / "out").exists(), "before anything runs"
    assert_refused(lambda: read_trackers("csv,neptune"), "log is 'csv,neptune'; choose from")
    assert_refused(lambda: read_trackers("csv,csv"), "each once")


class Failing:
    def add(self, step: int, values: Any) -> None:
        raise OSError("no server")

    def image(self, name: str, png: bytes) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...


class Keeping(Failing):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self, step: int, values: Any) -> None:
        self.seen.append(step)


def test_a_tracker_that_fails_costs_nothing_but_itself(capsys):
    first, other = Keeping(), Keeping()
    with Logs({"mlflow": Failing(), "csv": other}, first) as logs:
        logs.add(1, {})
        logs.add(2, {})
    assert first.seen == other.seen == [1, 2]
    assert capsys.readouterr().err.count("mlflow gets no more of this run") == 1


def test_a_comparison_logs_every_cell(tmp_path: Path):
    assert main([*CELL, "--seeds", "2", "--log", "csv", "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("cells/*/metrics.csv"))) == 2
