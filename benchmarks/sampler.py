"""How fast tasks are drawn, and which share of a conv4 iteration that is.

    python benchmarks/sampler.py [--out results/sampler.json]

Uses installed omniglot and mini-imagenet, or random bytes of the same shape where they are absent.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

import metamirror as mm
from metamirror.core.files import write_json
from metamirror.data import ImageClass, ImageSet, ImageTasks, open_images
from metamirror.data.image_set import with_quarter_turns

SHAPES = {"omniglot": (1028, 20, 1, 28), "mini-imagenet": (64, 600, 3, 84)}


def images_of(name: str) -> tuple[ImageSet, bool]:
    try:
        return open_images(name), True
    except ValueError:
        classes, count, channels, size = SHAPES[name]
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (classes * count, channels, size, size), dtype=np.uint8)
        made = [ImageClass(f"{i}", "train", i * count, count) for i in range(classes)]
        turned = with_quarter_turns(made) if name == "omniglot" else tuple(made)
        return ImageSet(name, pixels, turned), False


def seconds(work, repeat: int) -> float:
    times = []
    for i in range(repeat):
        began = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(name: str, shots: int, iterations: int) -> dict[str, object]:
    images, real = images_of(name)
    stream = ImageTasks(images, "train", ways=5, shots=shots, queries=15, seed=0, batch=4)
    channels, size, _ = stream.example_shape
    torch.manual_seed(0)
    model = mm.models.Conv4(ways=5, channels=channels, image_size=size)
    learner = mm.make_learner("maml", model, steps=5, lr=0.01)

    def iterate(step: int) -> None:
        learner.zero_grad()
        learner.meta_loss(stream[step]).backward()

    draws = seconds(lambda step: stream[step], 400 if size < 40 else 60)
    iteration = seconds(iterate, iterations)
    return {
        "data": name,
        "real": real,
        "shots": shots,
        "tasks_per_second": round(4 / draws),
        "ms_per_step_of_4_tasks": round(1000 * draws, 3),
        "ms_per_maml_iteration": round(1000 * iteration, 1),
        "share_percent": round(100 * draws / iteration, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/sampler.json"))
    parser.add_argument("--iterations", type=int, default=5)
    given = parser.parse_args()
    rows = [measure(name, 1, given.iterations) for name in SHAPES]
    for row in rows:
        print(row)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        given.out, {"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}
    )


if __name__ == "__main__":
    main()
