"""From a download to the store: found, checked, decoded once, written as bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metamirror._version import __version__
from metamirror.console import Progress
from metamirror.data.addressing import SPLITS
from metamirror.data.benchmarks.benchmark import Benchmark
from metamirror.data.image_set import ImageClass, Pixels
from metamirror.data.installing.layouts import Content, Found, Key
from metamirror.data.readers.download import fetch
from metamirror.data.readers.images import BadPicture, decode, fit
from metamirror.data.readers.source import Source, open_source
from metamirror.data.store import Rows, Store
from metamirror.storage.atomic import digest_of


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
    with store.locked(benchmark.name, wait=False):
        return _install(benchmark, path, store, skip_bad)


def _install(benchmark: Benchmark, path: Path, store: Store, skip_bad: bool) -> list[str]:
    with open_source(path) as source:
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
    return remarks + differences(benchmark, store.facts(benchmark.name))


def find(benchmark: Benchmark, source: Source) -> Found:
    """The pictures of a benchmark, in the first layout that fits."""
    for layout in benchmark.layouts:
        if (found := layout(source)) is not None:
            if lacking := [s for s in SPLITS if s not in {c.split for c in found.classes}]:
                raise ValueError(
                    f"{source.path} holds no {lacking[0]} classes of {benchmark.name}: it is "
                    f"incomplete; give a folder or archive that holds all of {benchmark.forms}"
                )
            return found
    raise ValueError(
        f"{source.path} holds no {benchmark.name} in a known form; accepted: {benchmark.forms}. "
        f"To be had from: {benchmark.source}"
    )


def write(
    store: Store,
    name: str,
    found: Found,
    conversion: Conversion,
    about: dict[str, object],
    called: str | None = None,
) -> int:
    """Decodes what was found into the store; returns how many pictures were left out.

    Args:
        store: where it goes.
        name: what it is called there.
        found: the pictures.
        conversion: what becomes of them.
        about: what else the index says.
        called: what the user calls it.
    """
    classes = row_classes(found)
    place = {
        key: c.start + i
        for c, f in zip(classes, found.classes, strict=True)
        for i, key in enumerate(f.pictures)
    }
    with Progress(f"add {called or name}", len(place)) as progress:
        return store.install(
            name,
            (conversion.channels, conversion.size, conversion.size),
            classes,
            rows(found, place, conversion, progress),
            {"version": __version__, **about},
        )


def row_classes(found: Found) -> list[ImageClass]:
    """One class after the other; a class in two splits would let training see the test."""
    splits: dict[str, str] = {}
    classes, start = [], 0
    for c in found.classes:
        if splits.setdefault(c.name, c.split) != c.split:
            raise ValueError(
                f"class {c.name!r} of {found.where} is in both {splits[c.name]} and {c.split}: "
                f"keep one"
            )
        classes.append(ImageClass(c.name, c.split, start, len(c.pictures)))
        start += len(c.pictures)
    return classes


def rows(found: Found, place: dict[Key, int], conversion: Conversion, progress: Progress) -> Rows:
    """Pictures as the store takes them, in the order in which they are read."""
    done = bad = 0
    for key, content in found.read(conversion.skip_bad):
        if key not in place:
            continue
        try:
            picture = picture_row(content, found.where / key[0], conversion)
        except BadPicture as error:
            if not conversion.skip_bad:
                raise BadPicture(f"{error}; --skip-bad leaves such pictures out") from error
            picture, bad = None, bad + 1
        yield place[key], picture
        done += 1
        progress.update(done, f"{bad} left out" if bad else "")


def picture_row(content: Content, name: Path, conversion: Conversion) -> Pixels:
    """One picture (channels, height, width) in bytes."""
    size, channels = conversion.size, conversion.channels
    if isinstance(content, bytes):
        picture = decode(content, str(name), size, channels)
    else:
        picture = fit(content, size, channels)
    picture = np.ascontiguousarray(picture.transpose(2, 0, 1))
    return 255 - picture if conversion.inverted else picture


def differences(benchmark: Benchmark, facts: Mapping[str, Any]) -> list[str]:
    """Where what is stored departs from the published data set."""
    counts = dict.fromkeys(SPLITS, 0)
    for c in facts["classes"]:
        counts[c["split"]] += 1
    remarks = []
    if counts != dict(benchmark.classes):
        remarks.append(
            f"{'/'.join(map(str, counts.values()))} classes for train/val/test; the published "
            f"{benchmark.name} has {'/'.join(map(str, benchmark.classes.values()))}"
        )
    if benchmark.pictures != facts["shape"][0]:
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
        if path.name in benchmark.md5 and digest_of(path, "md5") != benchmark.md5[path.name]
    ]


def download(benchmark: Benchmark, store: Store, *, skip_bad: bool = False) -> list[str]:
    """Fetches a benchmark from its official address and installs it."""
    if not benchmark.downloads:
        raise ValueError(
            f"{benchmark.name} has no stable official address. Get it by hand ({benchmark.source}; "
            f"{benchmark.licence}), then: metamirror data add {benchmark.name} --from PATH"
        )
    with store.locked(benchmark.name, wait=False):
        # Kept until the installation has succeeded, so that nothing is fetched twice.
        folder = store.root / f".{benchmark.name}.download"
        folder.mkdir(parents=True, exist_ok=True)
        for item in benchmark.downloads:
            if not (folder / item.file).is_file():
                with Progress(f"fetch {item.file} (MB)", 1) as progress:
                    report = in_megabytes(progress)
                    fetch(item.address, folder / item.file, md5=item.md5, progress=report)
        remarks = _install(benchmark, folder, store, skip_bad)
        shutil.rmtree(folder)
    return remarks


def in_megabytes(progress: Progress) -> Callable[[int, int | None], None]:
    """Shows (bytes done, bytes in all if known)."""

    def report(done: int, total: int | None) -> None:
        progress.resize(max(1, (total or done) >> 20))
        progress.update(done >> 20, "")

    return report
