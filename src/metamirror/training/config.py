"""The settings of a run, in one frozen object that is written beside its results."""

import difflib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from metamirror import models
from metamirror.core.checks import check_lr, check_steps
from metamirror.core.files import expanded, read_json
from metamirror.core.option_spec import convert
from metamirror.core.settings import Norm
from metamirror.data.path_spec import absolute
from metamirror.data.sizes import MOST, Count, as_count


@dataclass(frozen=True)
class RunConfig:
    """The settings of one training run; the defaults are the paper's protocol."""

    method: str  # a method's key; its options may follow, as in blockiaf:variant=released.
    # the data set; folder:PATH, arrays:FILE.npz, hf:PATH and package.module:function take your own.
    data: str = "glyphs"
    # the network: conv4, resnet12, vit, text, linear or mlp, with options as in vit:depth=6, or
    # your own, package.module:build; by default conv4 for images and the MLP for anything else.
    model: str | None = None
    width: int | None = None  # filters of the network's first layer; by default the model's own.
    # a run whose network this one starts from, all but its head: one of pretrain, or any other.
    init: str | None = None
    # height and width of the images; by default as the data set has them.
    image_size: int | None = None
    augment: str = "none"  # changes to the images of training tasks, such as flip,shift.
    ways: Count = 5  # classes of a task, or a range of which each task draws, such as 5-20.
    shots: Count = 1  # labelled examples a class (for regression: a task), or a range.
    queries: int = 15  # query examples a class (for regression: a task).
    steps: int | None = None  # inner steps, K; by default the method's own, of most 5.
    # inner learning rate, alpha, on losses that are means over examples; by default the method's
    # own, of most 0.01.
    lr: float | None = None
    iterations: int = 60_000  # outer steps, R.
    tasks_per_step: int = 4  # tasks per outer step, over all processes together.
    # the outer optimiser; sgd is Nesterov's where momentum is above 0.
    optimizer: Literal["adam", "sgd"] = "adam"
    outer_lr: float = 1e-3  # outer learning rate, beta.
    # outer learning rate of the geometry's parameters; by default outer_lr.
    geometry_lr: float | None = None
    momentum: float = 0.9  # the momentum of sgd.
    weight_decay: float = 0.0  # an L2 penalty on everything that is meta-learned.
    # how the outer learning rates fall; a cosine ends at 0 with the last iteration.
    schedule: Literal["constant", "step", "cosine"] = "constant"
    decay_every: int = 20_000  # iterations between the drops of the schedule called step.
    decay_factor: float = 0.1  # what a drop multiplies the learning rates by.
    # the largest norm of the meta-gradient, which is a mean over tasks and examples.
    clip_norm: float | None = None
    clip_value: float | None = None  # the largest size of each of its entries.
    seed: int = 0  # the seed of the initialisation and of every task.
    first_order: bool = False  # treat inner gradients as constants.
    norm: Norm = "transductive"  # which statistics normalise the query.
    # what is minimised: cross_entropy, mse, or your own, package.module:function; by default it
    # follows the targets.
    loss: str | None = None
    query_loss: str | None = None  # what the outer level minimises, where that is another.
    # what is reported beside the loss: accuracy, iou, f1, mse, mae, r2, or your own,
    # package.module:function; by default accuracy of labels and mse of numbers.
    metric: str | None = None
    # what adapts in the inner loop: all, head, body, bias, norm, last:N, lora:rank=R, or names; a
    # method's own word, as in maml:adapts=head, goes before it.
    adapts: str = "all"
    prior: str | None = None  # an explicit prior of the lower level, such as isotropic:0.1.
    # run the tasks of a step under torch.func.vmap; by default where that is faster.
    vectorize: bool | None = None
    # build the graphs of inner steps again when needed: less memory, more time.
    recompute: bool = False
    validate_every: int = 500  # iterations between validations; 0 for none, so that best is last.
    val_tasks: int = 100  # validation tasks, the same ones every time.
    checkpoint_every: int = 500  # iterations between checkpoints.
    log_every: int = 100  # iterations between lines of metrics.jsonl.
    # stop at a meta-loss or meta-gradient that is not finite, or skip and count it.
    on_nonfinite: Literal["stop", "skip"] = "stop"
    # stop a run that falls back to guessing for a hundred steps, or warn of it once.
    on_collapse: Literal["stop", "warn"] = "warn"
    # bf16 runs the model's own operations in bfloat16, where they can.
    autocast: Literal["none", "bf16"] = "none"
    dtype: Literal["float32", "float64"] = "float32"  # the type of everything that is learned.
    imports: tuple[str, ...] = ()  # the modules that train was told to import, on record.
    # set by pretrain alone: passes over the labelled images of the train classes, from which it
    # learns in place of tasks, and images of a step.
    epochs: int | None = None
    batch: int | None = None

    @property
    def pretrains(self) -> bool:
        """Whether the run learns from the labels of the train classes, and not from tasks."""
        return self.epochs is not None

    @property
    def title(self) -> str:
        """What messages call the run: its method, or pretraining."""
        return "pretraining" if self.pretrains else self.method

    def check(self) -> None:
        """Refuse values that no run can have; methods and data sets check their own."""
        if self.steps is not None:
            check_steps(self.steps)
        if self.lr is not None:
            check_lr(self.lr)
        if self.model is not None:
            models.parse(self.model)
        as_count("ways", self.ways)
        as_count("shots", self.shots)
        counts = ["queries", "iterations", "tasks_per_step", "decay_every"]
        counts += ["checkpoint_every", "log_every", "width", "image_size", "epochs", "batch"]
        self._demand(lambda v: 1 <= v <= MOST, f"in 1 .. {MOST}", *counts)
        self._demand(lambda v: 0 <= v <= MOST, f"in 0 .. {MOST}", "steps", "validate_every")
        self._demand(lambda v: 2 <= v <= MOST, f"in 2 .. {MOST}", "val_tasks")
        self._demand(lambda v: 0 <= v < 2**63, "in 0 .. 2**63 - 1", "seed")
        rates = ("outer_lr", "geometry_lr", "weight_decay")
        self._demand(lambda v: 0 <= v < float("inf"), "finite and at least 0", *rates)
        limits = ("clip_norm", "clip_value")
        self._demand(lambda v: 0 < v < float("inf"), "finite and above 0", *limits)
        self._demand(lambda v: 0 <= v < 1, "at least 0 and below 1", "momentum")
        self._demand(lambda v: 0 < v <= 1, "above 0 and at most 1", "decay_factor")

    def _demand(self, holds: Callable[[Any], bool], rule: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise ValueError(f"{name} is {value}; it must be {rule}")


def load_config(path: Path) -> RunConfig:
    """Read a configuration: a run folder, the config.json of one, or a TOML preset."""
    if path.is_dir():
        path = path / "config.json"
    elif not path.suffix and not path.exists():
        raise ValueError(f"there is no run folder {path}")
    if path.suffix != ".toml":
        return parse_config(read_json(path), path)
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    return parse_config(values, path)


def parse_config(values: Any, origin: object) -> RunConfig:
    """Make a configuration from the fields of a file, each checked against its type."""
    if not isinstance(values, dict):
        raise ValueError(f"{origin} holds {type(values).__name__}, not a configuration")
    hints = get_type_hints(RunConfig)
    for key in values:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(hints)}"
            raise ValueError(f"{origin} has the unknown key {key!r}; {meant}")
    needed = [f.name for f in fields(RunConfig) if f.default is MISSING and f.name not in values]
    if needed:
        raise ValueError(f"{origin} does not say which {needed[0]} to train")
    try:
        return RunConfig(**{name: convert(name, v, hints[name]) for name, v in values.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{origin} does not fit this version: {error}") from error


def located(config: RunConfig) -> RunConfig:
    """Return a configuration with full paths: a run finds them from wherever it is asked for."""
    init = None if config.init is None else str(expanded(config.init).resolve())
    return replace(config, data=absolute(config.data), init=init)


def difference(config: RunConfig, other: RunConfig) -> list[str]:
    """Return the keys in which two configurations differ."""
    ours, theirs = asdict(config), asdict(other)
    return [key for key in ours if ours[key] != theirs[key]]


def labels_of(configs: Iterable[RunConfig]) -> dict[RunConfig, str]:
    """Name runs that differ in more than their seed, by their configuration with seed 0.

    The first of a method has its name; a further one says in what it differs from the first.

    >>> slow = RunConfig("maml", lr=0.001, seed=3)
    >>> list(labels_of([RunConfig("maml"), RunConfig("maml", seed=1), slow]).values())
    ['maml', 'maml lr=0.001']
    """
    labels: dict[RunConfig, str] = {}
    firsts: dict[str, RunConfig] = {}
    for config in (replace(c, seed=0) for c in configs):
        first = firsts.setdefault(config.method, config)
        words = (f"{key}={getattr(config, key)}" for key in difference(config, first))
        labels.setdefault(config, " ".join([config.method, *words]))
    return labels
