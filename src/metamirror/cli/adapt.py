"""`metamirror adapt`, `predict`, `export`, `playground`: a start becomes a model of one's own."""

import importlib.util
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from metamirror.cli.arguments import DataDir, Json, flags_of
from metamirror.console import printable, say
from metamirror.core.files import to_json
from metamirror.core.import_path import allow_module, split_path
from metamirror.estimators import model_file
from metamirror.estimators.backbones.embed import embed as embed_data
from metamirror.estimators.backbones.tokens import Tokens
from metamirror.estimators.export import Format
from metamirror.estimators.export import export as export_model
from metamirror.estimators.familiarity import UnfamiliarExamplesWarning
from metamirror.estimators.few_shot import FewShotClassifier, FewShotRegressor
from metamirror.estimators.inputs.images import labelled_images
from metamirror.estimators.inputs.numbers import Numbers
from metamirror.estimators.starts import shipped_names

Model = Annotated[Path, Positional]
Images = Annotated[tuple[Path, ...], Positional, arg(metavar="IMAGE [IMAGE ...]")]


def embed(
    backbone: str,
    data: str,
    out: Path,
    image_size: int | None = None,
    data_dir: DataDir = None,
) -> None:
    """Write what a frozen network makes of a data set: features, for train --data arrays:FILE.

    Args:
        backbone: FILE.onnx, FILE.pt2, timm:NAME, a run folder, a shipped start, or
            package.module:callable; a file may have options behind it, as in body.onnx:size=160.
        data: a data set, or a folder with a sub-folder of images for each class.
        out: the file of the features, such as features.npz.
        image_size: height and width in which a data set is read, if other than stored.
    """
    _check_target(out)
    if out.suffix != ".npz":
        raise ValueError(f"out is {out}; features are an .npz file")
    _allow_typed(backbone)
    count, length = embed_data(backbone, data, out, image_size=image_size, data_dir=data_dir)
    print(
        f"written: {out}, {count:,} rows of {length} numbers; next: "
        f"metamirror train --data arrays:{out} --model linear --method r2d2"
    )


def adapt(
    support: Path,
    out: Path,
    start: Annotated[
        partial[FewShotClassifier],
        flags_of(FewShotClassifier, "start", "backbone", "tol", "random_state"),
    ],
    run: Annotated[str | None, Positional] = None,
    backbone: str | None = None,
    seed: int | None = None,
    compare: bool = False,
    json: Json = False,
) -> None:
    """Adapt a trained start to labelled images and write the adapted model, one file.

    Args:
        run: a shipped start, such as glyphs-blockiaf; a run folder; or a folder of metamirror.save;
            with a backbone it may be left out.
        support: a folder with one sub-folder of images for each class.
        out: the file of the adapted model.
        backbone: a frozen network whose features are adapted to, as in metamirror embed.
        seed: the seed of the method's own noise, where it has any.
        compare: compare it with simpler classifiers on these images; also writes the page OUT.html.
    """
    _check_target(out)
    if run is None and backbone is None:
        raise ValueError(
            f"which start? Give one ({', '.join(shipped_names())}, or a run folder) after adapt, "
            f"or a frozen network with --backbone"
        )
    _allow_typed(backbone)
    images, labels = labelled_images(support)
    classifier = start(run, backbone, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnfamiliarExamplesWarning)
        classifier.fit(images, labels)
    notes = [str(w.message) for w in caught if w.category is UnfamiliarExamplesWarning]
    for words in notes:
        say(f"note: {words}")
    compared = classifier.compare(images, labels) if compare else None
    classifier.save(out)
    classes = classifier.classes_.tolist()
    facts = {
        "model": str(out),
        "start": run,
        "backbone": backbone,
        "classes": classes,
        "examples": {label: labels.count(label) for label in classes},
        "steps": classifier.n_steps_,
        "losses": classifier.losses_,
        "seconds": classifier.adaptation_seconds_,
        "temperature": classifier.temperature_,
        "held_out_accuracy": classifier.held_out_accuracy_,
        "notes": notes,
    }
    text = (
        f"{len(images)} images of {len(classes)} classes ({printable(', '.join(classes))}): "
        f"{_work(classifier)} in {1000 * classifier.adaptation_seconds_:.0f} ms\n"
    )
    if classifier.held_out_accuracy_ is not None:
        text += f"held-out accuracy of these images: {classifier.held_out_accuracy_:.1%}\n"
    elif classifier.calibrate:
        few = min(classes, key=labels.count)
        text += (
            f"no held-out accuracy, and probabilities are not calibrated: {printable(few)} has one "
            f"image; two or more of each class are needed\n"
        )
    if compared is not None:
        from metamirror.estimators.advice_page import write_advice
        from metamirror.estimators.comparison import OURS

        page = out.with_name(f"{out.name}.html")
        write_advice(page, compared, images, notes)
        facts |= {"comparison": compared.as_json(), "page": str(page)}
        doubtful = [str(images[one.index]) for one in compared.doubtful]
        text += f"{compared.in_words(doubtful)}\nwritten: {page}\n"
        if compared.recommendation != OURS:
            text += f"{out} holds {OURS}: keep it if you will add examples\n"
    text += f"written: {out}; next: metamirror predict {out} IMAGE"
    print(to_json(facts) if json else text)


