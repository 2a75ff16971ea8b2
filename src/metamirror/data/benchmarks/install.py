"""From a download to the store: found, checked, decoded once, written as bytes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metamirror.data.benchmarks.benchmark import Benchmark
from metamirror.data.benchmarks.layouts import Content, Found, FoundClass, Key
from metamirror.data.image_set import ImageClass
from metamirror.data.random import SPLITS
from metamirror.data.reading.archive import Source, open_source
from metamirror.data.reading.download import fetch
from metamirror.data.reading.pictures import BadPicture, decode, fit
from metamirror.data.store import CHUNK, Rows, Store
from metamirror.progress import Progress
from metamirror.version import __version__


@dataclass(frozen=True)
class Conversion:
    """How pictures become rows of bytes.

    Attributes:
        size: height and width.
        channels: 1 or 3.
        inverted: whether dark and light change places.
        skip_bad: leave out a picture that cannot be read, instead of stopping.
    """

    size: int
    channels: int
    inverted: bool = False
    skip_bad: bool = False


def add(benchmark: Benchmark, path: Path, store: Store, *, skip_bad: bool = False) -> list[str]:
    """Installs a benchmark from a folder, zip or tar; returns what should be known about it."""
    with store.locked(benchmark.name, wait=False), open_source(path) as source:
        found = find(benchmark, source)
        remarks = unofficial_files(benchmark, source)
        left_out = write(
            store,
            benchmark.name,
            found,
            Conversion(benchmark.size, benchmark.channels, benchmark.inverted, skip_bad),
            {"title": benchmark.title, "licence": benchmark.licence},
        )
    if left_out:
        remarks.append(f"{left_out} pictures could not be read and were left out")
    return remarks + differences(benchmark, store)


def find(benchmark: Benchmark, source: Source) -> Found:
    """The pictures of a benchmark, in the first layout that fits."""
    for layout in benchmark.layouts:
        if (found := layout(source)) is not None:
            return found
    raise ValueError(
        f"{source.path} holds no {benchmark.name} in a known form; accepted: {benchmark.forms}. "
        f"To be had from: {benchmark.source}"
    )


def write(
    store: Store, name: str, found: Found, conversion: Conversion, about: dict[str, object]
) -> int:
    """Decodes what was found into the store; returns how many pictures were left out."""
    classes = row_classes(found.classes, name)
    place = {
        key: c.start + i
        for c, f in zip(classes, found.classes, strict=True)
        for i, key in enumerate(f.pictures)
    }
    with Progress(f"add {name}", len(place)) as progress:
        return store.install(
            name,
            (conversion.channels, conversion.size, conversion.size),
            classes,
            rows(found.read(), place, conversion, progress),
            {"version": __version__, **about},
        )


def row_classes(found: Sequence[FoundClass], name: str) -> list[ImageClass]:
    """One class after the other; a class in two splits would let training see the test."""
    splits: dict[str, str] = {}
    classes, start = [], 0
    for c in found:
        if splits.setdefault(c.name, c.split) != c.split:
            raise ValueError(
                f"class {c.name!r} of {name} is in both {splits[c.name]} and {c.split}: keep one"
            )
        classes.append(ImageClass(c.name, c.split, start, len(c.pictures)))
        start += len(c.pictures)
    return classes


def rows(
    pictures: Iterator[tuple[Key, Content]],
    place: dict[Key, int],
    conversion: Conversion,
    progress: Progress,
) -> Rows:
    """Pictures as the store takes them, in the order in which they are read."""
    done = bad = 0
    for key, content in pictures:
        if key not in place:
            continue
        try:
            picture = picture_row(content, key, conversion)
        except BadPicture as error:
            if not conversion.skip_bad:
                raise BadPicture(f"{error}; --skip-bad leaves such pictures out") from error
            picture, bad = None, bad + 1
        yield place[key], picture
        done += 1
        progress.update(done, f"{bad} left out" if bad else "")


def picture_row(content: Content, key: Key, conversion: Conversion) -> np.ndarray:
    """One picture (channels, height, width) in bytes."""
    size, channels = conversion.size, conversion.channels
    if isinstance(content, bytes):
        picture = decode(content, key[0], size, channels)
    else:
        picture = fit(content, size, channels)
    picture = np.ascontiguousarray(picture.transpose(2, 0, 1))
    return 255 - picture if conversion.inverted else picture


def differences(benchmark: Benchmark, store: Store) -> list[str]:
    """Where what is stored departs from the published data set."""
    facts = store.facts(benchmark.name)
    counts = dict.fromkeys(SPLITS, 0)
    for c in facts["classes"]:
        counts[c["split"]] += 1
    remarks = []
    if counts != dict(benchmark.classes):
        remarks.append(
            f"{'/'.join(map(str, counts.values()))} classes for train/val/test; the published "
            f"{benchmark.name} has {'/'.join(map(str, benchmark.classes.values()))}"
        )
    if benchmark.pictures not in (None, facts["shape"][0]):
        remarks.append(
            f"{facts['shape'][0]:,} pictures; the published {benchmark.name} has "
            f"{benchmark.pictures:,}"
        )
    return remarks


def unofficial_files(benchmark: Benchmark, source: Source) -> list[str]:
    """A remark for each file that has an official name but not the official checksum."""
    return [
        f"{path.name} is not byte for byte the official file, though its layout is right: packed "
        f"again, perhaps"
        for path in source.files
        if path.name in benchmark.md5 and md5_of(path) != benchmark.md5[path.name]
    ]


def md5_of(path: Path) -> str:
    """The checksum in which the official files are published."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def download(benchmark: Benchmark, store: Store, *, skip_bad: bool = False) -> list[str]:
    """Fetches a benchmark from its official address and installs it."""
    if not benchmark.downloads:
        raise ValueError(
            f"{benchmark.name} has no stable official address. Get it by hand ({benchmark.source}; "
            f"{benchmark.licence}), then: metamirror data add {benchmark.name} --from PATH"
        )
    # Kept until the installation has succeeded, so that nothing is fetched twice.
    folder = store.root / f".{benchmark.name}.download"
    folder.mkdir(parents=True, exist_ok=True)
    for item in benchmark.downloads:
        if not (folder / item.file).is_file():
            with Progress(f"fetch {item.file} (MB)", 1) as progress:
                fetch(
                    item.address, folder / item.file, md5=item.md5, progress=in_megabytes(progress)
                )
    remarks = add(benchmark, folder, store, skip_bad=skip_bad)
    shutil.rmtree(folder)
    return remarks


def in_megabytes(progress: Progress) -> Callable[[int, int | None], None]:
    """Shows (bytes done, bytes in all if known)."""

    def report(done: int, total: int | None) -> None:
        progress.resize(max(1, (total or done) >> 20))
        progress.update(done >> 20, "")

    return report
