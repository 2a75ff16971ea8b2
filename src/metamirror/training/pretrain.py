"""Pretraining: a run whose body learns from the labels of the train classes, in place of tasks.

It leaves a run of `protonet`, the nearest class mean of the body's features, which validation tasks
choose. `train --init` starts any method from its body. As a first stage: Chen et al. 2019, Sun et
al. 2019 (MTL), Ye et al. 2020 (FEAT), Chen et al. 2021 (Meta-Baseline).
"""

from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from metamirror.core.learner import Learner
from metamirror.core.settings import Norm
from metamirror.data import ImageTasks, TaskStream
from metamirror.data.image_tasks import augmentation
from metamirror.data.labelled_batches import LabelledBatches
from metamirror.data.sizes import Count
from metamirror.parallel.allocator import spare_memory_for
from metamirror.storage.checkpoint import parameters_of
from metamirror.training.config import RunConfig
from metamirror.training.distributed import joined_ranks
from metamirror.training.factory import build_learner, build_stream, resolved
from metamirror.training.initial_body import initial_body
from metamirror.training.interrupts import Interrupts
from metamirror.training.label_source import LabelSource, make_classifier
from metamirror.training.logs.registry import read_trackers
from metamirror.training.outer_loop import outer_loop
from metamirror.training.outer_step import build_optimizer
from metamirror.training.run import Run

METHOD = "protonet"
OUTER_LR = {"sgd": 0.1, "adam": 1e-3}
OFTEN = 100
"""Most steps between two checkpoints: an epoch may take long."""


@dataclass(frozen=True)
class Pretraining:
    """The settings of a pretraining; the others of its run follow from them."""

    # the data set, as in train.
    data: str = "glyphs"
    # the network, as in train: by default conv4 for images and the MLP for anything else.
    model: str | None = None
    width: int | None = None  # filters of the network's first layer; by default the model's own.
    # height and width of the images; by default as the data set has them.
    image_size: int | None = None
    init: str | None = None  # a run whose network this one starts from, all but its head.
    # changes to the images: flip, shift and colour, with commas between them, or none; by default
    # shift, and flip for images in colour, since a letter in a mirror is another letter.
    augment: str | None = None
    epochs: int = 30  # passes over the labelled images of the train classes.
    batch: int = 128  # images of a step.
    # the optimiser; sgd is Nesterov's where momentum is above 0.
    optimizer: Literal["adam", "sgd"] = "adam"
    outer_lr: float | None = None  # the learning rate; by default 0.1 for sgd and 0.001 for adam.
    momentum: float = 0.9  # the momentum of sgd.
    weight_decay: float = 5e-4  # an L2 penalty on all parameters.
    # how the learning rate falls; a cosine ends at 0 with the last step.
    schedule: Literal["constant", "cosine"] = "cosine"
    clip_norm: float | None = None  # the largest norm of the gradient.
    seed: int = 0  # the seed of the initialisation, the order of the images and their changes.
    norm: Norm = "transductive"  # which statistics normalise the query of a validation task.
    ways: Count = 5  # classes of a validation task.
    shots: Count = 5  # its labelled examples a class; as many tasks more have 1.
    queries: int = 15  # its query examples a class.
    val_tasks: int = 100  # validation tasks of each kind, the same ones after every epoch.
    # stop at a loss or gradient that is not finite, or skip and count it.
    on_nonfinite: Literal["stop", "skip"] = "stop"
    # bf16 runs the model's own operations in bfloat16, where they can.
    autocast: Literal["none", "bf16"] = "none"
    dtype: Literal["float32", "float64"] = "float32"  # the type of everything that is learned.
    imports: tuple[str, ...] = ()  # the modules that pretrain was told to import, on record.

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the settings of a run that was pretrained."""
        if not config.pretrains:
            raise ValueError(
                f"this is a configuration of metamirror train, for {config.method}: pretrain takes "
                f"one that pretrain has written"
            )
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    def config(self) -> RunConfig:
        """Return the configuration of the run, of which the data decide the rest."""
        given: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        rate = OUTER_LR[self.optimizer] if self.outer_lr is None else self.outer_lr
        augment = "none" if self.augment is None else self.augment
        config = RunConfig(METHOD, **given | {"outer_lr": rate, "augment": augment})
        config.check()
        return resolved(config)

    def completed(self, batches: LabelledBatches) -> RunConfig:
        """Return the configuration with what follows from the number of images."""
        each = batches.per_epoch
        return replace(
            self.config(),
            augment=self.augment or usual_changes(batches),
            batch=batches.batch,
            iterations=self.epochs * each,
            validate_every=each,
            checkpoint_every=min(each, OFTEN),
            log_every=each,
        )


def usual_changes(batches: LabelledBatches) -> str:
    """Return the changes of images that leave their class: mirrored letters are other letters."""
    shape, dtype = batches.images.pixels.shape, batches.images.pixels.dtype
    if len(shape) != 4 or dtype != "uint8":
        return "none"
    return "flip,shift" if shape[1] == 3 else "shift"


def pretrain(
    settings: Pretraining,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    data_dir: Path | None = None,
    log: str = "",
) -> Learner:
    """Train the body of a network on the labels of the train classes and leave a run folder.

    Args:
        settings: what is trained, and how.
        out: the run folder.
        resume: continue from the last checkpoint; a folder that does not exist starts a new run.
        device: auto (CUDA, MPS or CPU, in this order), or one of them.
        data_dir: where the data are, if not in the usual place.
        log: trackers that get every figure too, such as tensorboard,mlflow,wandb,csv.
    """
    config = settings.config()
    read_trackers(log)
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(device))
        if ranks.world > 1:
            raise ValueError(
                f"pretraining normalises a batch as a whole, in one process, and this is one of "
                f"{ranks.world}: start it without torchrun"
            )
        stream = build_stream(config, "train", batch=1, data_dir=data_dir)
        batches = labelled_batches(stream, settings)
        config = settings.completed(batches)
        batches.augment = augmentation(config.augment)
        spare_memory_for(stream.example_shape)
        learner = build_learner(config, stream, ranks.device, initial_body(config, out, ranks))
        classifier = make_classifier(learner, batches.classes)
        optimizer = build_optimizer(config, learner, classifier)
        source = LabelSource(learner, classifier, parameters_of(optimizer), batches, stream)
        run = Run(config, out, ranks, source, learner, optimizer)
        for shots in dict.fromkeys((1, config.shots)):
            few = replace(config, shots=shots)
            validation = build_stream(few, "val", batch=1, data_dir=data_dir)
            run.validations[f"{shots}shot"] = validation
        interrupts = stack.enter_context(Interrupts())
        run.open(stack, resume, log)
        outer_loop(run, interrupts, "pretrain")
    return learner


def labelled_batches(stream: TaskStream, settings: Pretraining) -> LabelledBatches:
    """Return the examples of the classes from which tasks are drawn, with their labels."""
    if not isinstance(stream, ImageTasks):
        raise ValueError(
            f"{settings.data} has no labelled examples, its tasks are generated: pretrain on a "
            f"data set with classes"
        )
    return LabelledBatches(stream.images, batch=settings.batch, seed=settings.seed)
