"""Install a data set: find its images in a download, check and decode them, and store them."""

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from metamirror._version import __version__
from metamirror.core.files import digest_of
from metamirror.data.addressing import SPLITS
from metamirror.data.image_set import ImageClass
from metamirror.data.installing.layouts import Benchmark, Found
from metamirror.data.readers.download import fetch
from metamirror.data.readers.images import BadImage, decode, fit
from metamirror.data.readers.source import Source, open_source
from metamirror.data.store import Rows, Store


def add(
    benchmark: Benchmark, path: Path | None, store: Store, *, skip_bad: bool = False
) -> list[str]:
    """Install a benchmark from a path, or else from its official addresses; return remarks."""
    if path is None and not benchmark.downloads:
        raise ValueError(
            f"{benchmark.name} has no stable official address. Get it by hand ({benchmark.source}; "
            f"{benchmark.licence}), then: metamirror data add {benchmark.name} --from PATH"
        )
    with store.locked(benchmark.name, wait=False):
        # Kept until the installation has succeeded, so that nothing is fetched twice.
        fetched = store.root / f".{benchmark.name}.download"
        for address in benchmark.downloads if path is None else ():
            file = fetched / PurePosixPath(address).name
            if not file.is_file():
                fetch(address, file, md5=benchmark.md5[file.name])
        with open_source(path or fetched) as source:
            found = find(benchmark, source)
            remarks = [
                f"{file.name} is not byte for byte the official file, though its layout is right: "
                f"packed again, perhaps"
                for file in source.files
                if file.name in benchmark.md5 and digest_of(file, "md5") != benchmark.md5[file.name]
            ]
            left_out = write(
                *(store, benchmark.name, found, benchmark.size, benchmark.channels),
                {"title": benchmark.title, "licence": benchmark.licence},
                inverted=benchmark.inverted,
                skip_bad=skip_bad,
            )
        if left_out:
            remarks.append(f"{left_out} images could not be read and were left out")
        remarks += differences(benchmark, store.facts(benchmark.name))
        if path is None:
            shutil.rmtree(fetched)
    return remarks


def find(benchmark: Benchmark, source: Source) -> Found:
    """Find the images of a benchmark, in the first layout that fits."""
    for layout in benchmark.layouts:
        if (found := layout(source)) is not None:
            splits = {split for split, _ in found.labels.values()}
            if missing := [split for split in SPLITS if split not in splits]:
                raise ValueError(
                    f"{source.path} holds no {missing[0]} classes of {benchmark.name}: it is "
                    f"incomplete; give a folder or archive that holds all of {benchmark.forms}"
                )
            return found
    raise ValueError(
        f"{source.path} holds no {benchmark.name} in a known form; accepted: {benchmark.forms}. "
        f"Available from: {benchmark.source}"
    )


def write(
    store: Store,
    name: str,
    found: Found,
    size: int,
    channels: int,
    about: dict[str, object],
    *,
    inverted: bool = False,
    skip_bad: bool = False,
    title: str | None = None,
) -> int:
    """Decode what was found into the store; return how many images were left out.

    `about` is what else the index says, and `title` what the user calls the data set, if not by its
    name. `inverted` exchanges dark and light; `skip_bad` leaves out images that cannot be read.
    """
    # Tasks are drawn by place: class after class, in the order of the splits and of their names.
    labelled = sorted(found.labels.items(), key=lambda e: (SPLITS.index(e[1][0]), e[1][1]))
    row_of, classes = {}, dict[str, ImageClass]()
    for row, (key, (split, label)) in enumerate(labelled):
        row_of[key] = row
        c = classes.setdefault(label, ImageClass(label, split, row, 0))
        if c.split != split:  # training would see the test
            raise ValueError(
                f"class {label!r} of {found.where} is in both {c.split} and {split}: keep one"
            )
        classes[label] = replace(c, count=c.count + 1)

    def rows() -> Rows:
        for key, content in found.read(skip_bad):
            if key not in row_of:
                continue
            image = None
            try:
                if isinstance(content, bytes):
                    image = decode(content, str(found.where / key[0]), size, channels)
                else:
                    image = fit(content, size, channels)
                image = (255 - image if inverted else image).transpose(2, 0, 1)
            except BadImage as error:
                if not skip_bad:
                    raise BadImage(f"{error}; --skip-bad leaves such images out") from error
            yield row_of[key], image

    about = {"version": __version__, **about}
    shape = (channels, size, size)
    return store.install(name, shape, list(classes.values()), rows(), about, f"add {title or name}")


def differences(benchmark: Benchmark, facts: Mapping[str, Any]) -> list[str]:
    """Say where what is stored departs from the published data set."""
    tables = (Counter(c["split"] for c in facts["classes"]), benchmark.classes)
    found, published = ("/".join(str(table[split]) for split in SPLITS) for table in tables)
    name, remarks = f"the published {benchmark.name}", []
    if found != published:
        remarks.append(f"{found} classes for train/val/test; {name} has {published}")
    if (images := facts["shape"][0]) != benchmark.images:
        remarks.append(f"{images:,} images; {name} has {benchmark.images:,}")
    return remarks
