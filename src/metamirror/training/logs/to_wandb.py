"""Weights & Biases: offline into RUN/wandb, unless $WANDB_MODE says otherwise."""

import io
import os
import uuid

from PIL import Image

from metamirror.core.files import read_json, write_json
from metamirror.training.logs.log import Opening, Values

PROJECT, FILE = "metamirror", "wandb.json"


class Tracker:
    """Writes metrics, images, the configuration and versions; a continued run is one of W&B's."""

    def __init__(self, opening: Opening):
        import wandb

        self._wandb = wandb
        file = opening.folder / FILE
        if not file.is_file():
            write_json(file, {"id": uuid.uuid4().hex[:12]})
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=opening.title,
            id=str(read_json(file)["id"]),
            resume="allow",
            mode=None if "WANDB_MODE" in os.environ else "offline",
            dir=str(opening.folder),
            config={**opening.config, "versions": opening.versions},
            settings=wandb.Settings(silent=True, console="off"),
        )

    def add(self, step: int, values: Values) -> None:
        self._run.log({name: v for name, v in values.items() if v is not None}, step=step)

    def image(self, name: str, png: bytes) -> None:
        # Without a step of its own: images belong to the run.
        self._run.log({name: self._wandb.Image(Image.open(io.BytesIO(png)))}, commit=False)

    def close(self, error: BaseException | None = None) -> None:
        self._run.finish(exit_code=0 if error is None else 1)
