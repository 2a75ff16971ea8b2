"""`metamirror adapt`, `predict` and `export`: a trained start becomes a model of one's own."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from metamirror.cli.arguments import Json, flags_of
from metamirror.console import printable, say
from metamirror.core.files import to_json
from metamirror.estimators import model_file
from metamirror.estimators.base import FewShotEstimator
from metamirror.estimators.classifier import FewShotClassifier
from metamirror.estimators.export import Format
from metamirror.estimators.export import export as export_model
from metamirror.estimators.inputs.folder import labelled_images
from metamirror.estimators.inputs.images import image_shape
from metamirror.estimators.regressor import FewShotRegressor
from metamirror.estimators.starts import shipped_names

Model = Annotated[Path, tyro.conf.Positional]
Images = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE [IMAGE ...]")
]


def adapt(
    run: Annotated[str, tyro.conf.Positional],
    support: Path,
    out: Path,
    start: Annotated[
        partial[FewShotClassifier],
        flags_of(FewShotClassifier, "start", "tol", "random_state"),
    ],
    seed: int | None = None,
    json: Json = False,
) -> None:
    """Adapt a trained start to labelled images and write the adapted model, one file.

    Args:
        run: a shipped start, such as glyphs-blockiaf; a run folder; or a folder of metamirror.save.
        support: a folder with one sub-folder of images for each class.
        out: the file of the adapted model.
        seed: the seed of the method's own noise, where it has any.
    """
    _check_target(out)
    images, labels = labelled_images(support)
    classifier = start(run, random_state=seed).fit(images, labels)
    light = float(classifier.support_.x.median()) > 0.5
    if light and run in shipped_names() and not classifier.invert:
        say(
            f"note: the ground of these images is light, and {run} knows light ink on a dark "
            f"ground: --invert exchanges them, --ink also brings drawings to a letter's size"
        )
    classifier.save(out)
    classes = classifier.classes_.tolist()
    if json:
        facts = {
            "model": str(out),
            "start": run,
            "classes": classes,
            "examples": {label: labels.count(label) for label in classes},
            "steps": classifier.n_steps_,
            "losses": classifier.losses_,
            "seconds": classifier.adaptation_seconds_,
            "temperature": classifier.temperature_,
        }
        print(to_json(facts))
        return
    print(
        f"{len(images)} images of {len(classes)} classes ({printable(', '.join(classes))}): "
        f"{classifier.n_steps_} steps in {1000 * classifier.adaptation_seconds_:.0f} ms, loss "
        f"{classifier.losses_[0]:.3f} -> {classifier.losses_[-1]:.3f}"
    )
    print(f"written: {out}; next: metamirror predict {out} IMAGE")


def predict(model: Model, images: Images, json: Json = False) -> None:
    """Print to which class each image belongs, and how probable that is.

    Args:
        model: a file that metamirror adapt, or save in Python, wrote.
        images: png, jpeg, webp or bmp files.
    """
    estimator = _load(model)
    if not images:
        raise ValueError("which images? Give one or more files after the model")
    if image_shape(estimator.learner_.model) is None:
        raise ValueError(f"{model} does not take images: load it in Python and call predict")
    rows = _predictions(estimator, images)
    if json:
        classes = getattr(estimator, "classes_", None)
        about = {} if classes is None else {"classes": classes.tolist()}
        print(to_json({"model": str(model), **about, "predictions": rows}))
        return
    for row in rows:
        if "label" in row:
            said = f"{row['label']} ({max(row['probabilities']):.1%})"
        else:
            said = ", ".join(f"{value:g}" for value in row["values"])
        print(printable(f"{row['image']}: {said}"))


def export(
    model: Model, out: Path, format: Annotated[Format, tyro.conf.arg(name="format")] = "onnx"
) -> None:
    """Write an adapted model for other programs: ONNX, or torch's exported program (.pt2).

    Args:
        model: a file that metamirror adapt, or save in Python, wrote.
        out: the file.
        format: onnx (needs the extra: pip install 'metamirror[export]') or torch.
    """
    _check_target(out)
    export_model(_load(model), out, format)
    print(f"written: {out}, {out.stat().st_size:,} bytes")


def _load(path: Path) -> FewShotEstimator:
    fitted, params = model_file.read(path)
    return (FewShotRegressor if fitted.classes is None else FewShotClassifier).of(fitted, params)


def _predictions(estimator: FewShotEstimator, images: tuple[Path, ...]) -> list[dict[str, Any]]:
    if isinstance(estimator, FewShotClassifier):
        probabilities = estimator.predict_proba(list(images))
        labels = estimator.classes_[probabilities.argmax(1)].tolist()
        return [
            {"image": str(image), "label": label, "probabilities": row.tolist()}
            for image, label, row in zip(images, labels, probabilities, strict=True)
        ]
    values = estimator.predict(list(images)).reshape(len(images), -1)
    return [
        {"image": str(image), "values": row.tolist()}
        for image, row in zip(images, values, strict=True)
    ]


def _check_target(out: Path) -> None:
    """Refuse a target that cannot be written, before the work."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give the name of a file with --out")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {out.absolute().parent}: make it, or choose another")
