"""How long it takes to learn from 25 photographs and to classify one, beside plain pixels.

    python benchmarks/photo_times.py  # writes results/photo_times.json, shown in docs/features.md

The photographs are JPEG files of five of miniImageNet's test classes, another 25 in each round, and
no feature of theirs is known before. One thread; turns are interleaved; opening the start is not
part of it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.data import open_images

FILE = "photo_times.json"
PHOTOS, PIXELS = '`FewShotClassifier("photos")`', "logistic regression on pixels, 84x84"


def photographs(folder: Path, rounds: int) -> list[tuple[list[Path], list[str], Path]]:
    """25 files with their classes, and one more, for each round."""
    images = open_images("mini-imagenet", image_size=84)
    found = []
    for turn in range(rounds):
        files: list[Path] = []
        for c in images.of("test")[:5]:
            for pixels in images.read(np.arange(c.start + 6 * turn, c.start + 6 * turn + 6)):
                files.append(folder / f"{c.name}-{turn}-{len(files)}.jpg")
                Image.fromarray(pixels.transpose(1, 2, 0)).resize((640, 480)).save(files[-1])
        chosen = [file for i, file in enumerate(files) if i % 6]
        found.append((chosen, [file.name.split("-")[0] for file in chosen], files[0]))
    return found


def pixels_of(files: list[Path]) -> np.ndarray:
    small = [Image.open(file).convert("RGB").resize((84, 84)) for file in files]
    return np.stack([np.asarray(image).ravel() / 255 for image in small])


class Pixels:
    """What two lines of scikit-learn do."""

    def fit(self, files: list[Path], labels: list[str]) -> None:
        self.model = LogisticRegression(max_iter=200).fit(pixels_of(files), labels)

    def predict(self, files: list[Path]) -> object:
        return self.model.predict(pixels_of(files))


def seconds(call: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def measure(rounds: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        turns = photographs(Path(folder), rounds + 1)
        os.environ["METAMIRROR_HOME"] = f"{folder}/home"
        for files, labels, new in turns:
            for name, model in {
                PHOTOS: mm.FewShotClassifier("photos", device="cpu"),
                PIXELS: Pixels(),
            }.items():
                fit = seconds(model.fit, files, labels)
                taken.setdefault(name, []).append((fit, seconds(model.predict, [new])))
    # The first turn opens the start.
    rows = {name: np.array(pairs[1:]) for name, pairs in taken.items()}
    return [
        {
            "classifier": name,
            "fit_seconds": statistics.median(times[:, 0]),
            "predict_ms": 1000 * statistics.median(times[:, 1]),
        }
        for name, times in rows.items()
    ]


def table(results: Path) -> str:
    """The table of docs/features.md."""
    lines = ["| | learning from 25 photographs | classifying one |", "| --- | ---: | ---: |"]
    for row in read_json(results / FILE)["rows"]:
        fit, predict = row["fit_seconds"], row["predict_ms"]
        lines.append(f"| {row['classifier']} | {fit:.2f} s | {predict:.0f} ms |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("results") / FILE)
    given = parser.parse_args()
    rows = measure(given.rounds)
    write_json(given.out, {"rounds": given.rounds, "rows": rows})
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
