"""Runs and starts of ours as backbones: the features that their head is given.

Batch normalisation has no running averages here. A backbone sees images that belong to no task, so
it normalises by the statistics of images of the train classes, which are kept beside the learner.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from metamirror.core.files import expanded, write_atomically
from metamirror.core.learner import Learner
from metamirror.core.normalisation import (
    BatchNorm,
    Statistics,
    fixed_statistics,
    recorded_statistics,
)
from metamirror.data import ImageTasks
from metamirror.estimators.backbones.backbone import Backbone
from metamirror.estimators.fitting import FixedStatistics, named_statistics, statistics_of
from metamirror.estimators.inputs.images import image_shape
from metamirror.estimators.starts import SHIPPED, backbone_of, open_start, shipped_names
from metamirror.models import head_of
from metamirror.storage import tensor_file
from metamirror.training.config import load_config
from metamirror.training.factory import build_stream

STATISTICS = "statistics.safetensors"
IMAGES = 128
"""Images of the train classes whose statistics are taken."""


def of_folder(name: str) -> Backbone:
    """Return the body of a run, or of a start that ships with the package."""
    folder = backbone_of(name) or (SHIPPED / name if name in shipped_names() else expanded(name))
    learner = open_start(folder)
    if not _normalises(learner):
        return of_learner(learner, name=name)
    file = folder / STATISTICS
    if not file.is_file():
        statistics = named_statistics(learner.model, _measured(learner, folder))
        facts = {"flip": "flip" in load_config(folder).augment}
        write_atomically(file, tensor_file.pack(statistics, facts))
    stored, facts = tensor_file.read(file)
    backbone = of_learner(learner, statistics_of(learner.model, stored), name)
    # What was trained on mirror images knows both sides of an image.
    return replace(backbone, flip=facts.get("flip") is True)


def of_learner(
    learner: Learner, statistics: Statistics | None = None, name: str = "a learner"
) -> Backbone:
    """Return the body of a learner; where it normalises by batches, with these statistics."""
    shape = image_shape(learner.model)
    if shape is None:
        raise ValueError(f"{name} does not take images: as a backbone, give a function")
    if statistics is None and _normalises(learner):
        raise ValueError(
            f"{name} normalises by the images of a task: name its folder, so that statistics of "
            f"its train classes are taken, or use it as the start"
        )
    channels, size = shape
    body = Body(learner.model, named_statistics(learner.model, statistics))
    return Backbone(body, size, crop=1, mean=0, std=1, channels=channels, name=name)


class NoHead(nn.Linear):
    """A head that gives what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Body(nn.Module):
    """A model without its head, whose batch normalisation has fixed statistics."""

    def __init__(self, model: nn.Module, statistics: Mapping[str, Tensor]):
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        # They differ in nothing but what they compute.
        self.model.get_submodule(head_of(model)).__class__ = NoHead
        self.statistics = FixedStatistics(statistics)

    def forward(self, x: Tensor) -> Tensor:
        with fixed_statistics(self.statistics.of(self.model)):
            found: Tensor = self.model(x)
        return found.flatten(1)


def _normalises(learner: Learner) -> bool:
    return any(isinstance(module, BatchNorm) for module in learner.model.modules())


def _measured(learner: Learner, folder: Path) -> Statistics:
    """Return the statistics of evenly spaced images of the classes that a run was trained on."""
    try:
        stream = build_stream(load_config(folder), "train", batch=1)
    except ValueError as error:
        raise ValueError(
            f"{folder} normalises by batches, and images of its train classes are needed to fix "
            f"the statistics: {error}"
        ) from error
    if not isinstance(stream, ImageTasks):
        raise ValueError(f"{folder} was not trained on images: as a backbone, give a function")
    rows = np.concatenate(
        [np.arange(c.start, c.start + c.count) for c in stream.images.of("train")]
    )
    chosen = rows[np.linspace(0, len(rows) - 1, min(IMAGES, len(rows))).astype(np.int64)]
    images = torch.from_numpy(stream.images.read(chosen))
    with torch.no_grad(), recorded_statistics() as statistics:
        learner.predict(learner.theta(), images.to(next(learner.parameters()).device))
    return statistics
