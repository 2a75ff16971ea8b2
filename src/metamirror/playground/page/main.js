// What belongs together on the page: classes, settings, the adaptation and the trial.

import { Camera } from "./camera.js";
import { Chart, legend, numbers } from "./chart.js";
import { Classes } from "./classes.js";
import { Influence } from "./influence.js";
import { InkImage } from "./images.js";
import { showSquares } from "./pad.js";
import { showAlone } from "./saved.js";
import { server } from "./server.js";
import { Trial } from "./trial.js";

const OPTIMIZERS = {
  GD: "Gradient descent",
  PGD: "Preconditioned gradient descent",
  MD: "Mirror descent",
};
const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((e) => [e.id, e]));

function problem(reason) {
  page.problem.textContent = reason;
}

/** How the examples differ from what the start has seen, if they do. */
function unfamiliar(note) {
  page.unfamiliar.textContent = note ? note[0].toUpperCase() + note.slice(1) : "";
}

async function begin() {
  const { starts, first, saved, samples, no_onnx: noOnnx, ...limits } = await server.starts();
  const chart = new Chart(page.chart);
  const camera = new Camera(page, problem);
  const influence = new Influence(page, problem);
  const trial = new Trial(page, {
    problem,
    camera,
    changed: () => {
      if (page.examples.hidden) problem(""); // nothing else on the page would take it away
      influence.of(trial);
    },
  });
  let adapted = false; // whether there is a model to compare other settings with
  let running = new AbortController(); // of the adaptation that counts
  let sample = -1;

  const classes = new Classes(page.classes, page["add-class"], {
    mostExamples: limits.most_examples,
    changed: () => {
      problem("");
      influence.forget();
      if (adapted) page.adapt.textContent = "Adapt again";
    },
    problem,
    camera,
  });

  // Settings

  const start = () => starts.find(({ key }) => key === page.start.value);
  for (const [label, ink] of [["For drawings and letters", true], ["For photographs", false]]) {
    const group = document.createElement("optgroup");
    group.label = label;
    const own = starts.filter((each) => each.ink === ink);
    group.append(...own.map(({ key, title }) => new Option(title, key)));
    if (own.length) page.start.append(group);
  }
  page.start.value = first;
  if (noOnnx) {
    page.onnx.hidden = true;
    page["files-note"].textContent = noOnnx;
  }
  page.steps.max = limits.most_steps;
  page.lr.max = limits.largest_lr;

  function describe() {
    const { optimizer, geometry, ink, size, most_classes: most } = start();
    const looks = ink ? "looks at what is drawn" : `looks at the middle square, ${size} x ${size} pixels`;
    const how = (OPTIMIZERS[optimizer] ?? optimizer).replace("none: ", "From ");
    const shape = geometry === "none" ? [] : [`geometry: ${geometry}`];
    page.geometry.textContent = [how, ...shape, looks, `up to ${most} classes`].join(" · ");
    page["photographs-help"].hidden = !ink || starts.every((each) => each.ink);
    classes.limit(most);
    showSquares(!ink);
  }
  function usual() {
    page.steps.value = start().steps;
    page.lr.value = start().lr;
    page["steps-shown"].value = page.steps.value;
    describe();
  }
  let soon = 0;
  function settingsChanged() {
    clearTimeout(soon);
    if (adapted) soon = setTimeout(adapt, 250);
  }
  page.start.addEventListener("change", () => {
    // Heads that are computed need no steps; others do.
    if (!start().steps || !page.steps.valueAsNumber) page.steps.value = start().steps;
    page["steps-shown"].value = page.steps.value;
    page.lr.value = start().lr;
    describe();
    settingsChanged();
  });
  page.steps.addEventListener("input", () => {
    page["steps-shown"].value = page.steps.value;
    settingsChanged();
  });
  page.lr.addEventListener("input", settingsChanged);

  // Adapting

  function stepSize() {
    const lr = page.lr.valueAsNumber;
    if (!(lr >= 0 && lr <= limits.largest_lr)) {
      page.lr.focus();
      throw new Error(`The step size is a number from 0 to ${limits.largest_lr}.`);
    }
    // Each start's own, unless it was changed; then gradient descent takes the same.
    return lr === start().lr ? null : lr;
  }

  /** What was asked for before is no longer wanted, and the server need not go on with it. */
  function another() {
    running.abort();
    page.adapt.removeAttribute("aria-busy");
    running = new AbortController();
    return running;
  }

  /** Whether it came to an end, and nothing else was begun meanwhile. */
  async function adapt() {
    clearTimeout(soon);
    problem("");
    const mine = another();
    page.adapt.setAttribute("aria-busy", "true");
    try {
      const chosen = start();
      const request = {
        start: chosen.key,
        steps: page.steps.valueAsNumber,
        lr: stepSize(),
        classes: classes.value(chosen),
      };
      const { examples } = classes;
      const answer = await server.adapt(request, mine.signal);
      if (mine !== running) return false;
      show(answer, request, chosen);
      // What was changed meanwhile is no longer what was adapted to.
      if (JSON.stringify(classes.value(chosen)) === JSON.stringify(request.classes)) {
        influence.use(answer.model, examples);
      }
      influence.of(trial);
      return true;
    } catch (error) {
      if (mine === running) problem(error.message);
      return false;
    } finally {
      if (mine === running) page.adapt.removeAttribute("aria-busy");
    }
  }

  function show({ model, chosen, plain, note }, request, start) {
    adapted = true;
    page.adapt.textContent = "Adapt";
    unfamiliar(note);
    page.result.hidden = false;
    page.waiting.hidden = true;
    const curves = [chosen];
    if (plain?.losses) curves.push({ ...plain, title: `plain gradient descent (${plain.title})` });
    else if (plain) problem(`Not so for plain gradient descent: ${plain.error}`);
    chart.draw(curves);
    legend(page.legend, curves);
    numbers(page.numbers, curves);
    page.status.textContent = `Adapted in ${Math.round(chosen.milliseconds)} milliseconds.`;
    page["files-note"].hidden = !noOnnx && !start.ink;
    trial.use(model, request.classes.map(({ name }) => name), start);
  }

  page.adapt.addEventListener("click", adapt);

  // Beginnings

  /** @param model from a file, to begin with */
  function reset(model) {
    adapted = false;
    another();
    clearTimeout(soon);
    problem("");
    unfamiliar(null);
    classes.fill();
    trial.reset();
    influence.forget();
    page.result.hidden = true;
    page.waiting.hidden = false;
    page.adapt.textContent = "Adapt";
    usual();
    showAlone(model, page, trial);
  }

  async function letters() {
    if (classes.own && !confirm("Put letters in place of your examples?")) return;
    sample = (sample + 1) % samples;
    const mine = another();
    try {
      const given = await server.sample(sample);
      if (mine !== running) return; // something else was begun meanwhile
      if (!start().ink) page.start.value = first;
      reset(null);
      const most = start().most_classes;
      const kept = given.classes.slice(0, most);
      classes.fill(kept.map(({ name, examples }) => ({
        name,
        images: examples.map((image) => new InkImage(image)),
      })));
      trial.offer(given.tries.filter(({ name }) => kept.some((each) => each.name === name)));
      if (await adapt()) trial.next();
    } catch (error) {
      problem(error.message);
    }
  }

  page.reset.addEventListener("click", () => reset(saved));
  page.teach.addEventListener("click", () => reset(null));
  page.letters.addEventListener("click", letters);

  // Images from elsewhere

  function take(element, files) {
    const card = classes.cardOf(element);
    if (card) card.takeFiles(files);
    else if (page.examples.hidden || page.try.contains(element)) trial.takeFiles(files);
    else return false;
    return true;
  }
  let last = null; // where a pasted image goes
  document.addEventListener("focusin", ({ target }) => { last = target; });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length && !take(last, files)) problem("Choose a square first, then paste.");
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const files = [...event.dataTransfer.files];
    if (files.length && !take(event.target, files)) problem("Drop images on a class or on the large square.");
  });

  reset(saved);
}

begin().catch((error) => problem(error.message));
