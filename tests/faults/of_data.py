"""Data as people pass them around: lists, archives, pictures, pickles, arrays."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import shutil
import struct
import tarfile
import warnings
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from metamirror.data.benchmarks import BENCHMARKS
from metamirror.data.installing.install import add, find
from metamirror.data.readers import safe_pickle
from metamirror.data.readers.archives import read_npz
from metamirror.data.readers.images import decode
from metamirror.data.readers.source import open_source
from metamirror.data.store import Store
from tests.data import sources
from tests.faults.damage import damaged_bytes
from tests.faults.fuzzing import Target
from tests.faults.of_runs import write

# Lists of pictures

CSV = b"filename,label\na.png,n01\nb.png,n01\nc.png,n02\n"
CSVS = st.one_of(
    damaged_bytes(CSV, b"\xef\xbb\xbf" + CSV, b'label,filename\n"n0\n1","a.png"\n'),
    st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=4).map(
        lambda rows: "\n".join(["filename,label", *map(",".join, rows)]).encode(errors="replace")
    ),
    st.integers(1, 200_000).map(lambda n: b'filename,label\n"' + b"a" * n),
)


def read_lists(folder: Path, content: bytes) -> None:
    root = folder / "lists"
    for name in "abc":
        if not (root / f"{name}.png").exists():
            write(root / f"{name}.png", sources.picture(7))
    write(root / "train.csv", content)
    write(root / "val.csv", b"filename,label\nb.png,n03\n")
    write(root / "test.csv", b"filename,label\nc.png,n04\n")
    with open_source(root) as source:
        found = find(BENCHMARKS["mini-imagenet"], source)
        assert all(len(content) > 0 for _, content in found.read(False))


# Archives

NAMES = st.sampled_from(
    [
        *("a.png", "train/n01/a.png", "train/n01/../../../../tmp/evil", "/tmp/evil", "../evil"),
        *(
            "C:\\evil",
            "a\\..\\..\\evil",
            "a.png\0.exe",
            "./a.png",
            "a//b.png",
            ".hidden",
            "a" * 300,
        ),
        *("__MACOSX/a.png", "é.png", "-rf", "con", "a/", "..", ".", "train/n01/b.png"),
    ]
)
KINDS = [
    *(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE),
    *(tarfile.CHRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME),
]
PACK = {".tar": bytes, ".tgz": gzip.compress, ".tbz2": bz2.compress, ".txz": lzma.compress}


@st.composite
def zips(draw: st.DrawFn) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # that a name stands twice is meant
        for _ in range(draw(st.integers(0, 4))):
            info = zipfile.ZipInfo("x")
            info.filename = draw(NAMES)
            info.compress_type = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
            mode = draw(st.sampled_from([0, 0o100644, 0o120777, 0o40755, 0o10644]))
            info.external_attr = mode << 16
            content = draw(st.sampled_from([b"", b"1", sources.picture(3), bytes(10**6)]))
            archive.writestr(info, b"/etc/passwd" if mode == 0o120777 else content)
    return ".zip", draw(damaged_bytes(buffer.getvalue(), most=3))


@st.composite
def tars(draw: st.DrawFn) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=draw(st.sampled_from([0, 1, 2]))) as archive:
        for _ in range(draw(st.integers(0, 4))):
            info = tarfile.TarInfo(draw(NAMES))
            info.type = draw(st.sampled_from(KINDS))
            info.linkname = draw(st.sampled_from(["", "/etc/passwd", "../../evil", "a.png"]))
            content = draw(st.sampled_from([b"", b"1", sources.picture(3)]))
            info.size = len(content)
            if info.type == tarfile.REGTYPE and draw(st.integers(0, 5)) == 0:
                info.pax_headers = {"size": str(draw(st.integers(-(10**6), 10**12)))}
            try:
                archive.addfile(info, io.BytesIO(content))
            except ValueError:
                continue
    content = with_checksums(bytearray(draw(damaged_bytes(buffer.getvalue(), most=3))))
    suffix = draw(st.sampled_from(sorted(PACK)))
    packed = PACK[suffix](content)
    return suffix, draw(damaged_bytes(packed, most=2)) if draw(st.booleans()) else packed


def with_checksums(content: bytearray) -> bytes:
    """Otherwise the checksum of a changed header stops everything before it is read."""
    for at in range(0, len(content) - 511, 512):
        if content[at + 257 : at + 262] == b"ustar":
            block = content[at : at + 512]
            total = 256 + sum(block[:148]) + sum(block[156:])
            content[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(content)


def read_archive(folder: Path, archive: tuple[str, bytes]) -> None:
    suffix, content = archive
    with open_source(write(folder / f"a{suffix}", content)) as source:
        for name, data in source.read_many(source.names, limit=2**21):
            assert len(data) <= 2**21
            assert ".." not in name.split("/")


def install_archive(folder: Path, archive: tuple[str, bytes]) -> None:
    suffix, content = archive
    path = write(folder / f"a{suffix}", content)
    add(BENCHMARKS["mini-imagenet"], path, Store(folder / "home"))


@cache
def whole_archives() -> list[tuple[str, bytes]]:
    files = sources.folders()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return [(".zip", buffer.getvalue()), (".tgz", packed.getvalue())]


@st.composite
def damaged_data_sets(draw: st.DrawFn) -> tuple[str, bytes]:
    suffix, content = draw(st.sampled_from(whole_archives()))
    return suffix, draw(damaged_bytes(content))


# Pictures


@cache
def pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    found = []
    for kind, mode, options in (
        ("png", "RGB", {}),
        ("png", "P", {}),
        ("png", "RGBA", {}),
        ("png", "I;16", {}),
        ("png", "1", {"dpi": (3, 3)}),
        ("jpeg", "RGB", {"exif": exif(6)}),
        ("jpeg", "L", {"progressive": True}),
        ("jpeg", "CMYK", {}),
        ("webp", "RGB", {"lossless": True}),
        ("webp", "RGBA", {"exif": exif(3)}),
        ("bmp", "RGB", {}),
        ("bmp", "P", {}),
    ):
        file = io.BytesIO()
        picture = noise.convert("L").convert("I;16") if mode == "I;16" else noise.convert(mode)
        picture.save(file, kind, **options)
        found.append(file.getvalue())
    return found


def exif(orientation: int) -> bytes:
    notes = Image.Exif()
    notes[0x0112] = orientation
    return notes.tobytes()


@st.composite
def damaged_pictures(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(damaged_bytes(*pictures(), most=4)))
    if content[:4] == b"\x89PNG":
        mend_png(content)
    return bytes(content)


def mend_png(content: bytearray) -> None:
    """Its checksums made right again, so that what was changed is looked at."""
    at = 8
    while at + 12 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        if at + 12 + size > len(content):
            return
        content[at + 8 + size : at + 12 + size] = struct.pack(
            ">I", zlib.crc32(content[at + 4 : at + 8 + size])
        )
        at += 12 + size


def read_picture(folder: Path, content: bytes) -> None:
    for size, channels in ((None, None), (28, 1)):
        found = decode(content, "a picture", size, channels)
        assert found.dtype == np.uint8
        assert found.ndim == 3


# Pickles


class Evil:
    """What a pickle of an attacker asks for."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], tuple(self.call[1:])


