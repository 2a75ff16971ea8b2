// A square to draw in, or to show an image in.

const PEN = 0.085; // thickness on the screen; the server draws its own
const STEP = 0.05; // of the keyboard's pen
const MOST_POINTS = 1400, MOST_STROKES = 100; // what the server takes, or a little less
const ENDS = ["pointerup", "pointercancel", "lostpointercapture"];
const pads = new Set();
let square = false; // whether of an image the middle alone counts, and is shown

export class Pad {
  /** @param changed called with every change, also in the middle of a stroke */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    this.image = null;
    this.pen = null; // of the keyboard: {x, y, down}
    this.pointer = null; // that draws: of several fingers, the first
    pads.add(this);
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => { this.pen = null; this.paint(); });
    this.paint();
  }

  get empty() { return !this.image && !this.strokes.length; }

  /** What is sent to the server. */
  value(start) {
    return this.image ? this.image.fields(start) : { strokes: this.strokes };
  }

  show(image) {
    this.strokes = [];
    this.image = image;
    this.#update();
  }

  clear() { this.show(null); }

  forget() { pads.delete(this); }

  /** Shows an example's rank, and by how much the loss rises without it; nothing without a rank. */
  mark(rank, change = 0) {
    const mark = this.canvas.parentElement.querySelector(".mark");
    const size = Math.abs(change).toFixed(Math.abs(change) < 10 ? 2 : 0);
    const side = Number(size) === 0 ? "" : change > 0 ? "+" : "−";
    mark.hidden = rank === null;
    mark.textContent = `${rank}: ${side}${side && size || 0}`;
    mark.className = `mark ${{ "+": "for", "−": "against" }[side] ?? ""}`;
  }

  paint() {
    const { canvas } = this;
    const side = canvas.width;
    const context = canvas.getContext("2d");
    const ink = getComputedStyle(canvas).color;
    context.clearRect(0, 0, side, side);
    if (this.image) this.image.paint(context, side, ink, square);
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = PEN * side;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.strokes) {
      context.beginPath();
      context.moveTo(stroke[0][0] * side, stroke[0][1] * side);
      // A line to where it begins makes a dot.
      for (const [x, y] of stroke) context.lineTo(x * side, y * side);
      context.stroke();
    }
    if (this.empty && !this.pen) {
      context.globalAlpha = 0.45;
      context.font = `${Math.round(side / (side > 300 ? 18 : 7.5))}px sans-serif`;
      context.textAlign = "center";
      context.fillText("draw here", side / 2, side * 0.53);
      context.globalAlpha = 1;
    }
    if (this.pen) {
      context.lineWidth = side / 90;
      context.beginPath();
      context.arc(this.pen.x * side, this.pen.y * side, PEN * side * 0.75, 0, 7);
      context.strokeStyle = getComputedStyle(canvas).outlineColor;
      context.stroke();
      if (this.pen.down) context.fill();
    }
  }

  #update() {
    this.paint();
    this.changed();
  }

  #begin(event) {
    if (event.button !== 0 || this.image || this.pointer !== null) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.pen = null;
    const { canvas } = this;
    if (this.strokes.length >= MOST_STROKES) return;
    canvas.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    const stroke = [this.#place(event)];
    this.strokes.push(stroke);
    this.#update();
    const move = (moved) => {
      if (moved.pointerId !== event.pointerId) return;
      const all = moved.getCoalescedEvents?.() ?? [];
      for (const each of all.length ? all : [moved]) this.#extend(stroke, this.#place(each));
      // It may have been cleared under the pen.
      if (this.strokes.includes(stroke)) this.#update();
    };
    const end = (ended) => {
      if (ended.pointerId !== event.pointerId) return;
      this.pointer = null;
      canvas.removeEventListener("pointermove", move);
      for (const kind of ENDS) canvas.removeEventListener(kind, end);
    };
    canvas.addEventListener("pointermove", move);
    for (const kind of ENDS) canvas.addEventListener(kind, end);
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (at, low, length) =>
      Number(Math.min(1, Math.max(0, (at - low) / length)).toFixed(3));
    return [share(event.clientX, box.left, box.width), share(event.clientY, box.top, box.height)];
  }

  #extend(stroke, point) {
    const [x, y] = stroke.at(-1);
    const full = this.strokes.reduce((sum, each) => sum + each.length, 0) >= MOST_POINTS;
    if (!full && Math.hypot(point[0] - x, point[1] - y) > 0.008) stroke.push(point);
  }

  #key(event) {
    if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      this.pen = null;
      this.clear();
      return;
    }
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (this.image || !(event.key in move || event.key === " ")) return;
    event.preventDefault();
    this.pen ??= { x: 0.5, y: 0.5, down: false };
    const { pen } = this;
    if (event.key === " ") {
      pen.down = !pen.down;
      if (pen.down && this.strokes.length >= MOST_STROKES) pen.down = false;
      if (pen.down) this.strokes.push([[pen.x, pen.y]]);
    } else {
      const [right, down] = move[event.key];
      const moved = (at, by) => Number(Math.min(1, Math.max(0, at + by * STEP)).toFixed(3));
      pen.x = moved(pen.x, right);
      pen.y = moved(pen.y, down);
      if (pen.down) this.#extend(this.strokes.at(-1), [pen.x, pen.y]);
    }
    this.#update();
  }
}

/** Shows of all images what the start looks at. */
export function showSquares(wanted) {
  square = wanted;
  for (const pad of pads) pad.paint();
}

// Ink has the colour of the text, which changes with the ground.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const pad of pads) pad.paint();
});
