"""Everything that decides the numbers of a table, as fields and as one line above it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from metamirror.core import losses, metrics
from metamirror.core.metrics import described
from metamirror.core.settings import Settings
from metamirror.data import ImageTasks, TaskStream
from metamirror.data.sizes import Count, in_words
from metamirror.experiments.comparison.plan import SPLITS, network_of
from metamirror.experiments.comparison.spec import PerRow, Spec
from metamirror.experiments.comparison.table import Row
from metamirror.models import config_of
from metamirror.training.config import RunConfig

OF_A_ROW = ("method", "shots", "seed", "lr", "imports")
"""Settings that differ between runs by design."""


def make_protocol(
    spec: Spec,
    rows: Sequence[Row],
    streams: Mapping[tuple[str, Count], TaskStream],
    search: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the fields of table.json's `protocol`; `line` says them to people."""
    base = spec.base
    any_stream = streams["test", spec.shots[0]]
    own = [row for row in rows if all(job.work == "run" for job in row.jobs.values())]
    trained = {row.method: row for row in own}
    first = {row.jobs[base.seed].name: row.jobs[base.seed].config for row in own}
    fields: dict[str, Any] = {k: v for k, v in asdict(base).items() if k not in OF_A_ROW}
    fields["ways"] = base.ways if isinstance(any_stream, ImageTasks) else None
    targets = any_stream.task(0, 0).query.y
    loss = losses.make(base.query_loss or base.loss)
    metric = metrics.make(base.metric) or metrics.metric_for(targets, loss)
    fields["metric"] = described(metric)
    fields["network"] = config_of(network_of(base, any_stream))
    fields["example_shape"] = list(any_stream.example_shape)
    fields["data_identity"] = any_stream.identity
    fields["classes"] = {
        split: len(stream.classes)
        for split in SPLITS
        if isinstance(stream := streams[split, spec.shots[0]], ImageTasks)
    }
    fields["shots"] = list(spec.shots)
    fields["steps"] = Settings.steps if base.steps is None else base.steps
    steps = {label: row.jobs[base.seed].config["steps"] for label, row in trained.items()}
    fields["own_steps"] = {label: k for label, k in steps.items() if k != fields["steps"]}
    fields["seeds"] = {label: len(row.jobs) for label, row in trained.items()}
    fields["lr"] = {name: config["lr"] for name, config in first.items()}
    if search is not None and search["geometry"]:
        fields["geometry_lr"] = {name: config["geometry_lr"] for name, config in first.items()}
    fields["search"] = None if search is None else {k: v for k, v in search.items() if k != "rows"}
    fields["recipes"] = spec.recipes
    fields["own_recipes"] = {name: dict(row.recipe) for name, row in trained.items() if row.recipe}
    fields["test_tasks"] = spec.test_tasks
    fields["weights"] = "best on validation tasks" if base.validate_every else "last"
    interval = "95 %; one seed: over tasks; several: over tasks and seeds, crossed, Student's t"
    fields["interval"] = interval
    lr = spec.lr_of({label: row.spec for label, row in trained.items()})
    fields["line"] = line(fields, spec, lr, [] if search is None else search["rows"])
    return fields


