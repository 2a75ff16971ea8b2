"""Writes what each shipped start was trained on, from the command that made it.

python tools/start_ranges.py

`FewShotClassifier.fit` and `metamirror adapt` compare the user's examples with it.
"""

from __future__ import annotations

import shlex

from metamirror.cli.main import parse
from metamirror.core.files import read_json
from metamirror.data.image_ranges import write_seen
from metamirror.estimators.starts import SHIPPED, shipped_names
from metamirror.training.factory import build_stream, resolved


def main() -> None:
    for name in shipped_names():
        _, *words = shlex.split(read_json(SHIPPED / name / "start.json")["command"])
        write_seen(
            SHIPPED / name, build_stream(resolved(parse(words).keywords["settings"]), "train")
        )


if __name__ == "__main__":
    main()