@cache
def sound_pickles() -> list[bytes]:
    arrays = {"data": np.zeros((2, 2, 2, 3), np.uint8), "labels": [0, 1], b"x": np.float32(2)}
    values = [
        arrays,
        {"image_data": arrays["data"], "class_dict": {"n01": [0], "n02": [1]}},
        [1, 2.5, "é", b"\0", None, True, (1,), {"a": [2**70]}],
        np.array(["a", "bc"]),
        np.array([[1, 2], [3, 4]], order="F"),
    ]
    return [pickle.dumps(value, protocol) for value in values for protocol in range(6)]


@cache
def evil_pickles() -> list[bytes]:
    calls = [
        Evil(os.system, "touch evil"),
        Evil(eval, "open('evil', 'w')"),
        Evil(exec, "import os"),
        Evil(open, "evil", "w"),
        Evil(getattr, "", "__class__"),
        Evil(bytearray, 2**40),
        {"data": Evil(os.mkdir, "evil"), "labels": []},
    ]
    return [pickle.dumps(call, protocol) for call in calls for protocol in range(6)]


OPCODES = st.sampled_from([getattr(pickle, name) for name in dir(pickle) if name.isupper()]).filter(
    lambda code: isinstance(code, bytes) and len(code) == 1
)
ARGUMENTS = st.sampled_from(
    [
        b"",
        b"\0",
        b"\x01",
        b"\xff" * 4,
        b"\xff" * 8,
        b"1\n",
        b"-1\n",
        b"os\nsystem\n",
        b"cos\nsystem\n",
    ]
)
PROGRAMS = st.lists(st.tuples(OPCODES, ARGUMENTS), max_size=25).map(
    lambda lines: b"".join(code + argument for code, argument in lines) + b"."
)


def read_pickle(folder: Path, content: bytes) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        safe_pickle.load(content, "a.pkl")
    finally:
        os.chdir(before)
    assert not (folder / "evil").exists()


# Arrays, and whole data sets of them


@cache
def arrays() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        for order in "CF":
            file = io.BytesIO()
            save(file, images=np.asarray(np.ones((2, 4, 4, 3), np.uint8), order=order))
            found.append(file.getvalue())
    return found


def read_arrays(folder: Path, content: bytes) -> None:
    read_npz(content, "images", "a.npz")


@cache
def packed_sets() -> list[tuple[str, dict[str, bytes]]]:
    return [
        ("tiered-imagenet", sources.tiered_pickles()),
        ("tiered-imagenet", sources.tiered_arrays()),
        ("cifar-fs", sources.cifar_python()),
        ("fc100", sources.cifar_binary()),
    ]


@st.composite
def damaged_sets(draw: st.DrawFn) -> tuple[str, dict[str, bytes]]:
    name, files = draw(st.sampled_from(packed_sets()))
    which = draw(st.sampled_from(sorted(files)))
    return name, files | {which: draw(damaged_bytes(files[which]))}


def read_set(folder: Path, given: tuple[str, dict[str, bytes]]) -> None:
    name, files = given
    shutil.rmtree(folder / "set", ignore_errors=True)
    for file, content in files.items():
        write(folder / "set" / file, content)
    with open_source(folder / "set") as source:
        for _, content in find(BENCHMARKS[name], source).read(False):
            assert len(content)


TARGETS = [
    Target("CSV splits", CSVS, read_lists, weight=1.5),
    Target("zip archives", zips(), read_archive, weight=1.5),
    Target("tar archives", tars(), read_archive, weight=1.5),
    Target(
        "`data add` of a damaged archive",
        st.deferred(damaged_data_sets),
        install_archive,
        weight=0.2,
    ),
    Target("pictures", st.deferred(damaged_pictures), read_picture, weight=6),
    Target(
        "pickles",
        st.deferred(
            lambda: damaged_bytes(*sound_pickles()) | damaged_bytes(*evil_pickles()) | PROGRAMS
        ),
        read_pickle,
        weight=8,
    ),
    Target("npz arrays", st.deferred(lambda: damaged_bytes(*arrays())), read_arrays, weight=3),
    Target("data sets in pickles", st.deferred(damaged_sets), read_set, weight=0.4),
]
