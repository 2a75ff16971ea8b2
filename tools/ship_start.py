"""Puts the learner of a finished run into the package, with the command that made it.

python tools/ship_start.py runs/starts/glyphs-maml src/metamirror/starts/glyphs-maml
python tools/ship_start.py runs/starts/photos src/metamirror/starts/photos runs/starts/photos-body

A third folder is that of the network on whose features the run was trained.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import metamirror as mm
from metamirror.core.files import write_json
from metamirror.data import DATA_SETS
from metamirror.data.path_spec import find_path
from metamirror.estimators.backbones.opening import open_backbone
from metamirror.estimators.backbones.our_runs import STATISTICS
from metamirror.estimators.starts import BACKBONE
from metamirror.storage.learner_file import TENSORS, step_of
from metamirror.training.config import RunConfig, load_config
from metamirror.training.pretrain import Pretraining
from metamirror.training.run_folder import recorded

MOST_BYTES = 2_000_000
"""A package that people install should stay small."""


def command(config: RunConfig, out: Path) -> str:
    """What to type for this run: every setting that is not the usual one."""
    settings: Any = Pretraining.of(config) if config.pretrains else config
    words = ["metamirror", "pretrain" if config.pretrains else "train"]
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            if field.name == "data" and (where := find_path(value)):
                value = str(where._replace(path=out.parent / where.path.name))
            if field.name == "init":
                value = out.parent / Path(value).name
            flag = f"--{field.name.replace('_', '-')}"
            words += [flag] if (value, field.default) == (True, False) else [flag, str(value)]
    return shlex.join([*words, "--out", str(out)])


def ship(run: Path, target: Path, backbone: Path | None = None) -> None:
    if backbone is not None:
        # Opened once, so that the statistics of its normalisation are beside it.
        open_backbone(backbone)
        copy_learner(backbone, target / BACKBONE, backbone.name)
        shutil.copy(backbone / STATISTICS, target / BACKBONE)
    elif load_config(run).data == "glyphs":
        # So that its body can be a backbone, too.
        open_backbone(run)
        shutil.copy(run / STATISTICS, target)
    if (norm := mm.load(run).norm) != "inductive":
        raise SystemExit(f"{run} was trained with {norm} normalisation: use inductive")
    copy_learner(run, target, target.name)


def copy_learner(run: Path, target: Path, name: str) -> None:
    config = load_config(run)
    learner = mm.load(run)
    mm.save(learner, target, step=step_of(run))
    size = (target / TENSORS).stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{target} has {size:,} bytes; at most {MOST_BYTES:,}: lower --width")
    facts = {
        "command": command(config, Path("runs/starts") / name),
        "step": step_of(run),
        "made_with": recorded(run),
    }
    if config.init is not None:
        begun = Path(config.init)
        facts["init_command"] = command(load_config(begun), Path("runs/starts") / begun.name)
    if config.data in DATA_SETS:
        facts["licence_of_the_data"] = DATA_SETS[config.data].licence
    write_json(target / "start.json", facts)
    print(f"{target}: {size:,} bytes, after {facts['step']} steps")


if __name__ == "__main__":
    ship(*map(Path, sys.argv[1:]))
