// The figure of idea.md: three ways down a loss of two parameters, computed here.
"use strict";

// ---- The mathematics. `numbers` is what examples/gallery/own_geometry.py learned. ----

const numbers = JSON.parse(document.getElementById("idea-numbers").textContent);
const add = (a, b, scale = 1) => [a[0] + scale * b[0], a[1] + scale * b[1]];
const times = (m, v) => [m[0][0] * v[0] + m[0][1] * v[1], m[1][0] * v[0] + m[1][1] * v[1]];
const length = (v) => Math.hypot(...v);
const identity = [[1, 0], [0, 1]];

function solve(m, v) {
  const [[a, b], [c, d]] = m;
  const determinant = a * d - b * c;
  return [(d * v[0] - b * v[1]) / determinant, (a * v[1] - c * v[0]) / determinant];
}

// g(z) = A z + sum of w u tanh(<u, z> + b), the gradient of a strictly convex function.
class MirrorMap {
  constructor(matrix, w = [], u = [], b = []) {
    Object.assign(this, { matrix, w, u, b });
  }

  at(z) {
    return this.u.reduce(
      (sum, u, k) => add(sum, u, this.w[k] * Math.tanh(u[0] * z[0] + u[1] * z[1] + this.b[k])),
      times(this.matrix, z),
    );
  }

  jacobian(z) {
    const [[a, b], [, d]] = this.matrix;
    const sum = [a, b, d];
    this.u.forEach(([x, y], k) => {
      const slope = this.w[k] * (1 - Math.tanh(x * z[0] + y * z[1] + this.b[k]) ** 2);
      sum[0] += slope * x * x;
      sum[1] += slope * x * y;
      sum[2] += slope * y * y;
    });
    return [[sum[0], sum[1]], [sum[1], sum[2]]];
  }

  // Newton's method, with shorter steps where a whole one does not help.
  inverse(phi) {
    let z = [0, 0];
    for (let i = 0; i < 100; i++) {
      const error = add(this.at(z), phi, -1);
      if (length(error) < 1e-12) break;
      const newton = solve(this.jacobian(z), error);
      let part = 1;
      while (part > 1e-9 && length(add(this.at(add(z, newton, -part)), phi, -1)) >= length(error)) {
        part /= 2;
      }
      z = add(z, newton, -part);
    }
    return z;
  }
}

const METHODS = [
  { key: "gradient", title: "gradient descent", map: new MirrorMap(identity) },
  { key: "constant", title: "learned preconditioner", map: new MirrorMap(numbers.P) },
  { key: "mirror", title: "learned mirror map", map: new MirrorMap(numbers.A, numbers.w, numbers.u, numbers.b) },
];

// Poisson regression: log rate = level + slope * t, at five times t.
const rates = (phi) => numbers.times.map((t) => Math.exp(phi[0] + phi[1] * t));
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function gradient(phi, counts) {
  const over = rates(phi).map((rate, j) => rate - counts[j]);
  return [mean(over), mean(over.map((value, j) => value * numbers.times[j]))];
}

function aboveMinimum(phi, minimum, counts) {
  const now = rates(phi);
  const parts = numbers.times.map((t, j) => {
    const change = phi[0] - minimum[0] + (phi[1] - minimum[1]) * t;
    return now[j] - counts[j] - counts[j] * change;
  });
  return Math.max(0, mean(parts)); // rounding may be below
}

// z <- z - lr * gradient(g(z)), from the z whose image is the start; ends early if it diverges.
function descend(map, start, minimum, lr, steps) {
  const counts = rates(minimum);
  const points = [start];
  let z = map.inverse(start);
  for (let k = 0; k < steps; k++) {
    z = add(z, gradient(points[k], counts), -lr);
    const phi = map.at(z);
    if (!phi.every((value) => Math.abs(value) < 20)) break;
    points.push(phi);
  }
  return points;
}

// ---- The drawing. ----

const EDGE = 2.2;
const SIZE = 440;
const MINIMA = [[1, -1.2], [-1.2, 1], [0.4, 1.1], [-1, -0.8], [1.2, 0.6]];
const LEVELS = Array.from({ length: 13 }, (_, i) => 10 ** (-2.7 + 0.32 * i));
const MARKS = {
  gradient: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z",
  constant: "M-3.2-3.2h6.4v6.4h-6.4Z",
  mirror: "M0-4.6L4.6 0L0 4.6L-4.6 0Z",
};
const FIRST = { start: [-1.9, 1.4], task: 0, lr: numbers.lr, steps: 12 };
const state = structuredClone(FIRST);
const root = document.getElementById("idea");
const part = (name) => root.querySelector(`[data-part="${name}"]`);
const place = ([x, y]) => [((x + EDGE) / (2 * EDGE)) * SIZE, ((EDGE - y) / (2 * EDGE)) * SIZE];
const limited = (value) => Math.min(EDGE - 0.1, Math.max(0.1 - EDGE, value));
const shown = (value) =>
  value < 1e-12 ? "below 1e-12" : value < 1e-4 ? value.toExponential(0) : value.toPrecision(2);

function node(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

// Marching squares: where an edge of a cell crosses the level, a line begins or ends.
function levelSet(heights, count, level) {
  const at = (i, j) => [-EDGE + (2 * EDGE * i) / count, -EDGE + (2 * EDGE * j) / count];
  const lines = [];
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < count; j++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
      const ends = [];
      corners.forEach((here, k) => {
        const next = corners[(k + 1) % 4];
        const [a, b] = [heights[here[0]][here[1]] - level, heights[next[0]][next[1]] - level];
        if (a < 0 !== b < 0) {
          ends.push(place(add(at(...here), add(at(...next), at(...here), -1), a / (a - b))));
        }
      });
      for (let k = 0; k + 1 < ends.length; k += 2) {
        lines.push(`M${ends[k].map((v) => v.toFixed(1))}L${ends[k + 1].map((v) => v.toFixed(1))}`);
      }
    }
  }
  return lines.join("");
}

