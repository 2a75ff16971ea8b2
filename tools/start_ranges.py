"""Writes what each shipped start was trained on, from the command that made it.

python tools/start_ranges.py

`FewShotClassifier.fit` and `metamirror adapt` compare the user's examples with it.
"""

from __future__ import annotations

import shlex

from metamirror.cli.main import parse
from metamirror.core.files import read_json
from metamirror.data.image_ranges import write_seen
from metamirror.estimators.starts import SHIPPED, backbone_of, shipped_names
from metamirror.training.factory import build_stream, resolved
from metamirror.training.pretrain import Pretraining


def main() -> None:
    for name in shipped_names():
        # Where a start adapts to features, it is the network before it that has seen images.
        folder = backbone_of(name) or SHIPPED / name
        _, *words = shlex.split(read_json(folder / "start.json")["command"])
        settings = parse(words).keywords["settings"]
        config = settings.config() if isinstance(settings, Pretraining) else resolved(settings)
        write_seen(SHIPPED / name, build_stream(config, "train"))


if __name__ == "__main__":
    main()
