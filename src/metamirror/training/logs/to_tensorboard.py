"""TensorBoard's event files, in RUN/tensorboard."""

import io

import numpy as np
from PIL import Image

from metamirror.core.files import to_json
from metamirror.training.logs.log import Opening, Values


class Tracker:
    """Writes scalars, images, and the configuration and versions as text.

    What a killed process wrote after its last checkpoint is taken out.
    """

    def __init__(self, opening: Opening):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(opening.folder / "tensorboard"), purge_step=opening.step + 1
        )
        for name, facts in (("config", opening.config), ("versions", opening.versions)):
            self._writer.add_text(name, f"```json\n{to_json(facts)}\n```", opening.step)

    def add(self, step: int, values: Values) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def image(self, name: str, png: bytes) -> None:
        pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
        self._writer.add_image(name, pixels, 0, dataformats="HWC")

    def close(self, error: BaseException | None = None) -> None:
        self._writer.close()
