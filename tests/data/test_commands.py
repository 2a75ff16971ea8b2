"""`metamirror data`: what it prints, what it leaves, and how it ends on bad input."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

import metamirror as mm
from metamirror.cli.main import main
from metamirror.data import BENCHMARKS, DATA_SETS
from metamirror.data.store import Store
from tests.data import sources


@pytest.fixture(autouse=True)
def home(store: Store) -> Path:
    return store.root


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return sources.write(tmp_path / "download" / "mini-imagenet.zip", sources.lists()).parent


def test_add_check_list_and_show(mini, home, tmp_path, capsys):
    assert main(["data", "add", "mini-imagenet", "--from", str(mini)]) == 0
    captured = capsys.readouterr()
    assert "12 classes (6/3/3 for train/val/test) x 4 images = 48, 84x84x3" in captured.out
    assert "research only" in captured.out
    assert "published mini-imagenet has 64/16/20" in captured.err
    assert main(["data", "check", "mini-imagenet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == sources.SPLITS
    assert found["pictures"] == 48
    assert main(["data", "list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data"]}
    assert set(listed) == {row.usage or name for name, row in DATA_SETS.items()}
    assert {"sinusoid", "glyphs", *BENCHMARKS, "folder:PATH", "hf:PATH"} < set(listed)
    assert listed["mini-imagenet"]["installed"] == "yes"
    assert listed["cub"]["installed"] == "no"
    assert all(listed[name]["licence"] and listed[name]["source"] for name in BENCHMARKS)
    picture = tmp_path / "grid.png"
    assert main(["data", "show", "mini-imagenet", "--ways", "3", "--out", str(picture)]) == 0
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 200
    assert main(["data", "list"]) == 0
    assert "mini-imagenet" in capsys.readouterr().out


def test_another_folder_can_be_named(mini, tmp_path, capsys):
    elsewhere = str(tmp_path / "elsewhere")
    assert main(["data", "add", "mini-imagenet", "--from", str(mini), "--data-dir", elsewhere]) == 0
    assert main(["data", "check", "mini-imagenet"]) == 2
    assert "not installed" in capsys.readouterr().err
    assert main(["data", "check", "mini-imagenet", "--data-dir", elsewhere]) == 0
    stream = mm.tasks("mini-imagenet", ways=3, queries=3, data_dir=elsewhere)
    assert stream[0].support.x.shape == (4, 3, 3, 84, 84)


# Bad input. Each case makes one source and says what the complaint must name.


def truncated_zip(root: Path) -> Path:
    path = sources.write(root / "cut.zip", sources.lists())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def climbing_zip(root: Path) -> Path:
    return sources.write(root / "climb.zip", sources.lists() | {"../../escaped.jpg": b"x"})


def climbing_tar(root: Path) -> Path:
    return sources.write(root / "climb.tar.gz", sources.lists() | {"../escaped.jpg": b"x"})


def linking_tar(root: Path) -> Path:
    path = root / "link.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("images/passwd.jpg")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    return path


def with_picture(content: bytes):
    def make(root: Path) -> Path:
        files = sources.lists()
        name = next(n for n in files if n.endswith(".jpg"))
        return sources.write(root / "folder", files | {name: content})

    return make


def huge_png() -> bytes:
    """A few bytes that claim 100,000 x 100,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def evil_pickle(root: Path) -> Path:
    files = sources.cache_pickles()
    files["mini-imagenet-cache-val.pkl"] = pickle.dumps({"image_data": Evil(root / "ran")})
    return sources.write(root / "folder", files)


