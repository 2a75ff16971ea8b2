// Images that were not drawn here: files, and letters from the server.

const SIDE = 112; // the longer side of what is sent
const MOST_BYTES = 40e6;

/** Bytes as requests have them. */
function encode(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** A photograph or any other file that the browser can show. */
export class FileImage {
  static async read(file) {
    if (file.size > MOST_BYTES) throw new Error(`${file.name} has more than 40 MB`);
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      throw new Error(`${file.name || "This"} is not an image that the browser can read`);
    }
    const scale = SIDE / Math.max(bitmap.width, bitmap.height);
    const side = (length) => Math.max(8, Math.round(length * scale));
    const canvas = document.createElement("canvas");
    canvas.width = side(bitmap.width);
    canvas.height = side(bitmap.height);
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    // What is transparent lies on white paper.
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return new FileImage(canvas);
  }

  constructor(canvas) { this.canvas = canvas; }

  fields(channels) {
    const { width, height } = this.canvas;
    const { data } = this.canvas.getContext("2d").getImageData(0, 0, width, height);
    const bytes = new Uint8Array(width * height * channels);
    for (let i = 0; i < width * height; i++) {
      const [red, green, blue] = data.subarray(4 * i, 4 * i + 3);
      if (channels === 3) bytes.set([red, green, blue], 3 * i);
      else bytes[i] = Math.round(0.299 * red + 0.587 * green + 0.114 * blue);
    }
    return { width, height, channels, pixels: encode(bytes) };
  }

  paint(context, side) {
    const { width, height } = this.canvas;
    const scale = side / Math.max(width, height);
    const [w, h] = [width * scale, height * scale];
    context.drawImage(this.canvas, (side - w) / 2, (side - h) / 2, w, h);
  }
}

/** Light ink on a dark ground, as the server sends it; shown in the colour of the text. */
export class InkImage {
  constructor(fields) { this.sent = fields; }

  fields() { return this.sent; }

  paint(context, side, ink) {
    context.drawImage(this.#canvas(ink), 0, 0, side, side);
  }

  #canvas(ink) {
    const { width, height, channels, pixels } = this.sent;
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    context.fillStyle = ink;
    context.fillRect(0, 0, width, height);
    const image = context.getImageData(0, 0, width, height);
    const bytes = atob(pixels);
    for (let i = 0; i < width * height; i++) {
      const at = (k) => bytes.charCodeAt(channels * i + k);
      if (channels === 1) image.data[4 * i + 3] = at(0);
      else image.data.set([at(0), at(1), at(2), 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}
