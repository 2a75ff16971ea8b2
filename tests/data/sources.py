"""Small archives in the layouts in which people keep the benchmarks, made on the fly."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def picture(value: int, size: int = 12, kind: str = "png", mode: str = "RGB") -> bytes:
    """A picture whose every pixel tells which one it is."""
    colour = value if mode == "L" else (value, 255 - value, value // 2)
    file = io.BytesIO()
    Image.new(mode, (size, size), colour).save(
        file, kind, **({"lossless": True} if kind == "webp" else {})
    )
    return file.getvalue()


def write(path: Path, files: dict[str, bytes]) -> Path:
    """A folder, a zip or a tar, by the suffix."""
    if path.suffix == ".zip":
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    if path.suffix:
        kind = {"z": "gz", "2": "bz2"}.get(path.name[-1], "")
        kind = "xz" if path.name.endswith("xz") else kind
        return write_tar(path, [tar_entry(*item) for item in files.items()], f"w:{kind}")
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def tar_entry(name: str, data: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write_tar(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return path


PACK = {
    "folder": lambda root, files: write(root / "unpacked", files),
    "zip": lambda root, files: write(root / "packed.zip", files),
    "tar": lambda root, files: write(root / "packed.tar.gz", files),
    "zip in a folder": lambda root, files: write(root / "around" / "packed.zip", files).parent,
}

SPLITS = {"train": 6, "val": 3, "test": 3}
EACH = 4


def omniglot() -> dict[str, bytes]:
    """Three alphabets of the train split, one of val, one of test; paper white, ink black."""
    alphabets = {
        "background": ["Greek", "Latin", "Hebrew"],
        "evaluation": ["Angelic", "Keble"],
    }
    files = {}
    for half, names in alphabets.items():
        for name in names:
            for character in (1, 2):
                for drawing in range(EACH):
                    paper = Image.new("1", (105, 105), 1)
                    paper.paste(0, (20 + 10 * drawing, 20, 60 + 10 * drawing, 80))
                    file = io.BytesIO()
                    paper.save(file, "png")
                    path = f"images_{half}/{name}/character{character:02}/{drawing:04}.png"
                    files[path] = file.getvalue()
    return files


def named(split: str, number: int) -> str:
    return f"n{list(SPLITS).index(split)}{number:04}"


def value_of(split: str, number: int, example: int) -> int:
    return 10 * list(SPLITS).index(split) + 30 * number % 200 + example


def lists(kind: str = "jpeg") -> dict[str, bytes]:
    """images/ and three CSV files, as miniImageNet."""
    files = {}
    for split, count in SPLITS.items():
        lines = ["filename,label"]
        for number in range(count):
            for example in range(EACH):
                name = f"{named(split, number)}{example:08}.jpg"
                files[f"images/{name}"] = picture(value_of(split, number, example), 84, kind)
                lines.append(f"{name},{named(split, number)}")
        files[f"{split}.csv"] = ("\n".join(lines) + "\n").encode()
    return files


def folders(words: tuple[str, str, str] = ("train", "val", "test")) -> dict[str, bytes]:
    return {
        f"{word}/{named(split, number)}/{example}.png": picture(value_of(split, number, example))
        for word, (split, count) in zip(words, SPLITS.items(), strict=True)
        for number in range(count)
        for example in range(EACH)
    }


def arrays(split: str, size: int = 84) -> tuple[np.ndarray, list[str]]:
    pictures, labels = [], []
    for number in range(SPLITS[split]):
        for example in range(EACH):
            value = value_of(split, number, example)
            pictures.append(np.full((size, size, 3), (value, 255 - value, value // 2), np.uint8))
            labels.append(named(split, number))
    return np.stack(pictures), labels


def cache_pickles(protocol: int = 2) -> dict[str, bytes]:
    """mini-imagenet-cache-*.pkl: image_data and class_dict."""
    files = {}
    for split in SPLITS:
        data, labels = arrays(split)
        members: dict[str, list[int]] = {}
        for i, label in enumerate(labels):
            members.setdefault(label, []).append(i)
        content = {"image_data": data, "class_dict": members}
        files[f"mini-imagenet-cache-{split}.pkl"] = pickle.dumps(content, protocol)
    return files


def category_pickles() -> dict[str, bytes]:
    """data and labels with numbers for labels, and files that are no split beside them."""
    files = {}
    for split in SPLITS:
        data, labels = arrays(split)
        numbers = [sorted(set(labels)).index(label) for label in labels]
        content = pickle.dumps({"data": data, "labels": numbers})
        middle = "train_phase_train" if split == "train" else split
        files[f"miniImageNet_category_split_{middle}.pickle"] = content
    files["miniImageNet_category_split_train_phase_val.pickle"] = content
    files["miniImageNet_category_split_train_phase_test.pickle"] = content
    return files


def tiered_pickles() -> dict[str, bytes]:
    files = {}
    for split in SPLITS:
        data, labels = arrays(split, 84)
        encoded = []
        for array in data:
            file = io.BytesIO()
            Image.fromarray(array).save(file, "png")
            encoded.append(np.frombuffer(file.getvalue(), np.uint8))
        numbers = np.array([sorted(set(labels)).index(label) for label in labels])
        files[f"{split}_images_png.pkl"] = pickle.dumps(encoded)
        files[f"{split}_labels.pkl"] = pickle.dumps(
            {"label_specific": numbers, "label_general": numbers}
        )
    return files


def tiered_arrays() -> dict[str, bytes]:
    files = {}
    for split in SPLITS:
        data, labels = arrays(split, 84)
        file = io.BytesIO()
        np.savez(file, images=data)
        files[f"{split}_images.npz"] = file.getvalue()
        files[f"{split}_labels.pkl"] = pickle.dumps({"labels": labels})
    return files


FINE = ["dolphin", "train", "beaver", "whale"]
COARSE = ["fish", "vehicles_1", "aquatic_mammals", "small_mammals"]
"""For CIFAR-FS train, train, val, test; for FC100 train, train, test, val."""


def cifar(part_size: int = 8) -> tuple[np.ndarray, list[int], list[int]]:
    fine = [i % 4 for i in range(part_size)]
    data = np.zeros((part_size, 3, 32, 32), np.uint8)
    data[:, 0], data[:, 2] = np.arange(part_size)[:, None, None], 200
    data[:, 1, 0, 31] = 77  # tells rows, columns and channels apart
    return data.reshape(part_size, -1), fine, fine


def cifar_python() -> dict[str, bytes]:
    files = {
        "cifar-100-python/meta": pickle.dumps(
            {
                b"fine_label_names": [n.encode() for n in FINE],
                b"coarse_label_names": [n.encode() for n in COARSE],
            },
            2,
        )
    }
    for part in ("train", "test"):
        data, fine, coarse = cifar()
        content = {
            b"data": data,
            b"fine_labels": fine,
            b"coarse_labels": coarse,
            b"filenames": [b"x"] * 8,
        }
        files[f"cifar-100-python/{part}"] = pickle.dumps(content, 2)
    return files


def cifar_binary() -> dict[str, bytes]:
    files = {
        "cifar-100-binary/fine_label_names.txt": ("\n".join(FINE) + "\n").encode(),
        "cifar-100-binary/coarse_label_names.txt": ("\n".join(COARSE) + "\n").encode(),
    }
    for part in ("train", "test"):
        data, fine, coarse = cifar()
        table = np.column_stack([np.array(coarse, np.uint8), np.array(fine, np.uint8), data])
        files[f"cifar-100-binary/{part}.bin"] = table.tobytes()
    return files


def cifar_folders() -> dict[str, bytes]:
    return {
        f"cifar100/data/{name}/{i}.png": picture(40 * FINE.index(name) + i, 32)
        for name in FINE
        for i in range(EACH)
    }


def cub() -> dict[str, bytes]:
    birds = [
        "001.Black_footed_Albatross",
        "002.Laysan_Albatross",
        "003.Sooty_Albatross",
        "004.Groove_billed_Ani",
    ]
    files = {
        f"CUB_200_2011/images/{bird}/{bird[4:]}_{i}.jpg": picture(60 * n + i, 100 + 7 * i, "jpeg")
        for n, bird in enumerate(birds)
        for i in range(EACH)
    }
    return files | {"CUB_200_2011/attributes/certainties.txt": b"1 not visible\n"}
