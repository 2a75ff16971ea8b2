// node node.mjs MODEL.onnx IMAGE.jpg...    needs: npm install (package.json is beside this file)

import { readFile } from "node:fs/promises";
import jpeg from "jpeg-js";
import * as ort from "onnxruntime-web";
import { classify } from "./classify.mjs";

const [model, ...paths] = process.argv.slice(2);
ort.env.wasm.numThreads = 1; // else its threads keep node from ending
const session = await ort.InferenceSession.create(await readFile(model));

for (const path of paths) {
  const image = jpeg.decode(await readFile(path), { useTArray: true });
  const { label, probabilities } = await classify(ort, session, image);
  console.log(`${path}: ${label} (${probabilities.map((p) => p.toFixed(3)).join(", ")})`);
}
