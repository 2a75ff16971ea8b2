// Images that were not drawn here: files, photographs of the camera, and letters from the server.

const KEPT = 512; // the longer side of what the page keeps
const SIDE = 112, PHOTO = 256; // the longer side of what is sent
const MOST_BYTES = 40e6, MOST_PIXELS = 50e6;

/** A part of an image in another size. */
function scaled(image, [left, top, wide, high], width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  // What is transparent lies on white paper.
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(image, left, top, wide, high, 0, 0, width, height);
  return canvas;
}

/** Everything, or the square in the middle. */
function part({ width, height }, square) {
  const short = Math.min(width, height);
  return square ? [(width - short) / 2, (height - short) / 2, short, short] : [0, 0, width, height];
}

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
    const found = bitmap.width * bitmap.height > MOST_PIXELS ? null : FileImage.of(bitmap);
    bitmap.close();
    if (!found) throw new Error(`${file.name} has more than 50 million pixels`);
    return found;
  }

  /** @param image whatever a canvas can draw, with its width and height */
  static of(image) {
    const scale = Math.min(1, KEPT / Math.max(image.width, image.height));
    const side = (length) => Math.max(8, Math.round(length * scale));
    return new FileImage(scaled(image, part(image), side(image.width), side(image.height)));
  }

  constructor(canvas) { this.canvas = canvas; }

  /** Starts for ink look for it everywhere; others get the middle, in their own size.
   *  A model from a file gets all the detail there is up to a side, and scales it as `predict` does. */
  fields({ channels, size, ink, side }) {
    const [left, top, wide, high] = part(this.canvas, !ink);
    const longest = Math.max(wide, high);
    const usual = ink ? SIDE : Math.min(size, PHOTO);
    const scale = (side ? Math.min(side, longest) : usual) / longest;
    const [width, height] = [wide, high].map((length) => Math.max(8, Math.round(length * scale)));
    const canvas = scaled(this.canvas, [left, top, wide, high], width, height);
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const bytes = new Uint8Array(width * height * channels);
    for (let i = 0; i < width * height; i++) {
      const [red, green, blue] = data.subarray(4 * i, 4 * i + 3);
      if (channels === 3) bytes.set([red, green, blue], 3 * i);
      else bytes[i] = Math.round(0.299 * red + 0.587 * green + 0.114 * blue);
    }
    return { width, height, channels, pixels: encode(bytes) };
  }

  paint(context, side, ink, square) {
    const [left, top, wide, high] = part(this.canvas, square);
    const scale = side / Math.max(wide, high);
    const [w, h] = [wide * scale, high * scale];
    context.drawImage(this.canvas, left, top, wide, high, (side - w) / 2, (side - h) / 2, w, h);
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
