"""python classify.py MODEL.onnx IMAGE...    needs: pip install onnxruntime pillow numpy"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model, *paths = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])

for path in paths:
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode[0] in "IF":
        sys.exit(f"{path} has more than 8 bits a channel: convert it first")
    if image.has_transparency_data:  # transparent parts become white
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    pixels = np.asarray(image.convert("RGB"))
    probabilities, labels = session.run(None, {"images": pixels[None]})
    others = ", ".join(f"{c} {p:.3f}" for c, p in zip(classes, probabilities[0], strict=True))
    print(f"{path}: {labels[0]} ({others})")
