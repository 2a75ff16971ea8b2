"""`metamirror adapt`, `predict` and `export` on folders of images."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

import metamirror as mm
from metamirror.cli.main import main
from tests.estimators.stripes import fitted, start, stripes

NAMES = ["birch", "élan", "a b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of three classes to adapt to, and one more of each."""
    root = tmp_path_factory.mktemp("images")
    for part, each, seed in (("support", 2, 0), ("new", 1, 1)):
        images, labels = stripes(classes=3, each=each, seed=seed)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = root / part / NAMES[int(label[-1])]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((50, 40)).save(place / f"{i}.png")
    mm.save(start(), root / "start")
    return root


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    words = ["adapt", str(folder / "start"), "--support", str(folder / "support"), "--steps", "20"]
    assert main([*words, "--out", str(folder / "model")]) == 0
    return folder / "model"


def new_images(folder: Path) -> list[str]:
    return [str(next((folder / "new" / name).iterdir())) for name in NAMES]


def test_folders_in_predictions_out(folder: Path, model: Path, capsys):
    images = new_images(folder)
    assert main(["predict", str(model), *images]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == images
    assert [line.partition(": ")[2].rpartition(" (")[0] for line in lines] == NAMES


def test_json_is_one_document(folder: Path, model: Path, capsys):
    images = new_images(folder)
    assert main(["predict", str(model), *images, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == sorted(NAMES)
    assert [row["label"] for row in found["predictions"]] == NAMES
    expected = mm.FewShotClassifier.load(model).predict_proba(images)
    assert [row["probabilities"] for row in found["predictions"]] == expected.tolist()


def test_adapting_says_what_it_did(folder: Path, tmp_path: Path, capsys):
    (folder / "support" / "notes.txt").write_text("not an image")
    words = ["adapt", "glyphs-maml", "--support", str(folder / "support"), "--json", "--invert"]
    assert main([*words, "--out", str(tmp_path / "m"), "--early-stopping", "--calibrate"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["examples"] == dict.fromkeys(sorted(NAMES), 2)
    assert found["steps"] == len(found["losses"]) - 1
    assert found["temperature"] > 0
    assert "notes.txt" in printed.err
    loaded = mm.FewShotClassifier.load(tmp_path / "m")
    assert (loaded.start, loaded.invert, loaded.early_stopping) == ("glyphs-maml", True, True)


def test_one_image_of_a_class_is_why_nothing_is_held_out(folder: Path, tmp_path: Path, capsys):
    support, name = tmp_path / "support", sorted(NAMES)[0]
    shutil.copytree(folder / "support", support)
    for image in sorted((support / name).iterdir())[1:]:
        image.unlink()
    words = ["adapt", "glyphs-maml", "--support", str(support), "--invert"]
    assert main([*words, "--out", str(tmp_path / "m")]) == 0
    assert f"no held-out accuracy, and probabilities are not calibrated: {name} has one image" in (
        capsys.readouterr().out
    )


def test_white_paper_is_mentioned_and_not_guessed(tmp_path: Path, capsys):
    for name, row in (("a", 7), ("b", 20)):
        (tmp_path / "support" / name).mkdir(parents=True)
        paper = Image.new("L", (28, 28), "white")
        paper.paste("black", (4, row, 24, row + 3))
        paper.save(tmp_path / "support" / name / "0.png")
    words = ["adapt", "glyphs-maml", "--support", str(tmp_path / "support")]
    words += ["--out", str(tmp_path / "m")]
    assert main(words) == 0
    assert "--invert" in capsys.readouterr().err
    assert not mm.FewShotClassifier.load(tmp_path / "m").invert
    assert main([*words, "--invert"]) == 0
    assert "--invert" not in capsys.readouterr().err


def test_an_adapted_model_is_exported(model: Path, tmp_path: Path, capsys):
    words = ["export", str(model), "--format", "torch", "--out", str(tmp_path / "m.pt2")]
    assert main(words) == 0
    assert f"{(tmp_path / 'm.pt2').stat().st_size:,} bytes" in capsys.readouterr().out


def test_mistakes_end_with_exit_code_2(folder: Path, model: Path, tmp_path: Path, capsys):
    support, out = ["--support", str(folder / "support")], ["--out", str(tmp_path / "m")]
    empty, bare = tmp_path / "empty", tmp_path / "bare"
    (empty / "a class").mkdir(parents=True)
    bare.mkdir()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(model.read_bytes()[:-1])
    regressor = tmp_path / "regressor"
    mm.FewShotRegressor(mm.make_learner("maml", mm.models.MLP(1, 1))).fit([[0.0]], [0.0]).save(
        regressor
    )
    image = new_images(folder)[0]
    exported = [tmp_path / "model.onnx", tmp_path / "model.pt2"]
    for file in exported:
        file.write_bytes(b"made by export")
    cases = {
        ("adapt", "glyphs-magic", *support, *out): "glyphs-magic",
        ("adapt", "glyphs-maml", "--support", str(tmp_path / "no"), *out): "there is no folder",
        ("adapt", "glyphs-maml", "--support", str(empty), *out): "holds no image",
        ("adapt", "glyphs-maml", "--support", str(bare), *out): "has no sub-folders",
        ("adapt", "glyphs-maml", *support, *out, "--steps", "-1"): "steps is -1",
        ("adapt", "glyphs-maml", *support, *out, "--ink", "--invert"): "no invert",
        ("adapt", "sinusoid-metasgd", *support, *out): "does not consist of numbers",
        ("adapt", "glyphs-maml", *support, "--out", str(tmp_path)): "is a folder",
        ("adapt", "glyphs-maml", *support, "--out", str(tmp_path / "a/b")): "there is no folder",
        ("predict", str(tmp_path / "none"), image): "there is no",
        ("predict", str(damaged), image): "damaged",
        ("predict", str(exported[0]), image): "is an exported model, for other programs: run it wi",
        ("predict", str(exported[1]), image): "torch.export.load",
        ("predict", str(model)): "which images",
        ("predict", str(model), str(tmp_path / "none.png")): "there is no image",
        ("predict", str(model), __file__): "neither png, jpeg",
        ("predict", str(model), str(tmp_path)): "is a folder",
        ("predict", str(regressor), image): "does not take images",
        ("export", str(model), "--format", "tflite", *out): "tflite",
        ("export", str(damaged), *out): "damaged",
    }
    for words, complaint in cases.items():
        assert main(list(words)) == 2, words
        printed = capsys.readouterr()
        assert complaint in printed.err, words
        assert printed.out == ""
        assert len(printed.err.splitlines()) <= 2
    assert not (tmp_path / "m").exists()


def test_a_model_from_python_serves_the_command(folder: Path, tmp_path: Path, capsys):
    fitted(steps=20).save(tmp_path / "m")
    assert main(["predict", str(tmp_path / "m"), *new_images(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_names_cannot_command_the_terminal(folder: Path, tmp_path: Path, capsys):
    for name, own in (("birch", "\x1b[2Jred\nfine"), ("a b", "plain")):
        (tmp_path / own).mkdir()
        for file in (folder / "support" / name).iterdir():
            (tmp_path / own / file.name).write_bytes(file.read_bytes())
    out = str(tmp_path / "model")
    assert main(["adapt", str(folder / "start"), "--support", str(tmp_path), "--out", out]) == 0
    assert main(["predict", out, *new_images(folder)]) == 0
    assert main(["predict", out, str(tmp_path / "\x1b[2J.png")]) == 2
    captured = capsys.readouterr()
    assert "\\x1b[2Jred\\nfine" in captured.out
    assert "\\x1b[2J.png" in captured.err
    assert "\x1b" not in captured.out + captured.err


def test_a_class_whose_name_is_not_utf8_is_refused(folder: Path, tmp_path: Path, capsys):
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    words = ["adapt", str(folder / "start"), "--support", str(tmp_path), "--out", "never"]
    assert main(words) == 2
    assert "is not UTF-8" in capsys.readouterr().err
