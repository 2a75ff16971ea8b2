// Which examples speak for an answer: the start is adapted without one after the other.

import { server } from "./server.js";

export class Influence {
  /** @param page elements by id
   *  @param problem called with the reason why something failed */
  constructor(page, problem) {
    this.page = page;
    this.problem = problem;
    this.model = null;
    this.examples = []; // [{pad, alone}], in the order of the request
    this.running = new AbortController();
    page.influence.addEventListener("click", () => this.#run());
  }

  /** A model, and the squares of the examples that it was adapted to. */
  use(model, examples) {
    this.forget();
    Object.assign(this, { model, examples });
  }

  /** The examples have changed, and the model knows others. */
  forget() {
    this.#clear();
    Object.assign(this, { model: null, examples: [] });
    this.page.influence.hidden = true;
  }

  /** What is asked has changed. */
  of(trial) {
    this.#clear();
    this.trial = trial;
    this.page.influence.hidden = !this.model || !trial.image || this.examples.every(({ alone }) => alone);
  }

  #clear() {
    this.running.abort();
    for (const { pad } of this.examples) pad.mark(null);
    this.page["influence-note"].textContent = "";
  }

  async #run() {
    this.#clear();
    const mine = this.running = new AbortController();
    const { page, model, trial: { image } } = this;
    const asked = this.examples.map((each, i) => ({ ...each, i })).filter(({ alone }) => !alone);
    const found = [];
    try {
      for (const { pad, i } of asked) {
        page["influence-note"].textContent = `${found.length} of ${asked.length} examples left out …`;
        const { change } = await server.without(model, i, image, mine.signal);
        found.push({ pad, change });
        found.sort((a, b) => b.change - a.change);
        found.forEach((each, rank) => each.pad.mark(rank + 1, each.change));
      }
      page["influence-note"].textContent =
        "1 speaks most for the answer: without it, the loss of this image rises most. Examples below " +
        "zero speak against it. One that is alone in its class cannot be left out.";
    } catch (error) {
      if (mine.signal.aborted) return;
      page["influence-note"].textContent = "";
      this.problem(error.message);
    }
  }
}
