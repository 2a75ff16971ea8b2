"""Files of runs, as others may hand them on: settings, learners, checkpoints, adapted models."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from hypothesis import strategies as st
from torch import Tensor

import metamirror as mm
from metamirror.core.files import to_json
from metamirror.data.image_set import ImageClass
from metamirror.data.image_tasks import ImageTasks
from metamirror.data.store import Store
from metamirror.estimators import model_file
from metamirror.estimators.starts import SHIPPED, open_start
from metamirror.experiments.comparison.jobs import Job, read_record
from metamirror.report.collect import collect
from metamirror.storage import checkpoint, learner_file, tensor_file
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.config import RunConfig, load_config
from metamirror.training.logs.metrics_file import seconds_per_iteration
from metamirror.training.outer_step import build_optimizer, descend
from metamirror.training.task_results import read_tasks
from tests.faults.damage import damaged_bytes, damaged_document, odd_values
from tests.faults.fuzzing import Target

SETTINGS = {k: v for k, v in asdict(RunConfig("maml")).items() if v is not None}


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def as_json(value: Any) -> bytes:
    """With the infinities that Python's own reader lets through."""
    return json.dumps(value).encode(errors="surrogatepass")


# Settings


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(str(k))} = {as_toml(v)}" for k, v in value.items())
        return "{" + inside + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(entry) for entry in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return "0000-01-01" if value is None else json.dumps(value)


def toml_of(document: Any) -> bytes:
    if not isinstance(document, dict):
        return as_toml(document).encode(errors="replace")
    lines = [f"{json.dumps(str(key))} = {as_toml(value)}" for key, value in document.items()]
    return "\n".join(lines).encode(errors="replace")


DEEP = st.integers(1, 3000).map(lambda n: b"ways = " + b"[" * n + b"]" * n)
TOML = st.one_of(
    damaged_document(SETTINGS).map(toml_of),
    damaged_bytes(toml_of(SETTINGS)),
    st.binary(max_size=60),
    DEEP,
)


def read_toml(folder: Path, content: bytes) -> None:
    load_config(write(folder / "preset.toml", content)).check()


def read_config(folder: Path, content: bytes) -> None:
    load_config(write(folder / "run" / "config.json", content).parent).check()


# Learners


@cache
def learners() -> list[mm.Learner]:
    torch.manual_seed(0)
    conv, mlp = mm.models.Conv4(2, 1, 16, width=2), mm.models.MLP(1, 1, hidden=(3,))
    return [
        mm.make_learner("maml", mlp, steps=1),
        mm.make_learner("metasgd", conv, steps=1, norm="inductive"),
        mm.make_learner("blockiaf", mlp, steps=1, prior="isotropic:0.1"),
        mm.make_learner("gradnet", mlp, steps=1),
        mm.make_learner("warpgrad", mlp, steps=1),
    ]