def line(
    fields: Mapping[str, Any], spec: Spec, lr: PerRow[float], found: Sequence[Mapping[str, Any]]
) -> str:
    """Return the protocol in words; `found` are the rows of a search for step sizes."""
    base, shape, classes = spec.base, fields["example_shape"], fields["classes"]
    network, counts = fields["network"], set(fields["seeds"].values())
    width = network.get("width", network.get("hidden"))
    recipes: dict[str, list[str]] = {}
    for label, outer in fields["own_recipes"].items():
        recipes.setdefault(_outer(replace(base, **outer)), []).append(label)
    words = [
        base.data,
        classes and _example(shape),
        classes and "/".join(str(classes[s]) for s in SPLITS) + " classes (train/val/test)",
        classes and _drawn(base.ways, "way"),
        " and ".join(_drawn(n, "shot") for n in fields["shots"]),
        f"{base.queries} queries" + (" a class" if classes else ""),
        network["name"] + (f" of width {width}" if width else ""),
        base.init and f"its body from {Path(base.init).name}",
        f"{PerRow({'': fields['steps'], **fields['own_steps']})} inner "
        f"step{'' if fields['steps'] == 1 and not fields['own_steps'] else 's'}"
        + (", first order" if base.first_order else ""),
        _step_sizes(fields, lr, found),
        f"{base.iterations:,} iterations of {base.tasks_per_step} tasks",
        _outer(base),
        *(f"for {' and '.join(labels)} {outer}" for outer, labels in recipes.items()),
        base.loss and f"loss {base.loss}",
        base.query_loss and f"query loss {base.query_loss}",
        base.augment != "none" and f"augmented by {base.augment}",
        base.prior and f"prior {base.prior}",
        base.adapts != "all" and f"{base.adapts} adapts",
        f"{base.norm} normalisation",
        base.autocast != "none" and f"{base.autocast} autocast",
        base.dtype != "float32" and base.dtype,
        base.on_nonfinite == "skip" and "steps that are not finite are skipped",
        f"best of the validations on {base.val_tasks} tasks every {base.validate_every} iterations"
        if base.validate_every
        else "last weights, nothing selected",
        f"{fields['test_tasks']} test tasks, the same for all rows",
        f"seeds: {spec.seeds_of(list(fields['seeds'])) if len(counts) > 1 else counts.pop()}",
    ]
    return "; ".join(str(word) for word in words if word) + "."


def _example(shape: Sequence[int]) -> str:
    size = "x".join(map(str, shape[1:] if len(shape) == 3 else shape))
    if len(shape) != 3:
        return f"{size} numbers each"
    return f"{size} pixels, {shape[0]} channel{'' if shape[0] == 1 else 's'}"


def _drawn(count: Count, what: str) -> str:
    return in_words(count, what) + ("" if isinstance(count, int) else ", drawn for each task")


def _step_sizes(
    fields: Mapping[str, Any], lr: PerRow[float], found: Sequence[Mapping[str, Any]]
) -> str:
    search = fields["search"]
    if search is None:
        return f"inner step size {lr}"
    inner, outer = (
        "{" + ", ".join(f"{rate:g}" for rate in search[key]) + "}"
        for key in ("candidates", "geometry")
    )
    words = f"inner step size for each row from {inner}"
    if search["geometry"]:
        words += f" and the geometry's outer learning rate from {outer},"
    words += f" by {search['tasks']} validation tasks after {search['iterations']:,} iterations"
    known = [
        (row, " and ".join(f"{rate:g}" for rate in rates if rate is not None))
        for row in found
        if (rates := (row["lr"], row.get("geometry_lr")))[0] is not None
    ]
    if not known:
        return words
    # What most rows have, and the others by name.
    [(common, _)] = Counter(rates for _, rates in known).most_common(1)
    several = len(fields["shots"]) > 1
    apart = [
        " ".join([row["label"], *([f"{row['shots']}-shot"] if several else []), rates])
        for row, rates in known
        if rates != common
    ]
    return f"{words} ({', '.join([common, *apart])})"


def _outer(base: RunConfig) -> str:
    own = "" if base.geometry_lr is None else f" ({base.geometry_lr:g} for the geometry)"
    words = [
        "Adam" if base.optimizer == "adam" else "SGD",
        f"outer learning rate {base.outer_lr:g}{own}",
        base.optimizer == "sgd" and base.momentum and f"Nesterov {base.momentum:g}",
        base.weight_decay and f"weight decay {base.weight_decay:g}",
        base.schedule == "step" and f"times {base.decay_factor:g} every {base.decay_every:,}",
        base.schedule == "cosine" and "cosine",
        base.clip_norm is not None and f"clip_norm {base.clip_norm:g}",
        base.clip_value is not None and f"clip_value {base.clip_value:g}",
    ]
    return ", ".join(str(word) for word in words if word)
