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
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    probabilities, labels = session.run(None, {"images": np.asarray(image)[None]})
    others = ", ".join(f"{c} {p:.3f}" for c, p in zip(classes, probabilities[0], strict=True))
    print(f"{path}: {labels[0]} ({others})")
