"""Small starts and small tasks: images of stripes, told apart by an untrained network."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

import metamirror as mm

SIZE = 28


def stripes(classes: int, each: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[str]]:
    """Images (n, 28, 28) of noisy stripes, whose direction and width make the class."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images, labels = [], []
    for c in range(classes):
        angle = np.pi * c / classes
        wave = np.sin((np.cos(angle) * rows + np.sin(angle) * columns) * (0.5 + 0.2 * c))
        for _ in range(each):
            noise = random.normal(scale=0.2, size=wave.shape)
            images.append(np.clip(127 + 90 * (wave + noise), 0, 255).astype(np.uint8))
            labels.append(f"class {c}")
    return np.stack(images), labels


def start(method: str = "maml", **options) -> mm.Learner:
    """An untrained conv4 with room for five classes."""
    torch.manual_seed(0)
    model = mm.models.Conv4(ways=5, channels=1, image_size=SIZE, width=4)
    return mm.make_learner(method, model, **{"steps": 3, "lr": 0.1, **options})


def fitted(method: str = "maml", classes: int = 3, each: int = 2, **params) -> mm.FewShotClassifier:
    return mm.FewShotClassifier(start(method), **params).fit(*stripes(classes, each))
