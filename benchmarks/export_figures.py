"""How far an exported model is from the estimator, on photographs of many sizes.

    python benchmarks/export_figures.py    # writes results/export.json, shown in docs/deploy.md

The images are parts of three photographs that scikit-learn and matplotlib carry. Beside the graph
as it is, the same network gets the images by ONNX's own Resize, cubic with antialiasing.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.cbook
import numpy as np
import onnx
import onnxruntime
import PIL
from numpy.typing import NDArray
from onnx import TensorProto, helper
from PIL import Image
from sklearn.datasets import load_sample_images

import metamirror as mm
from metamirror.core.files import read_json, write_json
from metamirror.estimators.export import export
from speed_table import NOTHING, markdown

FILE = "export.json"
Pixels = NDArray[np.uint8]


def parts(count: int, tall: bool) -> list[Pixels]:
    """Rectangles of the photographs, at least 40 pixels high and wide; wide ones, or tall ones."""
    china, flower = load_sample_images().images
    person = np.asarray(Image.open(matplotlib.cbook.get_sample_data("grace_hopper.jpg")))
    random = np.random.default_rng([count, tall])
    found = []
    while len(found) < count:
        whole = (china, flower, person)[len(found) % 3]
        height, width = (int(random.integers(40, side + 1)) for side in whole.shape[:2])
        if (height > width) == tall:
            top, left = (
                int(random.integers(0, side - part + 1))
                for side, part in zip(whole.shape, (height, width), strict=False)
            )
            found.append(np.ascontiguousarray(whole[top : top + height, left : left + width]))
    return found


def session(model: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def cubic(size: int) -> onnxruntime.InferenceSession:
    """ONNX's own Resize of an image (1, height, width, channels)."""
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [size, size])
    how = {"mode": "cubic", "antialias": 1, "axes": [1, 2], "cubic_coeff_a": -0.5}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **how)
    shape = [1, "height", "width", "channels"]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    graph = helper.make_graph([node], "resize", ends[:1], ends[1:], [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return session(model.SerializeToString())


def by_cubic(resize: onnxruntime.InferenceSession, pixels: Pixels, grey: bool) -> NDArray[Any]:
    short = min(pixels.shape[:2])
    top, left = ((side - short) // 2 for side in pixels.shape[:2])
    image = Image.fromarray(pixels[top : top + short, left : left + short])
    square = np.asarray(image.convert("L" if grey else "RGB"), np.float32)
    (found,) = resize.run(None, {"x": square.reshape(1, short, short, -1)})
    return np.clip(found / 255, 0, 1)


def measure(start: str, count: int) -> list[dict[str, Any]]:
    classes = ["china", "flower", "person"]
    support = parts(9, False)
    clf = mm.FewShotClassifier(start, device="cpu")
    clf.fit(list(map(Image.fromarray, support)), classes * 3)
    reader = clf.fitted_.reader
    resize, rows = cubic(reader.size), []
    with tempfile.TemporaryDirectory() as folder:
        export(clf, Path(folder) / "model.onnx", "onnx")
        model = session(str(Path(folder) / "model.onnx"))
    for tall in (False, True):
        images = parts(count, tall)
        right = clf.predict_proba(list(map(Image.fromarray, images)))
        ours = np.concatenate([model.run(None, {"images": i[None]})[0] for i in images])
        other = clf.predict_proba(
            np.concatenate([by_cubic(resize, i, reader.channels == 1) for i in images])
        )
        for name, found in (("lanczos, as exported", ours), ("cubic, ONNX's Resize", other)):
            off = np.abs(found - right).max(1)
            rows.append(
                {
                    "start": start,
                    "images": f"{count} {'taller than wide' if tall else 'wide or square'}",
                    "resampling": name,
                    "median": float(np.median(off)),
                    "largest": float(off.max()),
                    "same_label": int((found.argmax(1) == right.argmax(1)).sum()),
                }
            )
    return rows


def table(results: Path) -> str:
    """What the page says of the measurements."""
    file = results / FILE
    if not file.exists():
        return NOTHING
    found = read_json(file)
    rows = [
        (
            f"`{row['start']}`",
            row["images"],
            row["resampling"],
            f"{row['median']:.1e}",
            f"{row['largest']:.1e}",
            str(row["same_label"]),
        )
        for row in found["rows"]
    ]
    columns = ("start", "images", "resampling", "median", "largest", "same label")
    return markdown(columns, rows, words=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / FILE)
    parser.add_argument("--starts", default="glyphs-blockiaf", help="names, with commas")
    parser.add_argument("--count", type=int, default=200, help="images of either shape")
    given = parser.parse_args()
    rows = [row for start in given.starts.split(",") for row in measure(start, given.count)]
    versions = {"pillow": PIL.__version__, "onnxruntime": onnxruntime.__version__}
    write_json(given.out, {"versions": versions, "rows": rows})


if __name__ == "__main__":
    main()
