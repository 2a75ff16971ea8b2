"""A model that the user has already: opened from its file, for a page on which to try it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from metamirror.estimators.backbones.backbone import Backbone
from metamirror.estimators.backbones.function import Function
from metamirror.estimators.few_shot import FewShotClassifier
from metamirror.estimators.inputs.images import Images, Reader
from metamirror.playground import limits
from metamirror.playground.models import Choice, Model, for_prepared

SAVED = "saved"  # what requests call it: a word, and not its path


def open_saved(path: Path, backbone: str | None) -> Model:
    """Return the classifier of a file as a model of the page; arguments as in its `load`."""
    loaded = FewShotClassifier.load(path, backbone=backbone, device="cpu")
    fitted = loaded.fitted_
    images, rest = _in_two(fitted.reader, path)
    # The page shows what the network sees: images come prepared, and are not prepared twice.
    classifier = FewShotClassifier.of(replace(fitted, reader=rest), loaded.get_params())
    learner, names = fitted.learner, loaded.classes_.tolist()
    choice = Choice(
        key=SAVED,
        title=path.name,
        method=str((learner.config or {})["method"]).partition(":")[0],
        start=learner,
        reader=images,
        ways=len(names),
        steps=loaded.n_steps_,
        lr=learner.lr if loaded.lr is None else loaded.lr,
        backbone=rest if isinstance(rest, Backbone) else None,
    )
    return Model(choice, names, classifier)


def _in_two(reader: Reader, path: Path) -> tuple[Images, Reader]:
    """Return what prepares an image of any size, and what reads an image that is prepared."""
    if isinstance(reader, Images):
        return reader, replace(reader, ink=False)
    if isinstance(reader, Backbone):
        return reader.images, for_prepared(reader)
    if isinstance(reader, Function):
        raise ValueError(
            f"{path} was made with the function {reader.name}, which may take other things than "
            f"images: use metamirror predict"
        )
    raise ValueError(f"{path} does not take images: load it in Python and call predict")


def for_page(model: Model) -> dict[str, Any]:
    """Return what the page is told of it."""
    names = [str(name) for name in model.names]
    return {**model.choice.described(), "names": names, "side": limits.SAVED_SIDE}