def _work(classifier: FewShotClassifier) -> str:
    """Return what an adaptation did, in words."""
    first, *_, last = (*classifier.losses_, classifier.losses_[-1])
    loss = f"support loss {first:.3f} -> {last:.3f}"
    return f"{classifier.n_steps_} steps, {loss}," if classifier.n_steps_ else "head computed"


def predict(model: Model, images: Images, backbone: str | None = None, json: Json = False) -> None:
    """Print to which class each image belongs, and how probable that is.

    Args:
        model: a file that metamirror adapt, or save in Python, wrote.
        images: png, jpeg, webp or bmp files.
        backbone: the frozen network of the model, where it is not found by itself.
    """
    estimator = _load(model, backbone)
    if not images:
        raise ValueError("which images? Give one or more files after the model")
    if isinstance(estimator.fitted_.reader, Numbers | Tokens):
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


def export(model: Model, out: Path, format: Format = "onnx", backbone: str | None = None) -> None:
    """Write an adapted model for other programs: ONNX, or torch's exported program (.pt2).

    Args:
        model: a file that metamirror adapt, or save in Python, wrote.
        out: the file.
        format: onnx (needs the extra: pip install 'metamirror[export]') or torch.
        backbone: the frozen network of the model, where it is not found by itself.
    """
    _check_target(out)
    export_model(_load(model, backbone), out, format)
    print(f"written: {out}, {out.stat().st_size:,} bytes")


def playground(
    run: Annotated[Path | None, Positional] = None,
    backbone: str | None = None,
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """Serve a page on which to draw signs or show photographs, adapt a start to them, and try it.

    Args:
        run: a run folder to choose from beside the shipped starts; or a file that metamirror adapt,
            or save in Python, wrote: the page begins with that model.
        backbone: the frozen network of the model, where it is not found by itself; or one to choose
            on the page, such as FILE.onnx, alone or with a run on its features.
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

    _allow_typed(backbone)
    serve(run, host, port, backbone)


def _load(path: Path, backbone: str | None = None) -> FewShotClassifier | FewShotRegressor:
    _allow_typed(backbone)
    fitted, params = model_file.read(path, backbone=backbone)
    return (FewShotRegressor if fitted.classes is None else FewShotClassifier).of(fitted, params)


def _allow_typed(backbone: str | None) -> None:
    """Import the module of a backbone's name, which the user has typed."""
    path = split_path(backbone) if backbone and not backbone.startswith("timm:") else None
    if path:
        allow_module(path[0])


def _check_target(out: Path) -> None:
    """Refuse a target that cannot be written, before the work."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give the name of a file with --out")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {out.absolute().parent}: make it, or choose another")