function drawTask() {
  const minimum = MINIMA[state.task];
  const counts = rates(minimum);
  const count = 80;
  const heights = Array.from({ length: count + 1 }, (_, i) =>
    Array.from({ length: count + 1 }, (_, j) =>
      aboveMinimum([(2 * i * EDGE) / count - EDGE, (2 * j * EDGE) / count - EDGE], minimum, counts),
    ),
  );
  part("levels").replaceChildren();
  LEVELS.forEach((level) => node("path", { d: levelSet(heights, count, level) }, part("levels")));
  part("minimum").setAttribute("transform", `translate(${place(minimum)})`);
}

// What becomes of a small circle of steps in z: the learned geometry, place by place.
function drawGeometry() {
  const map = METHODS[2].map;
  for (let x = -1.8; x < 2; x += 0.9) {
    for (let y = -1.8; y < 2; y += 0.9) {
      const [[a, b], [, d]] = map.jacobian(map.inverse([x, y]));
      const [middle, half] = [(a + d) / 2, Math.hypot((a - d) / 2, b)];
      const angle = (-90 / Math.PI) * Math.atan2(2 * b, a - d);
      const [rx, ry] = [middle + half, middle - half].map((value) => 4 * value);
      const transform = `translate(${place([x, y])}) rotate(${angle})`;
      node("ellipse", { rx, ry, transform }, part("geometry"));
    }
  }
}

function drawCurves(gaps) {
  const [width, height, low, high] = [SIZE - 50, 150, -10, 2];
  const x = (k) => 44 + (width * k) / state.steps;
  const y = (gap) => 8 + (height * (high - Math.max(low, Math.log10(gap)))) / (high - low);
  const chart = part("curves");
  chart.replaceChildren();
  for (let power = low; power <= high; power += 2) {
    node("path", { class: "grid", d: `M44 ${y(10 ** power)}H${44 + width}` }, chart);
    const text = node("text", { x: 38, y: y(10 ** power) + 4, "text-anchor": "end" }, chart);
    text.textContent = power === 0 ? "1" : `1e${power}`;
  }
  const every = Math.ceil(state.steps / 8);
  for (let k = 0; k <= state.steps; k += every) {
    node("text", { x: x(k), y: height + 24, "text-anchor": "middle" }, chart).textContent = k;
  }
  METHODS.forEach(({ key }, i) => {
    const line = gaps[i].map((gap, k) => `${x(k).toFixed(1)},${y(gap).toFixed(1)}`).join(" ");
    node("polyline", { class: key, points: line }, chart);
  });
}

function draw() {
  const minimum = MINIMA[state.task];
  const counts = rates(minimum);
  const gaps = METHODS.map(({ key, map }) => {
    const points = descend(map, state.start, minimum, state.lr, state.steps);
    const group = part(key);
    group.replaceChildren();
    node("polyline", { points: points.map(place).join(" ") }, group);
    points.slice(1).forEach((phi) => {
      node("path", { d: MARKS[key], transform: `translate(${place(phi)})` }, group);
    });
    const losses = points.map((phi) => aboveMinimum(phi, minimum, counts));
    const done = points.length > state.steps;
    part(`${key}-loss`).textContent = done ? shown(losses.at(-1)) : "diverges";
    return losses;
  });
  drawCurves(gaps);
  const [level, slope] = state.start.map((value) => value.toFixed(1));
  part("start").setAttribute("transform", `translate(${place(state.start)})`);
  part("start").setAttribute("aria-label", `Start at level ${level}, slope ${slope}. Arrow keys move it.`);
  part("lr").value = state.lr;
  part("lr-shown").textContent = state.lr.toFixed(2);
  part("steps").value = state.steps;
  part("steps-shown").textContent = state.steps;
}

function moveTo(x, y) {
  state.start = [limited(x), limited(y)];
  draw();
}

// ---- What a person does. ----

const plane = part("plane");
let dragging = false;

function follow(event) {
  const box = plane.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height];
  moveTo((2 * x - 1) * EDGE, (1 - 2 * y) * EDGE);
}

part("start").addEventListener("pointerdown", (event) => {
  dragging = true;
  part("start").setPointerCapture(event.pointerId);
});
part("start").addEventListener("pointermove", (event) => dragging && follow(event));
for (const end of ["pointerup", "pointercancel"]) {
  part("start").addEventListener(end, () => (dragging = false));
}
part("start").addEventListener("keydown", (event) => {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (!way) return;
  event.preventDefault();
  moveTo(...add(state.start, way, event.shiftKey ? 0.5 : 0.1));
});
plane.addEventListener("click", follow);
part("lr").addEventListener("input", (event) => {
  state.lr = Number(event.target.value);
  draw();
});
part("steps").addEventListener("input", (event) => {
  state.steps = Number(event.target.value);
  draw();
});
part("another").addEventListener("click", () => {
  state.task = (state.task + 1) % MINIMA.length;
  drawTask();
  draw();
});
part("reset").addEventListener("click", () => {
  Object.assign(state, structuredClone(FIRST));
  drawTask();
  draw();
});
part("shows-geometry").addEventListener("change", (event) => {
  part("geometry").toggleAttribute("hidden", !event.target.checked);
});

drawGeometry();
drawTask();
draw();
// For the tests: the paths of all methods from a start of their choice.
root.paths = (start, minimum, lr, steps) =>
  Object.fromEntries(METHODS.map(({ key, map }) => [key, descend(map, start, minimum, lr, steps)]));
