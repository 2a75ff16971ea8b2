"""`metamirror pretrain`."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Fixed, arg

from metamirror.cli.arguments import Imports, flags_of
from metamirror.cli.runs import in_file_name
from metamirror.core.learner import Learner
from metamirror.training.config import RunConfig, located
from metamirror.training.pretrain import Pretraining
from metamirror.training.pretrain import pretrain as run_pretraining
from metamirror.training.user_modules import import_modules, with_imports


@dataclass(frozen=True)
class Settings(Pretraining):
    """The settings of a pretraining that are flags of `pretrain`."""

    imports: Fixed[tuple[str, ...]] = ()


def settings_of(config: RunConfig) -> Settings:
    """Return what flags of `pretrain` override."""
    return Settings(**asdict(Pretraining.of(config)))


def pretrain(
    settings: Annotated[Settings, arg(name="")],
    training: Annotated[partial[Learner], flags_of(run_pretraining, "settings", "out")],
    config: Path | None = None,
    out: Path | None = None,
    imports: Imports = (),
) -> None:
    """Train a network's body on the labels of the train classes, for train --init.

    Args:
        config: a file to start from, the config.json of a pretrained run; flags override it.
        out: the run folder; by default runs/DATA-pretrained-seedSEED.
    """
    import_modules(imports)
    whole = located(with_imports(settings.config(), imports))
    folder = out or Path("runs") / f"{in_file_name(whole.data)}-pretrained-seed{whole.seed}"
    training(replace(settings, data=whole.data, init=whole.init, imports=whole.imports), folder)
    print(
        f"done: {folder}; next: metamirror evaluate {folder}, or metamirror train --init {folder} "
        f"with the same data, model, width and image size"
    )
