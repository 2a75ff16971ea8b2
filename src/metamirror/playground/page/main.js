// What belongs together on the page: classes, settings, the adaptation and the trial.

import { Chart, legend, numbers } from "./chart.js";
import { Classes } from "./classes.js";
import { InkImage } from "./images.js";
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

async function begin() {
  const { starts, first, samples, ...limits } = await server.starts();
  const chart = new Chart(page.chart);
  const trial = new Trial(page, problem);
  let adapted = false; // whether there is a model to compare other settings with
  let running = new AbortController(); // of the adaptation that counts
  let sample = -1;

  const classes = new Classes(page.classes, page["add-class"], {
    mostExamples: limits.most_examples,
    changed: () => {
      problem("");
      if (adapted) page.adapt.textContent = "Adapt again";
    },
    problem,
  });

  // Settings

  const start = () => starts.find(({ key }) => key === page.start.value);
  page.start.append(...starts.map(({ key, title }) => new Option(title, key)));
  page.start.value = first;
  page.steps.max = limits.most_steps;
  page.lr.max = limits.largest_lr;

  function describe() {
    const { optimizer, geometry } = start();
    page.geometry.textContent = `${OPTIMIZERS[optimizer] ?? optimizer} · geometry: ${geometry}`;
    classes.limit(start().most_classes);
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
      const { channels, key } = start();
      const request = {
        start: key,
        steps: page.steps.valueAsNumber,
        lr: stepSize(),
        classes: classes.value(channels),
      };
      const answer = await server.adapt(request, mine.signal);
      if (mine !== running) return false;
      show(answer, request, channels);
      return true;
    } catch (error) {
      if (mine === running) problem(error.message);
      return false;
    } finally {
      if (mine === running) page.adapt.removeAttribute("aria-busy");
    }
  }

  function show({ model, chosen, plain }, request, channels) {
    adapted = true;
    page.adapt.textContent = "Adapt";
    page.result.hidden = false;
    page.waiting.hidden = true;
    const curves = [chosen];
    if (plain?.losses) curves.push({ ...plain, title: `plain gradient descent (${plain.title})` });
    else if (plain) problem(`Not so for plain gradient descent: ${plain.error}`);
    chart.draw(curves);
    legend(page.legend, curves);
    numbers(page.numbers, curves);
    page.status.textContent = `Adapted in ${Math.round(chosen.milliseconds)} milliseconds.`;
    trial.use(model, request.classes.map(({ name }) => name), channels);
  }

  page.adapt.addEventListener("click", adapt);

  // Beginnings

  function reset() {
    adapted = false;
    another();
    clearTimeout(soon);
    problem("");
    classes.fill();
    trial.reset();
    page.result.hidden = true;
    page.waiting.hidden = false;
    page.adapt.textContent = "Adapt";
    usual();
  }

  async function letters() {
    if (classes.own && !confirm("Put letters in place of your examples?")) return;
    sample = (sample + 1) % samples;
    const mine = another();
    try {
      const given = await server.sample(sample);
      if (mine !== running) return; // something else was begun meanwhile
      reset();
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

  page.reset.addEventListener("click", reset);
  page.letters.addEventListener("click", letters);

  // Images from elsewhere

  function take(element, files) {
    const card = classes.cardOf(element);
    if (card) card.takeFiles(files);
    else if (page.try.contains(element)) trial.takeFiles(files);
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

  reset();
}

begin().catch((error) => problem(error.message));
