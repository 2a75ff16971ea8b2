// New drawings and photographs, and what the adapted model makes of them.

import { Pad } from "./pad.js";
import { FileImage, InkImage } from "./images.js";
import { server } from "./server.js";

const PAUSE = 90; // milliseconds without a change, after which the server is asked

export class Trial {
  /** @param page elements by id
   *  @param problem called with the reason why something failed
   *  @param camera where photographs may come from
   *  @param changed called with every change of what is asked */
  constructor(page, { problem, camera, changed }) {
    this.page = page;
    this.problem = problem;
    this.changed = changed;
    this.model = null; // {id, names, start}
    this.tries = [];
    this.timer = 0;
    this.asking = false;
    this.answer = null; // the name of a letter that the server sent
    this.pad = new Pad(page.question, () => this.#changed());
    page.clear.addEventListener("click", () => { this.pad.clear(); page.question.focus(); });
    page["question-file"].addEventListener("change", async (event) => {
      await this.takeFiles(event.target.files);
      event.target.value = "";
    });
    page.next.addEventListener("click", () => this.next());
    page.shoot.hidden = !camera.there;
    page.shoot.addEventListener("click", () => camera.open("A photograph to try it with",
      (image) => { this.pad.show(image); return false; }));
  }

  use(id, names, start) {
    this.model = { id, names, start };
    this.page.download.href = server.file(id, "file");
    this.page.onnx.href = server.file(id, "onnx");
    this.page.files.hidden = false;
    this.#bars(names.map(() => 0));
    this.#changed();
  }

  /** Letters from the server, shown one after the other by a button. */
  offer(tries) {
    this.tries = tries;
    this.at = -1;
    this.page.next.hidden = !tries.length;
  }

  /** What is asked, if anything. */
  get image() { return this.model && !this.pad.empty ? this.pad.value(this.model.start) : null; }

  next() {
    this.at = (this.at + 1) % this.tries.length;
    const { name, image } = this.tries[this.at];
    this.pad.show(new InkImage(image));
    this.answer = name;
    if (this.model) this.page.verdict.textContent = "…";
  }

  reset() {
    this.model = null;
    this.offer([]);
    this.pad.clear();
    this.page.files.hidden = true;
    this.page.bars.replaceChildren();
  }

  async takeFiles(files) {
    try {
      if (files.length) this.pad.show(await FileImage.read(files[0]));
    } catch (error) {
      this.problem(error.message);
    }
  }

  #changed() {
    this.answer = null;
    clearTimeout(this.timer);
    this.changed();
    if (!this.model || this.pad.empty) {
      this.page.verdict.textContent = this.model ? "Draw or show it something." : "Adapt first, then draw here.";
      this.page["seen-note"].hidden = true;
      if (this.model) this.#bars(this.model.names.map(() => 0));
      return;
    }
    this.timer = setTimeout(() => this.#ask(), PAUSE);
  }

  /** One question at a time: what changes meanwhile is asked about afterwards. */
  async #ask() {
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    this.again = false;
    const { model } = this;
    try {
      const found = await server.predict(model.id, this.pad.value(model.start));
      if (model === this.model && !this.pad.empty) this.#show(found);
    } catch (error) {
      if (model === this.model) this.problem(error.message);
    } finally {
      this.asking = false;
      if (this.again && this.model && !this.pad.empty) this.#ask();
    }
  }

  #show({ probabilities, seen }) {
    const { names } = this.model;
    this.#bars(probabilities);
    const best = probabilities.indexOf(Math.max(...probabilities));
    const share = `${Math.round(100 * probabilities[best])} %`;
    const known = this.answer === null ? "" :
      this.answer === names[best] ? ` It is ${this.answer}.` : ` In fact it is ${this.answer}.`;
    this.page.verdict.textContent = `Most likely ${names[best]}, ${share}.${known}`;
    clearTimeout(this.speaking);
    // Not every stage of a drawing is read out.
    this.speaking = setTimeout(() => {
      this.page.spoken.textContent = this.page.verdict.textContent;
    }, 700);
    const context = this.page.seen.getContext("2d");
    this.page.seen.width = this.page.seen.height = seen.width;
    new InkImage(seen).paint(context, seen.width, "#fff");
    this.page["seen-note"].hidden = false;
  }

  #bars(probabilities) {
    const { names } = this.model;
    const best = Math.max(...probabilities);
    this.page.bars.classList.toggle("many", names.length > 8);
    if (this.page.bars.children.length !== names.length) {
      this.page.bars.replaceChildren(...names.map(() => {
        const item = document.createElement("li");
        for (const part of ["name", "share", "track"]) {
          const element = document.createElement("span");
          element.className = part;
          item.append(element);
        }
        item.lastChild.append(document.createElement("i"));
        return item;
      }));
    }
    names.forEach((name, i) => {
      const item = this.page.bars.children[i];
      item.classList.toggle("best", best > 0 && probabilities[i] === best);
      item.querySelector(".name").textContent = name;
      item.querySelector(".share").textContent =
        best > 0 ? `${Math.round(100 * probabilities[i])} %` : "";
      item.querySelector("i").style.width = `${100 * probabilities[i]}%`;
    });
  }
}
