"""`metamirror adapt`, `predict`, `export`, `playground`: a start becomes a model of one's own."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from metamirror.cli.arguments import Json, flags_of
from metamirror.console import printable, say
from metamirror.core.files import to_json
from metamirror.estimators import model_file
from metamirror.estimators.export import Format
from metamirror.estimators.export import export as export_model
from metamirror.estimators.few_shot import FewShotClassifier, FewShotRegressor
from metamirror.estimators.inputs.images import image_shape, labelled_images
from metamirror.estimators.starts import shipped_names

Model = Annotated[Path, Positional]
Images = Annotated[tuple[Path, ...], Positional, arg(metavar="IMAGE [IMAGE ...]")]


def adapt(
    run: Annotated[str, Positional],
    support: Path,
    out: Path,
    start: Annotated[
        partial[FewShotClassifier], flags_of(FewShotClassifier, "start", "tol", "random_state")
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
    text = (
        f"{len(images)} images of {len(classes)} classes ({printable(', '.join(classes))}): "
        f"{classifier.n_steps_} steps in {1000 * classifier.adaptation_seconds_:.0f} ms, loss "
        f"{classifier.losses_[0]:.3f} -> {classifier.losses_[-1]:.3f}\n"
        f"written: {out}; next: metamirror predict {out} IMAGE"
    )
    print(to_json(facts) if json else text)


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
    facts: dict[str, Any] = {"model": str(model)}
    if isinstance(estimator, FewShotClassifier):
        facts["classes"] = estimator.classes_.tolist()
        shares = estimator.predict_proba(list(images))
        labels = estimator.classes_[shares.argmax(1)].tolist()
        pairs = zip(labels, shares.tolist(), strict=True)
        rows = [{"label": label, "probabilities": row} for label, row in pairs]
        said = [f"{row['label']} ({max(row['probabilities']):.1%})" for row in rows]
    else:
        values = estimator.predict(list(images)).reshape(len(images), -1).tolist()
        rows = [{"values": row} for row in values]
        said = [", ".join(f"{value:g}" for value in row) for row in values]
    named = zip(images, rows, strict=True)
    facts["predictions"] = [{"image": str(image), **row} for image, row in named]
    lines = [printable(f"{image}: {words}") for image, words in zip(images, said, strict=True)]
    print(to_json(facts) if json else "\n".join(lines))


def export(model: Model, out: Path, format: Format = "onnx") -> None:
    """Write an adapted model for other programs: ONNX, or torch's exported program (.pt2).

    Args:
        model: a file that metamirror adapt, or save in Python, wrote.
        out: the file.
        format: onnx (needs the extra: pip install 'metamirror[export]') or torch.
    """
    _check_target(out)
    export_model(_load(model), out, format)
    print(f"written: {out}, {out.stat().st_size:,} bytes")


def playground(
    run: Annotated[Path | None, Positional] = None, port: int = 7860, host: str = "127.0.0.1"
) -> None:
    """Serve a page on which to draw a few signs, adapt a start to them, and try it out.

    Args:
        run: a run folder to choose from beside the shipped starts.
        port: the port of the page; 0 takes a free one.
        host: the address to listen on; by default this machine alone can reach it.
    """
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"the playground needs {package}, which is not installed: "
                f"pip install 'metamirror[playground]'"
            )
    from metamirror.playground.server import serve

    serve(run, host, port)


def _load(path: Path) -> FewShotClassifier | FewShotRegressor:
    fitted, params = model_file.read(path)
    return (FewShotRegressor if fitted.classes is None else FewShotClassifier).of(fitted, params)


def _check_target(out: Path) -> None:
    """Refuse a target that cannot be written, before the work."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give the name of a file with --out")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {out.absolute().parent}: make it, or choose another")