@cache
def saved(which: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    learner = learners()[which]
    return learner_file.describe(learner), learner_file.tensors_of(learner)


TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def damaged_tensors(draw: st.DrawFn, sound: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of other types, shapes or names than they should have."""
    tensors = dict(sound)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(tensors)))
        kind = draw(st.sampled_from(["type", "flat", "empty", "odd", "remove", "rename", "all"]))
        if kind == "type":
            tensors[name] = tensors[name].to(draw(st.sampled_from(TYPES)))
        elif kind == "all":
            dtype = draw(st.sampled_from(TYPES))
            tensors = {n: t.to(dtype) for n, t in tensors.items()}
        elif kind == "flat":
            tensors[name] = tensors[name].flatten()
        elif kind == "empty":
            tensors[name] = tensors[name].new_zeros(0)
        elif kind == "odd":
            value = draw(st.sampled_from([float("nan"), float("inf"), 1e30, 0.0]))
            tensors[name] = torch.full_like(
                tensors[name], value if tensors[name].is_floating_point() else 1
            )
        elif len(tensors) > 1:
            moved = tensors.pop(name)
            if kind == "rename":
                tensors[draw(st.sampled_from([f"{name}x", "x", "0/step", "learner/x"]))] = moved
    return tensors


@st.composite
def damaged_header(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header claims something else."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if draw(st.booleans()):
        # Without a checksum, as other programs write it, nothing else stands in the way.
        header.pop("__metadata__", None)
    words = as_json(draw(damaged_document(header)))
    length = len(words) if draw(st.integers(0, 9)) else draw(st.integers(0, 2**64 - 1))
    return length.to_bytes(8, "little") + words + content[8 + size :]


@st.composite
def learner_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    description, tensors = saved(draw(st.integers(0, len(learners()) - 1)))
    words = as_json(draw(damaged_document(description)))
    kind = draw(st.sampled_from(["tensors", "header", "plain", "bytes"]))
    if kind == "tensors":
        return words, tensor_file.pack(draw(damaged_tensors(tensors)), {"step": 1})
    plain = safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})
    if kind == "header":
        return words, draw(damaged_header(plain))
    return words, draw(damaged_bytes(plain)) if kind == "bytes" else plain


def read_learner(folder: Path, files: tuple[bytes, bytes]) -> None:
    write(folder / learner_file.CONFIG, files[0])
    write(folder / learner_file.TENSORS, files[1])
    learner = mm.load(folder)
    pictures = hasattr(learner.model, "channels")
    x = torch.rand(2, 1, 16, 16) if pictures else torch.rand(2, 1)
    first = next(learner.parameters())
    if learner.model.config not in ([one.model.config for one in learners()]):
        return  # another network, which these examples are not for
    y = torch.tensor([0, 1]) if pictures else torch.rand(2, 1, dtype=first.dtype)
    learner.adapt(mm.Batch(x.to(first.dtype), y), steps=1)


@cache
def shipped(name: str) -> tuple[bytes, bytes]:
    folder = SHIPPED / name
    return (folder / learner_file.CONFIG).read_bytes(), (folder / learner_file.TENSORS).read_bytes()


@st.composite
def start_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    words, tensors = shipped("sinusoid-metasgd")
    kind = draw(st.sampled_from(["words", "tensors", "header"]))
    if kind == "words":
        return draw(damaged_bytes(words)), tensors
    return words, draw(damaged_bytes(tensors) if kind == "tensors" else damaged_header(tensors))


def read_start(folder: Path, files: tuple[bytes, bytes]) -> None:
    write(folder / learner_file.CONFIG, files[0])
    write(folder / learner_file.TENSORS, files[1])
    open_start(folder)


# Checkpoints

RUN = RunConfig("metasgd", data="sinusoid", width=3, steps=1)


@cache
def snapshots() -> list[tuple[RunConfig, mm.Learner, dict[str, Tensor], dict[str, Any]]]:
    found = []
    for config in (RUN, RunConfig(**{**asdict(RUN), "optimizer": "sgd"})):
        learner = mm.make_learner("metasgd", mm.models.MLP(1, 1, hidden=(3,)), steps=1)
        optimizer = build_optimizer(config, learner)
        step(learner, optimizer)
        best = {n: t.clone() for n, t in learner_file.tensors_of(learner).items()}
        content = checkpoint.pack(learner, optimizer, checkpoint.TrainingState(step=1), best)
        found.append((config, learner, *tensor_file.unpack(content, "a checkpoint")))
    return found


def step(learner: mm.Learner, optimizer: torch.optim.Optimizer) -> None:
    size = sum(p.numel() for p in parameters_of(optimizer))
    descend(optimizer, torch.full((size,), 1e-3), 1.0)


@st.composite
def checkpoint_files(draw: st.DrawFn) -> tuple[int, bytes]:
    which = draw(st.integers(0, 1))
    _, _, tensors, facts = snapshots()[which]
    if draw(st.integers(0, 4)) == 0:
        return which, draw(damaged_bytes(tensor_file.pack(tensors, facts)))
    said = draw(damaged_document(facts))
    if not isinstance(said, dict):
        said = {"said": said}
    changed = draw(damaged_tensors(tensors))
    try:
        return which, tensor_file.pack(changed, said)
    except ValueError:  # what JSON cannot hold cannot be in such a file
        return which, tensor_file.pack(changed, facts)


def read_checkpoint(folder: Path, given: tuple[int, bytes]) -> None:
    which, content = given
    config = snapshots()[which][0]
    learner = mm.make_learner("metasgd", mm.models.MLP(1, 1, hidden=(3,)), steps=1)
    optimizer = build_optimizer(config, learner)
    for old in (folder / checkpoint.FOLDER).glob("*"):
        old.unlink()
    write(checkpoint.file_of(folder, 1), content)
    found = checkpoint.newest(folder)
    assert found is not None
    standing, best = checkpoint.unpack(*found, learner, optimizer)
    range(standing.step, 10)
    step(learner, optimizer)
    checkpoint.pack(learner, optimizer, standing, best)


# Adapted models


@cache
def adapted() -> tuple[bytes, dict[str, Tensor], dict[str, Any]]:
    x = np.linspace(0, 1, 4 * 256, dtype=np.float32).reshape(4, 1, 16, 16)
    fitted = mm.FewShotClassifier(learners()[1], device="cpu").fit(x, ["a", "b", "a", "b"])
    content = model_file.pack(fitted.fitted_, fitted.get_params())
    return content, *tensor_file.unpack(content, "a model")


@st.composite
def model_files(draw: st.DrawFn) -> bytes:
    content, tensors, facts = adapted()
    kind = draw(st.sampled_from(["facts", "facts", "tensors", "header", "bytes"]))
    if kind == "bytes":
        return draw(damaged_bytes(content))
    if kind == "header":
        return draw(damaged_header(content))
    said = draw(damaged_document(facts)) if kind == "facts" else facts
    changed = draw(damaged_tensors(tensors)) if kind == "tensors" else tensors
    try:
        return tensor_file.pack(changed, said if isinstance(said, dict) else {"said": said})
    except ValueError:
        return tensor_file.pack(changed, facts)


def read_model(folder: Path, content: bytes) -> None:
    fitted = mm.FewShotClassifier.load(write(folder / "model", content), device="cpu")
    fitted.predict_proba(np.zeros((1, 16, 16), np.float32))


# What else stands in folders of runs and of data

INDEX: dict[str, Any] = {}


@st.composite
def index_files(draw: st.DrawFn) -> Any:
    classes = [asdict(ImageClass(f"c{i}", s, 3 * i, 3)) for i, s in enumerate(SPLIT_OF_CLASSES)]
    sound = {
        "format": 1,
        "name": "cub",
        "array": f"cub.{'0' * 16}.bytes",
        "sha256": "0" * 64,
        "shape": [3 * len(classes), 1, 4, 4],
        "left_out": 0,
        "classes": classes,
    }
    return draw(damaged_document(sound))


SPLIT_OF_CLASSES = ("train", "train", "val", "val", "test", "test")


def read_index(folder: Path, document: Any) -> None:
    size = 3 * len(SPLIT_OF_CLASSES) * 16
    write(folder / f"cub.{'0' * 16}.bytes", bytes(size))
    write(folder / "cub.json", as_json(document))
    store = Store(folder)
    store.names()
    images = store.open("cub")
    ImageTasks(images, "train", ways=2, shots=1, queries=1, seed=0, batch=1).task(0, 0)


JOB = Job("maml-1shot-seed0", "run", "cells/maml-1shot-seed0", {"method": "maml"})
RECORD = {
    "job": JOB.identity,
    "found": {"mse": 1.0, "ci95": 0.1},
    "tasks_file": None,
    "reason": None,
}
METRICS = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4}\n'
TIMING = b'{"step": 1, "seconds": 0.5, "steps_per_second": 2.0}\n' * 2
TASKS = b'{"task": 0, "loss": [0.5, 0.4], "accuracy": [20.0, 40.0]}\n' * 2
EVALUATION = {"split": "test", "tasks": 2, "accuracy": 40.0, "ci95": 1.0, "by_step": []}


@st.composite
def run_folders(draw: st.DrawFn) -> dict[str, bytes]:
    return {
        "config.json": as_json(draw(damaged_document(SETTINGS, most=1))),
        "versions.json": as_json(draw(damaged_document({"format": 1, "threads": 1}, most=1))),
        "metrics.jsonl": draw(damaged_bytes(METRICS)),
        "timing.jsonl": draw(damaged_bytes(TIMING)),
        "evaluations/test.json": as_json(draw(damaged_document(EVALUATION))),
        "evaluations/test.jsonl": draw(damaged_bytes(TASKS, to_lines(odd_values_of(draw)))),
        "records/maml-1shot-seed0.json": as_json(draw(damaged_document(RECORD))),
    }


def odd_values_of(draw: st.DrawFn) -> Any:
    return draw(odd_values)


def to_lines(value: Any) -> bytes:
    return (to_json(value, indent=None) + "\n").encode(errors="replace")


def read_run(folder: Path, files: dict[str, bytes]) -> None:
    run = folder / "run"
    for name, content in files.items():
        write(run / name, content)
    # A page of runs shows what is damaged; it never fails on it.
    for found in collect(run).runs:
        assert found.status
        assert isinstance(found.step, int)
        assert found.method or found.settings or found.test is None
    seconds_per_iteration(run)
    read_record(replace(JOB, out=str(run)))
    read_tasks(run / "evaluations" / "test.jsonl")


TARGETS = [
    Target("configuration, TOML", TOML, read_toml, weight=1.5),
    Target(
        "configuration, JSON",
        damaged_document(SETTINGS).map(as_json) | damaged_bytes(as_json(SETTINGS)),
        read_config,
        weight=1.5,
    ),
    Target("learners (JSON, safetensors)", st.deferred(learner_files), read_learner),
    Target("shipped starts", st.deferred(start_files), read_start, weight=0.5),
    Target("checkpoints of runs", st.deferred(checkpoint_files), read_checkpoint),
    Target("adapted models", st.deferred(model_files), read_model),
    Target("index of installed data", st.deferred(index_files), read_index, weight=0.5),
    Target("metrics, timing, records", st.deferred(run_folders), read_run, weight=0.5),
]
