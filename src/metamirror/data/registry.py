"""Sets of pictures by name: installed, built in, or the user's own folder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from metamirror.console import Progress, say
from metamirror.core.option_spec import NoOptions, parse_spec, read_options
from metamirror.data import glyphs
from metamirror.data.benchmarks import BENCHMARKS
from metamirror.data.image_set import ImageClass, ImageSet
from metamirror.data.installing.install import Conversion, write
from metamirror.data.own_folder import (
    FOLDER_SIZE,
    absolute_folder,
    find_folder,
    fingerprint,
    parse_folder,
)
from metamirror.data.readers.images import SUFFIXES, fit
from metamirror.data.readers.source import open_source
from metamirror.data.store import Rows, Store, data_home

IMAGE_SETS = ("glyphs", *BENCHMARKS, "folder:PATH")
MIN_SIZE, MAX_SIZE = 8, 1024


def open_images(
    spec: str, *, image_size: int | None = None, data_dir: str | Path | None = None
) -> ImageSet:
    """The pictures of a data set, memory-mapped.

    Args:
        spec: `glyphs`, a benchmark's name (its options may follow), or `folder:PATH`.
        image_size: height and width, if other than stored; made once and kept.
        data_dir: where installed data live.
    """
    check_size(image_size)
    store = Store(data_home(data_dir))
    if spec.startswith("folder:"):
        return open_folder(spec, store, image_size=image_size)
    name, words = parse_spec(spec)
    if name == "glyphs":
        read_options(name, NoOptions, words)
        return resized(open_glyphs(store), store, image_size)
    if name not in BENCHMARKS:
        raise ValueError(
            f"no set of pictures is called {name!r}; choose from {', '.join(IMAGE_SETS)}"
        )
    benchmark = BENCHMARKS[name]
    options = read_options(name, benchmark.options, words)
    if not store.holds(name):
        how = "--download" if benchmark.downloads else "--from PATH"
        raise ValueError(
            f"{name} is not installed in {store.root}: metamirror data add {name} {how} "
            f"(or set METAMIRROR_HOME, or --data-dir, to where it is)"
        )
    images = resized(store.open(name), store, image_size)
    return replace(images, name=spec, classes=benchmark.arrange(images.classes, options))


def check_size(image_size: int | None) -> None:
    """Refuses sizes that no picture should have."""
    if image_size is not None and not MIN_SIZE <= image_size <= MAX_SIZE:
        raise ValueError(f"image_size is {image_size}; it must lie in {MIN_SIZE} .. {MAX_SIZE}")


def resized(images: ImageSet, store: Store, size: int | None) -> ImageSet:
    """The same pictures in another size, made once from the stored ones."""
    count, channels, height, _ = images.pixels.shape
    if size in (None, height):
        return images
    assert size is not None
    name, origin = f"{images.name}@{size}", store.facts(images.name)["sha256"]

    def rows(progress: Progress) -> Rows:
        for row in range(count):
            picture = fit(images.pixels[row].transpose(1, 2, 0), size, channels)
            yield row, picture.transpose(2, 0, 1)
            progress.update(row + 1, "")

    def install() -> None:
        with Progress(f"resize {images.name} to {size}x{size}", count) as progress:
            shape = (channels, size, size)
            store.install(name, shape, images.classes, rows(progress), {"origin": origin})

    store.keep(name, "origin", origin, install)
    return replace(store.open(name), name=images.name)


def open_glyphs(store: Store) -> ImageSet:
    """The built-in letters, drawn at the first use and kept for the versions that drew them."""

    def install() -> None:
        with Progress("draw glyphs", 1) as progress:

            def report(done: int, total: int) -> None:
                progress.resize(total)
                progress.update(done, "")

            pixels, letters = glyphs.render(progress=report)
        each = len(pixels) // len(letters)
        classes = [
            ImageClass(letter.character, letter.split, i * each, each)
            for i, letter in enumerate(letters)
        ]
        rows = ((row, picture.transpose(2, 0, 1)) for row, picture in enumerate(pixels))
        store.install("glyphs", (1, 28, 28), classes, rows, {"versions": versions})

    versions = glyphs.versions()
    store.keep("glyphs", "versions", versions, install)
    return store.open("glyphs")


def folder_name(spec: str) -> str:
    """What the user's own pictures are called in the store, up to their size."""
    key = absolute_folder(spec).encode(errors="surrogateescape")
    return f"folder-{hashlib.sha256(key).hexdigest()[:16]}"


def open_folder(
    spec: str, store: Store, *, image_size: int | None = None, skip_bad: bool = False
) -> ImageSet:
    """The user's own pictures, converted at the first use and whenever the folder has changed."""
    check_size(image_size)
    path, split_seed = parse_folder(spec)
    size = FOLDER_SIZE if image_size is None else image_size
    name = f"{folder_name(spec)}@{size}"
    with open_source(path, look_into_archives=False) as source:
        state = fingerprint(source)

        def install() -> None:
            found, channels, passed_over = find_folder(source, split_seed)
            if passed_over:
                say(
                    f"{len(passed_over)} files of {path} are not used, such as {passed_over[0]}: "
                    f"pictures are {', '.join(SUFFIXES)}, in a folder for each class"
                )
            conversion = Conversion(size, channels, skip_bad=skip_bad)
            about: dict[str, object] = {"fingerprint": state, "path": str(path.resolve())}
            write(store, name, found, conversion, about, called=spec)

        store.keep(name, "fingerprint", state, install)
    return replace(store.open(name), name=spec)