BAD = {
    "a truncated zip": (truncated_zip, "cut.zip"),
    "a zip entry that climbs out": (climbing_zip, "escaped.jpg"),
    "a tar entry that climbs out": (climbing_tar, "escaped.jpg"),
    "a link in a tar": (linking_tar, "passwd.jpg"),
    "a picture of zero bytes": (with_picture(b""), "n0000000000000.jpg"),
    "a corrupt picture": (with_picture(sources.picture(3, 84, "jpeg")[:200]), "n0000000000000.jpg"),
    "a picture that claims too much": (with_picture(huge_png()), "n0000000000000.jpg"),
    "a pickle that runs code": (evil_pickle, "mini-imagenet-cache-val.pkl"),
    "a path that does not exist": (lambda root: root / "nowhere", "nowhere"),
    "an empty folder": (lambda root: sources.write(root, {}), ""),
    "a folder of something else": (
        lambda root: sources.write(root / "else", {"a.txt": b"hello"}),
        "accepted: images with train.csv",
    ),
    "a text file called zip": (
        lambda root: sources.write(root, {"x.zip": b"hello"}) / "x.zip",
        "x.zip",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_2_and_one_line_and_changes_nothing(case, mini, home, tmp_path, capsys):
    make, named = BAD[case]
    assert main(["data", "add", "mini-imagenet", "--from", str(mini)]) == 0
    (tmp_path / "bad").mkdir()
    path = make(tmp_path / "bad")
    capsys.readouterr()
    before = snapshot(tmp_path)
    assert main(["data", "add", "mini-imagenet", "--from", str(path)]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error
    assert len([line for line in error.splitlines() if line.startswith("metamirror:")]) == 1
    assert snapshot(tmp_path) == before, "nothing outside is touched, and what was there is intact"
    assert main(["data", "check", "mini-imagenet"]) == 0


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("content", [b"", huge_png(), sources.picture(3, 84, "jpeg")[:200]])
def test_a_bad_picture_among_many_can_be_skipped_and_is_counted(content, tmp_path, capsys):
    path = with_picture(content)(tmp_path)
    assert main(["data", "add", "mini-imagenet", "--from", str(path), "--skip-bad"]) == 0
    captured = capsys.readouterr()
    assert "1 left out" in captured.out
    assert "x 3 to 4 images = 47" in captured.out
    assert main(["data", "check", "mini-imagenet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == 1


def test_too_few_pictures_or_classes_end_with_2(mini, capsys):
    main(["data", "add", "mini-imagenet", "--from", str(mini)])
    for words, named in (
        (("--shots", "5", "--ways", "2"), "n00000"),
        (("--ways", "7", "--shots", "1", "--queries", "1"), "ways is 7"),
    ):
        capsys.readouterr()
        assert main(["train", "--method", "maml", "--data", "mini-imagenet", *words]) == 2
        assert named in capsys.readouterr().err


USAGE = {
    "nothing to add from": (("add", "mini-imagenet"), "--from PATH"),
    "both": (("add", "omniglot", "--from", "x", "--download"), "either"),
    "no address": (("add", "mini-imagenet", "--download"), "no stable official address"),
    "unknown": (("add", "imagenet-22k", "--download"), "imagenet-22k"),
    "built in": (("add", "glyphs", "--download"), "built in"),
    "a path is missing": (("add", "arrays"), "'arrays' cannot be added; choose from"),
    "not installed": (("show", "cub"), "data add cub --download"),
    "no images": (("show", "sinusoid"), "no images"),
    "unknown option": (("show", "omniglot:spin=1"), "spin"),
    "no such size": (("show", "glyphs", "--image-size", "3"), "image_size is 3"),
    "a size too small for a folder": (("add", "folder:.", "--image-size", "1"), "image_size is 1"),
    "a size before the work": (("add", "cub", "--image-size", "0"), "image_size is 0"),
    "nothing": ((), ""),
}


@pytest.mark.parametrize("case", USAGE)
def test_a_mistake_ends_with_2_and_the_way_out(case, capsys):
    words, named = USAGE[case]
    assert main(["data", *words]) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert captured.out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(mini, home, capsys):
    home.mkdir(mode=0o500)
    assert main(["data", "add", "mini-imagenet", "--from", str(mini)]) == 2
    assert "METAMIRROR_HOME" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX")
def test_a_full_disk_ends_with_2_and_leaves_what_was_there(mini, home, tmp_path):
    """A limit on the size of files stands for the full disk: both make `write` fail."""
    assert main(["data", "add", "mini-imagenet", "--from", str(mini)]) == 0
    before = snapshot(home)
    code = (
        "import resource, signal, sys; from metamirror.cli.main import main; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "data", "add", "mini-imagenet", "--from", str(mini)],
        env={**os.environ, "PYTHONPATH": str(Path(mm.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "mini-imagenet" in done.stderr
    assert "--data-dir" in done.stderr
    assert snapshot(home) == before
    assert main(["data", "check", "mini-imagenet"]) == 0


def test_one_damaged_set_does_not_hide_the_others(mini, home, capsys):
    assert main(["data", "add", "mini-imagenet", "--from", str(mini)]) == 0
    (home / "cub.json").write_text("{}")
    capsys.readouterr()
    assert main(["data", "list", "--json"]) == 0
    listed = {row["name"]: row["installed"] for row in json.loads(capsys.readouterr().out)["data"]}
    assert listed["cub"] == "damaged"
    assert listed["mini-imagenet"] == "yes"


def test_check_looks_at_the_sizes_made_from_it_too(mini, home, capsys):
    words = ["data", "add", "mini-imagenet", "--from", str(mini), "--image-size", "20"]
    assert main(words) == 0
    assert main(["data", "check", "mini-imagenet"]) == 0
    assert "20x20x3" in capsys.readouterr().out
    (array,) = home.glob("mini-imagenet@20.*.bytes")
    array.write_bytes(b"\7" + array.read_bytes()[1:])
    assert main(["data", "check", "mini-imagenet"]) == 2


@pytest.mark.parametrize("name", ["$$", "a_$b^$", "漢字"])
def test_any_name_of_a_class_can_be_shown(name, tmp_path, capsys):
    files = {f"train/{name}/{i}.png": sources.picture(i) for i in range(2)}
    files |= {f"train/other/{i}.png": sources.picture(i) for i in range(2)}
    folder = sources.write(tmp_path / "x", files)
    words = ["--ways", "2", "--queries", "1", "--out", str(tmp_path / "x.png")]
    assert main(["data", "show", f"folder:{folder}", *words]) == 0
    assert "Warning" not in capsys.readouterr().err
    assert main(["data", "show", f"folder:{folder}", *words[:-1], str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_file_for_a_folder_is_named_with_the_way_out(mini, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    words = ["data", "add", "mini-imagenet", "--from", str(mini), "--data-dir", str(file)]
    assert main(words) == 2
    assert "METAMIRROR_HOME" in capsys.readouterr().err


def test_progress_is_on_standard_error_only(mini, capsys):
    main(["data", "add", "mini-imagenet", "--from", str(mini)])
    captured = capsys.readouterr()
    assert "add mini-imagenet: 48/48" in captured.err
    assert "48/48" not in captured.out


def test_a_zip_of_one_entry_that_grows_without_end_is_bounded(tmp_path, capsys):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "val", "test"):
            with archive.open(f"images/{split}.jpg", "w", force_zip64=True) as entry:
                for _ in range(80):
                    entry.write(bytes(1 << 20))
            archive.writestr(f"{split}.csv", f"filename,label\n{split}.jpg,{split}\n")
    assert path.stat().st_size < 1 << 20
    assert main(["data", "add", "mini-imagenet", "--from", str(path)]) == 2
    assert "more than" in capsys.readouterr().err


def test_pictures_of_any_mode_are_taken(tmp_path):
    for i, mode in enumerate(("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")):
        kind = "jpeg" if mode == "CMYK" else "png"
        file = io.BytesIO()
        Image.new(mode, (40, 30)).save(file, kind)
        name = f"c{i}/a.{'jpg' if kind == 'jpeg' else 'png'}"
        sources.write(tmp_path / "modes", {name: file.getvalue()})
    images = mm.data.open_images(f"folder:{tmp_path / 'modes'}", image_size=16)
    assert images.pixels.shape == (8, 3, 16, 16)
