"""The registry: every data set by its name, and how its tasks are made.

A data set of your own is one more row, `DATA_SETS["name"] = DataSet("what it is", "its terms",
stream=...)` or with `images=...`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from metamirror.core.import_path import split_path
from metamirror.core.option_spec import NoOptions, parse_spec, read_options
from metamirror.data.benchmarks import BENCHMARKS
from metamirror.data.hugging_face import open_saved
from metamirror.data.image_set import ImageClass, ImageSet
from metamirror.data.own_arrays import open_arrays
from metamirror.data.own_folder import open_folder
from metamirror.data.store import Store, data_home
from metamirror.data.task_stream import Sinusoid, TaskStream

MIN_SIZE, MAX_SIZE = 8, 1024


@dataclass(frozen=True)
class DataSet:
    """A row of the registry: either `stream` or `images` makes its tasks."""

    title: str  # what it is, and who made it.
    licence: str
    # (split, shots, queries, seed, batch) -> generated tasks.
    stream: Callable[[str, int, int, int, int], TaskStream] | None = None
    # (what the user wrote, store, height and width if other than stored) -> images to draw from.
    images: Callable[[str, Store, int | None], ImageSet] | None = None
    usage: str = ""  # what users type, if not just the name.


def find_data_set(spec: str) -> DataSet:
    """Return the row of a data set by its name, after which its options may follow."""
    name = spec.partition(":")[0]
    if name not in DATA_SETS:
        known = ", ".join(row.usage or key for key, row in DATA_SETS.items())
        raise ValueError(
            f"no data set is called {name!r}; choose from {known}, or name your own, "
            f"package.module:function"
        )
    return DATA_SETS[name]


def is_own(spec: str) -> bool:
    """Return whether a name is the import path of the user's own data."""
    return spec.partition(":")[0] not in DATA_SETS and split_path(spec) is not None


def open_images(
    spec: str, *, image_size: int | None = None, data_dir: str | Path | None = None
) -> ImageSet:
    """Open the images of a data set, memory-mapped.

    Args:
        spec: `glyphs`, a benchmark's name (its options may follow), `folder:PATH`,
            `arrays:FILE.npz` or `hf:PATH`.
        image_size: height and width, if other than stored; made once and kept.
        data_dir: where installed data live.
    """
    row = find_data_set(spec)
    if row.images is None:
        raise ValueError(f"{spec} has no images: its tasks are generated")
    check_size(image_size)
    return row.images(spec, Store(data_home(data_dir)), image_size)


def check_size(image_size: int | None) -> None:
    """Refuse sizes that no image should have."""
    if image_size is not None and not MIN_SIZE <= image_size <= MAX_SIZE:
        raise ValueError(f"image_size is {image_size}; it must lie in {MIN_SIZE} .. {MAX_SIZE}")


def open_benchmark(spec: str, store: Store, image_size: int | None = None) -> ImageSet:
    """Open an installed benchmark, with the options that follow its name."""
    name, words = parse_spec(spec)
    benchmark = BENCHMARKS[name]
    options = read_options(name, benchmark.options, words)
    if not store.holds(name):
        how = "--download" if benchmark.downloads else "--from PATH"
        raise ValueError(
            f"{name} is not installed in {store.root}: metamirror data add {name} {how} "
            f"(or set METAMIRROR_HOME, or --data-dir, to where it is)"
        )
    images = resized(store.open(name), store, image_size)
    return replace(images, name=spec, classes=tuple(benchmark.arrange(images.classes, options)))


def open_glyphs(spec: str, store: Store, image_size: int | None = None) -> ImageSet:
    """Open the built-in letters, drawn at the first use and whenever a version has changed."""
    from metamirror.data import glyphs

    def install() -> None:
        letters, each, shape = glyphs.letters(), glyphs.SAMPLES, (1, glyphs.SIDE, glyphs.SIDE)
        classes = [
            ImageClass(letter.character, letter.split, i * each, each)
            for i, letter in enumerate(letters)
        ]
        rows = enumerate(image for c in letters for image in glyphs.render_letter(c)[:, None])
        store.install("glyphs", shape, classes, rows, {"versions": versions}, "draw glyphs")

    versions, (name, words) = glyphs.versions(), parse_spec(spec)
    read_options(name, NoOptions, words)
    return resized(store.keep("glyphs", "versions", versions, install), store, image_size)


def resized(images: ImageSet, store: Store, size: int | None) -> ImageSet:
    """Return the same images in another size, made once from the stored ones."""
    _, channels, height, _ = images.pixels.shape
    if size is None or size == height:
        return images
    name, origin = f"{images.name}@{size}", store.facts(images.name)["sha256"]

    def install() -> None:
        from metamirror.data.readers.images import fit

        rows = (
            (row, fit(image.transpose(1, 2, 0), size, channels).transpose(2, 0, 1))
            for row, image in enumerate(images.pixels)
        )
        shape, title = (channels, size, size), f"resize {images.name} to {size}x{size}"
        store.install(name, shape, images.classes, rows, {"origin": origin}, title)

    return replace(store.keep(name, "origin", origin, install), name=images.name)


DATA_SETS: dict[str, DataSet] = {
    "sinusoid": DataSet("regression of sine curves (Finn et al., 2017)", "-", stream=Sinusoid),
    "glyphs": DataSet(
        "letters of many scripts, from matplotlib's fonts", "Bitstream Vera", images=open_glyphs
    ),
    **{
        name: DataSet(benchmark.title, benchmark.licence, images=open_benchmark)
        for name, benchmark in BENCHMARKS.items()
    },
    "folder": DataSet("images of your own", "yours", images=open_folder, usage="folder:PATH"),
    "arrays": DataSet(
        "arrays x and y of your own", "yours", images=open_arrays, usage="arrays:FILE.npz"
    ),
    "hf": DataSet(
        "a Hugging Face data set, saved on disk", "its own", images=open_saved, usage="hf:PATH"
    ),
}
