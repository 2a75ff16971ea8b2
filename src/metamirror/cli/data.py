"""`metamirror data ...`: list, add, check, show."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from metamirror.cli.arguments import DataDir, Json, Name, flags_of
from metamirror.core.files import to_json
from metamirror.data import BENCHMARKS, DATA_SETS, ImageTasks, TaskStream, open_images, tasks
from metamirror.data.addressing import SPLITS
from metamirror.data.installing.install import add as install
from metamirror.data.installing.install import differences
from metamirror.data.own_folder import FOLDER_SIZE, folder_name, open_folder
from metamirror.data.path_spec import find_path
from metamirror.data.registry import check_size
from metamirror.data.store import DamagedSet, Store, data_home

KNOWN = ", ".join(BENCHMARKS)


def list_data(json: Json = False, data_dir: DataDir = None) -> None:
    """List the data sets: what they are, their licence, and whether they are installed."""
    store = Store(data_home(data_dir))
    rows = []
    for name, data_set in DATA_SETS.items():
        row: dict[str, Any] = {"name": data_set.usage or name, "title": data_set.title}
        row |= {"licence": data_set.licence, "installed": "-" if data_set.usage else "built in"}
        if benchmark := BENCHMARKS.get(name):
            row |= {"source": benchmark.source, "md5": dict(benchmark.md5) or "unknown"}
            row["installed"] = "yes" if store.holds(name) else "no"
            try:
                row |= _facts(store.facts(name)) if store.holds(name) else {}
            except DamagedSet:
                row["installed"] = "damaged"
        rows.append(row)
    if json:
        print(to_json({"data_dir": str(store.root), "data": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Installed data live in {store.root}")
    for column in ("name", "installed", "classes", "what", "licence"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "classes"))
    for row in rows:
        counts, licence = row.get("classes", {}), row["licence"].partition(":")[0]
        classes = "/".join(map(str, counts.values()))
        table.add_row(row["name"], row["installed"], classes, row["title"], licence)
    Console().print(table)
    print("Classes: train/val/test. Download locations and licences: --json")
    print("Next: metamirror data add NAME --download, or --from PATH where you have it already")


def add_data(
    name: Annotated[str, tyro.conf.Positional],
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    download: bool = False,
    skip_bad: bool = False,
    image_size: int | None = None,
    data_dir: DataDir = None,
) -> None:
    """Install a data set, from files that you have or from its official address.

    Args:
        name: the data set; folder:PATH converts images of your own ahead of their first use.
        source: a folder, zip or tar that holds it.
        download: fetch it, where there is a stable official address.
        skip_bad: leave out images that cannot be read, and count them.
        image_size: height and width to convert to as well, if other than the data set's own.
    """
    store = Store(data_home(data_dir))
    check_size(image_size)
    if name.startswith("folder:"):
        if source is not None or download:
            raise ValueError(f"{name} says where it is: leave out --from and --download")
        open_folder(name, store, image_size, skip_bad=skip_bad)
        print(_summary(name, store.facts(f"{folder_name(name)}@{image_size or FOLDER_SIZE}")))
        return
    if name not in BENCHMARKS:
        known = DATA_SETS.get(name)
        built_in = ": it is built in" if known and not known.usage else ""
        built_in = ": it is used where it is" if find_path(name) else built_in
        raise ValueError(f"{name!r} cannot be added{built_in}; choose from {KNOWN}")
    benchmark = BENCHMARKS[name]
    if download and source is not None:
        raise ValueError("give either --from or --download, not both")
    if source is None and not download:
        how = "--download, or " if benchmark.downloads else ""
        raise ValueError(
            f"where is {name}? Give {how}--from PATH ({benchmark.forms}). Available from: "
            f"{benchmark.source}"
        )
    remarks = install(benchmark, source, store, skip_bad=skip_bad)
    if image_size is not None:
        open_images(name, image_size=image_size, data_dir=data_dir)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    print(_summary(name, store.facts(name)) + f"; in {store.root}")
    print(f"licence: {benchmark.licence}")
    print(f"next: metamirror data show {name}, or metamirror train --method maml --data {name}")


def check_data(name: Name, json: Json = False, data_dir: DataDir = None) -> None:
    """Compare every byte of an installed data set with its checksum, and its counts."""
    store = Store(data_home(data_dir))
    if name == "glyphs":
        open_images(name, data_dir=data_dir)
    elif not name.startswith("folder:") and name not in BENCHMARKS:
        raise ValueError(f"there is nothing to check for {name!r}; choose from {KNOWN}")
    key = folder_name(name) if name.startswith("folder:") else name
    # Other sizes that were made from it are checked as well.
    found = [n for n in store.names() if n == key or n.startswith(f"{key}@")]
    if not found:
        raise ValueError(f"{name} is not installed in {store.root}: metamirror data add {name}")
    checked = [store.check(n) for n in found]
    remarks = differences(BENCHMARKS[name], checked[0]) if name in BENCHMARKS else []
    if json:
        sizes = [facts["shape"][2] for facts in checked]
        facts = {"name": name, "intact": True, **_facts(checked[0]), "sizes": sizes}
        print(to_json({**facts, "remarks": remarks}))
        return
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    print(*(f"intact: {_summary(name, facts)}" for facts in checked), sep="\n")


def show_data(
    sample: Annotated[
        partial[TaskStream],
        flags_of(tasks, "batch", "augment", "splits", "split_seed", "columns", queries=3),
    ],
    out: Path = Path("task.png"),
    step: int = 0,
) -> None:
    """Draw a sample task: support above, query below.

    Args:
        out: the image file.
        step: which task of that seed.
    """
    stream = sample(batch=1)
    if not isinstance(stream, ImageTasks) or len(stream.example_shape) != 3:
        raise ValueError(f"{sample.keywords['source']} has no images to show")
    from metamirror.report.figures.task import draw_task

    draw_task(stream.task(step, 0), stream.names(step, 0), out)
    print(f"image: {out}")


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    counts = Counter(c["split"] for c in facts["classes"])
    return {
        "classes": {split: counts[split] for split in SPLITS},
        "pictures": facts["shape"][0],
        "shape": facts["shape"][1:],
        "left_out": facts["left_out"],
        "sha256": facts["sha256"],
    }


def _summary(name: str, facts: dict[str, Any]) -> str:
    found = _facts(facts)
    counts, (channels, height, width) = found["classes"], found["shape"]
    sizes = sorted({c["count"] for c in facts["classes"]})
    each = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    left_out = f", {found['left_out']} left out" if found["left_out"] else ""
    return (
        f"{name}: {sum(counts.values()):,} classes ({'/'.join(map(str, counts.values()))} for "
        f"train/val/test) x {each} images = {found['pictures']:,}, {height}x{width}x{channels}"
        f"{left_out}"
    )
