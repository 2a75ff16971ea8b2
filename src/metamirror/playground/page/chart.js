// The loss against the steps, on a logarithmic scale, drawn step by step.

const WIDTH = 440, HEIGHT = 250;
const LEFT = 56, RIGHT = 14, TOP = 10, BOTTOM = 38;
const LOWEST = 1e-4; // a loss may be zero, and has then no logarithm
const MARGIN = 0.12; // above and below the curves, in powers of ten
const SHAPES = ["circle", "square"];

function make(kind, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

export const shown = (loss) => Number(loss.toPrecision(3)).toString();

/** Powers of ten between two of them; with few, 2 and 5 times these as well. */
function ticks(bottom, top) {
  const factors = top - bottom > 1.6 ? [1] : [1, 2, 5];
  const found = [];
  for (let power = Math.floor(bottom); power <= top; power++) {
    for (const factor of factors) {
      const level = Number((factor * 10 ** power).toPrecision(1));
      if (Math.log10(level) >= bottom && Math.log10(level) <= top) found.push(level);
    }
  }
  return found;
}

export class Chart {
  constructor(svg) {
    this.svg = svg;
    this.timer = 0;
  }

  /** @param curves [{title, style, losses}], the one in front first */
  draw(curves) {
    clearInterval(this.timer);
    const all = curves.flatMap((curve) => curve.losses).map((loss) => Math.max(loss, LOWEST));
    const bottom = Math.log10(Math.min(...all)) - MARGIN;
    const top = Math.log10(Math.max(...all)) + MARGIN;
    // A method without an inner loop has one loss alone.
    const steps = Math.max(2, ...curves.map((curve) => curve.losses.length)) - 1;
    const x = (k) => LEFT + ((WIDTH - LEFT - RIGHT) * k) / steps;
    const y = (loss) =>
      TOP + ((HEIGHT - TOP - BOTTOM) * (top - Math.log10(Math.max(loss, LOWEST)))) / (top - bottom);
    this.svg.replaceChildren(...this.#axes(ticks(bottom, top), steps, x, y));
    // The curve in front is drawn last.
    const grown = curves.map((curve, i) => this.#curve(curve, SHAPES[i], x, y)).reverse();
    this.svg.append(...grown.map(({ group }) => group));
    let k = matchMedia("(prefers-reduced-motion: reduce)").matches ? steps : 0;
    const grow = () => {
      for (const { upTo } of grown) upTo(k);
      if (k++ >= steps) clearInterval(this.timer);
    };
    grow();
    if (k <= steps) this.timer = setInterval(grow, Math.min(90, 900 / Math.max(steps, 1)));
  }

  #axes(levels, steps, x, y) {
    const parts = [];
    for (const level of levels) {
      const at = y(level);
      parts.push(make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
      parts.push(make("text", { x: LEFT - 10, y: at + 4, "text-anchor": "end" }, shown(level)));
    }
    const every = steps > 10 ? 5 : 1;
    for (let k = 0; k <= steps; k++) {
      if (k % every && k !== steps) continue;
      parts.push(make("text", { x: x(k), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, k));
    }
    const middle = (LEFT + WIDTH - RIGHT) / 2;
    parts.push(make("text", { x: middle, y: HEIGHT - 5, "text-anchor": "middle" }, "step"));
    return parts;
  }

  #curve({ title, style, losses }, shape, x, y) {
    const group = make("g", { class: `line m${style}` });
    const line = make("polyline", { points: "" });
    group.append(line);
    const marks = losses.map((loss, k) => {
      const [cx, cy] = [x(k), y(loss)];
      const mark = shape === "circle"
        ? make("circle", { cx, cy, r: 4 })
        : make("rect", { x: cx - 3.4, y: cy - 3.4, width: 6.8, height: 6.8 });
      mark.append(make("title", {}, `${title}, ${k} steps: ${shown(loss)}`));
      return mark;
    });
    const upTo = (k) => {
      const some = losses.slice(0, k + 1);
      line.setAttribute("points", some.map((loss, i) => `${x(i)},${y(loss)}`).join(" "));
      group.replaceChildren(line, ...marks.slice(0, k + 1));
    };
    return { group, upTo };
  }
}

/** What stands under the chart: who is who, how far down, how long it took. */
export function legend(list, curves) {
  list.replaceChildren(...curves.map((curve, i) => {
    const item = document.createElement("li");
    item.className = `m${curve.style}`;
    const mark = document.createElement("i");
    mark.className = SHAPES[i];
    const name = document.createElement("b");
    name.textContent = curve.title;
    const time = `${curve.losses.length - 1} steps in ${Math.round(curve.milliseconds)} ms`;
    item.append(mark, name, ` ${shown(curve.losses.at(-1))} after ${time}`);
    return item;
  }));
}

/** The same as a table. */
export function numbers(table, curves) {
  const row = (kind, cells) => {
    const made = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i === 0 ? "th" : kind);
      cell.textContent = text;
      cell.scope = kind === "th" ? "col" : i === 0 ? "row" : "";
      made.append(cell);
    });
    return made;
  };
  const longest = Math.max(...curves.map((curve) => curve.losses.length));
  table.replaceChildren(
    row("th", ["step", ...curves.map((curve) => curve.title)]),
    ...Array.from({ length: longest }, (_, k) =>
      row("td", [k, ...curves.map((curve) => (k in curve.losses ? shown(curve.losses[k]) : ""))])),
  );
}
