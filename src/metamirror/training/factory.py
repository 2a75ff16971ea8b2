"""Builds what a configuration describes: its tasks, its network, its learner."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from metamirror import models
from metamirror.core.learner import Learner
from metamirror.data import TaskStream, tasks
from metamirror.methods import find_method, make_learner
from metamirror.training.config import RunConfig
from metamirror.training.device import place
from metamirror.training.initial_body import Body, fill_body


def resolved(config: RunConfig) -> RunConfig:
    """Return a configuration with the method's own number of steps and step size if it has none."""
    steps, lr = find_method(config.method)[0].own_settings(config.steps, config.lr)
    return replace(config, steps=steps, lr=lr)


def build_stream(
    config: RunConfig, split: str, *, batch: int | None = None, data_dir: Path | None = None
) -> TaskStream:
    """Return the tasks of a run. Only those of training have the run's seed, and are augmented.

    Validation and test tasks are the same for every run, so that runs of several seeds can be
    compared task by task.
    """
    return tasks(
        config.data,
        split,
        ways=config.ways,
        shots=config.shots,
        queries=config.queries,
        seed=config.seed if split == "train" else 0,
        batch=config.tasks_per_step if batch is None else batch,
        image_size=config.image_size,
        augment=config.augment if split == "train" else None,
        data_dir=data_dir,
    )


def build_model(config: RunConfig, stream: TaskStream) -> nn.Module:
    """Return the network of a run, made for the examples of its tasks."""
    shape = stream.example_shape
    name, options = models.parse(config.model or ("conv4" if len(shape) == 3 else "mlp"))
    if name not in models.MODELS:
        return models.build_own(name, _offered(config, stream), options)
    if name in ("linear", "mlp"):
        fitting: dict[str, Any] = {"inputs": math.prod(shape), "outputs": stream.outputs}
        if name == "mlp" and config.width is not None:
            fitting["hidden"] = (config.width, config.width)
        return models.build(name, **fitting | options)
    fitting = {"ways": stream.outputs} | ({} if config.width is None else {"width": config.width})
    if name == "text":
        if len(shape) != 1:
            raise ValueError(f"text takes rows of tokens, and {config.data} has {shape} numbers")
        return models.build(name, **fitting | {"length": shape[0]} | options)
    if len(shape) != 3:
        raise ValueError(f"{name} takes images, and {config.data} has none: choose model mlp")
    channels, size, width = shape
    if size != width:
        raise ValueError(
            f"{name} takes square images, and those of {config.data} are {size}x{width}: crop them"
        )
    return models.build(name, **fitting | {"channels": channels, "image_size": size} | options)


def _offered(config: RunConfig, stream: TaskStream) -> dict[str, Any]:
    """Return what a user's own function that builds a model may ask for, by these names."""
    shape = list(stream.example_shape)
    found: dict[str, Any] = {"shape": shape, "inputs": math.prod(shape)}
    found |= {"outputs": stream.outputs, "ways": stream.outputs}
    if len(shape) == 3:
        found |= {"channels": shape[0], "image_size": shape[1]}
    return found | ({} if config.width is None else {"width": config.width})


def build_learner(
    config: RunConfig,
    stream: TaskStream,
    device: torch.device | None = None,
    body: Body | None = None,
) -> Learner:
    """Return the learner of a run: its initialisation is seeded, or has the body of another one."""
    if config.vectorize and stream.ragged:
        raise ValueError(
            f"vectorize is on, and the tasks of {config.data} with {config.ways} ways and "
            f"{config.shots} shots may differ in their shapes: leave it off, or let a source of "
            f"your own say ragged = False"
        )
    device = device or torch.device("cpu")
    config = resolved(config)
    torch.manual_seed(config.seed)
    model = build_model(config, stream).to(getattr(torch, config.dtype))
    if body is not None:
        fill_body(model, body)
    learner = make_learner(
        config.method,
        model,
        steps=config.steps,
        lr=config.lr,
        first_order=config.first_order,
        norm=config.norm,
        # Where the run says nothing, the method's own count.
        **{n: own for n in ("loss", "query_loss") if (own := getattr(config, n)) is not None},
        metric=config.metric,
        **beside_method(config.method, config.adapts, config.prior),
        vectorize=config.vectorize is True and config.autocast == "none",
        # Runs from before the adjoint slot may have both, and the result is that of first order.
        recompute=config.recompute and not config.first_order,
    )
    use_precision(learner, config)
    if config.vectorize is None:
        able = learner.settings.adjoint.vectorizes and learner.settings.autocast is None
        gains = device.type != "cpu" or gains_by_vmap(learner, config.tasks_per_step)
        learner.configure(
            vectorize=able and gains and not stream.ragged and fits_vmap(learner, stream)
        )
    return learner.to(device)


SMALL_IMAGE = 40
"""Height and width up to which a conv4 gains by vmap: small operations do."""
STACKED = range(4, 9)
"""How many tasks a step a conv4 then has: fewer gain little, more take much memory."""


def gains_by_vmap(learner: Learner, tasks: int) -> bool:
    """Return whether a CPU is faster with all tasks of a step at once."""
    model = learner.model
    if not any(isinstance(m, nn.Conv2d) for m in model.modules()):
        return True
    # Its blocks know how to be stacked. With more threads, tasks side by side are faster.
    small = isinstance(model, models.Conv4) and model.image_size <= SMALL_IMAGE
    return small and torch.get_num_threads() == 1 and tasks in STACKED


def fits_vmap(learner: Learner, stream: TaskStream) -> bool:
    """Return whether tasks can run under vmap; a model of the user's own is tried on one."""
    if learner.is_ours:
        return True
    try:
        learner.configure(vectorize=True)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            learner.meta_loss([place(stream.task(0, 0), learner)])
    except ValueError:
        return False
    finally:
        learner.configure(vectorize=False)
    return True


def extra_parameters(
    method: str,
    model: nn.Module,
    *,
    steps: int | None = None,
    prior: str | None = None,
    adapts: str = "all",
) -> int:
    """Return how many parameters a method learns besides the start; the model may be a meta one."""
    found, words = find_method(method)
    own: dict[str, Any] = beside_method(method, adapts, prior)
    learner = make_learner(method, model, steps=found.own_settings(steps, None)[0], **own)
    plain = make_learner("maml", model, adapts=words.get("adapts", adapts))
    start = dict(plain.named_parameters())
    named = learner.named_parameters()
    return sum(p.numel() for name, p in named if p.requires_grad and name not in start)


def beside_method(method: str, adapts: str, prior: str | None) -> dict[str, str]:
    """Return what all runs adapt, and their prior, where the method's own words do not say it."""
    given = {} if adapts == "all" else {"adapts": adapts}
    if prior is not None:
        given["prior"] = prior
    words = find_method(method)[1]
    return {name: word for name, word in given.items() if name not in words}


def use_precision(learner: Learner, config: RunConfig) -> None:
    """Let the model's operations run in the type that the run asks for."""
    learner.configure(autocast=torch.bfloat16 if config.autocast == "bf16" else None)
