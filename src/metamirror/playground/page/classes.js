// The classes and their examples: a card each, with squares to draw in.

import { Pad } from "./pad.js";
import { FileImage, InkImage } from "./images.js";

const FEWEST = 2;
const LETTERS = "ABCDEFGHIJKLMNOPQRST";

export class Classes {
  /** @param changed called when anything is drawn, added, removed or renamed
   *  @param problem called with the reason why a file was not taken
   *  @param camera where photographs may come from */
  constructor(list, button, { mostExamples, changed, problem, camera }) {
    this.list = list;
    this.button = button;
    this.mostExamples = mostExamples;
    this.changed = changed;
    this.problem = problem;
    this.camera = camera;
    this.most = 5;
    this.cards = [];
    button.addEventListener("click", () => {
      const card = this.#add(this.#freeName());
      this.changed();
      card.name.focus();
      card.name.select();
    });
  }

  /** Forgets everything; then the given classes, or two empty ones. */
  fill(given = [{ name: "A", images: [] }, { name: "B", images: [] }]) {
    for (const card of [...this.cards]) this.#remove(card);
    for (const { name, images } of given) {
      const card = this.#add(name);
      for (const image of images) card.take(image);
    }
  }

  /** How many classes the chosen start can tell apart. */
  limit(most) {
    this.most = most;
    this.#arrange();
  }

  /** Whether there is anything that a person drew or brought along. */
  get own() {
    return this.cards.some((card) => card.full.some((pad) => !(pad.image instanceof InkImage)));
  }

  /** As a request has them; throws with what is missing, and moves the focus there. */
  value(start) {
    const names = this.cards.map((card) => card.name.value.trim());
    this.cards.forEach((card, i) => {
      const wrong = (reason, element) => {
        element.focus();
        throw new Error(reason);
      };
      if (!names[i]) wrong(`Class ${i + 1} has no name.`, card.name);
      if (names.indexOf(names[i]) < i) wrong(`Two classes are called ${names[i]}.`, card.name);
      if (card.full.length === 0) wrong(`Class ${names[i]} has no example yet.`, card.pads[0].canvas);
    });
    return this.cards.map((card, i) => ({
      name: names[i],
      examples: card.full.map((pad) => pad.value(start)),
    }));
  }

  /** The squares of all examples, in the order of a request, and whether they have company. */
  get examples() {
    return this.cards.flatMap(({ full }) => full.map((pad) => ({ pad, alone: full.length < 2 })));
  }

  /** The card that an element is in, if any. */
  cardOf(element) { return this.cards.find((card) => card.item.contains(element)); }

  #freeName() {
    const taken = this.cards.map((card) => card.name.value);
    return [...LETTERS].find((letter) => !taken.includes(letter)) ?? "";
  }

  #add(name) {
    const card = new Card(this, name);
    this.cards.push(card);
    this.#arrange();
    return card;
  }

  #remove(card) {
    for (const pad of card.pads) pad.forget();
    card.item.remove();
    this.cards = this.cards.filter((other) => other !== card);
    this.#arrange();
  }

  /** Removed by its button. */
  drop(card) {
    const next = this.cards[this.cards.indexOf(card) + 1] ?? this.cards[0];
    this.#remove(card);
    next.name.focus();
    this.changed();
  }

  #arrange() {
    this.button.hidden = this.cards.length >= this.most;
    for (const card of this.cards) card.remove.hidden = this.cards.length <= FEWEST;
  }
}

class Card {
  constructor(classes, name) {
    this.classes = classes;
    const item = document.getElementById("class-card").content.firstElementChild.cloneNode(true);
    this.item = item;
    this.name = item.querySelector(".name");
    this.remove = item.querySelector(".remove-class");
    this.slots = item.querySelector(".slots");
    this.files = item.querySelector("input[type=file]");
    this.shoot = item.querySelector(".shoot");
    this.pads = [];
    // First of all: the ink of a square has the colour that its place on the page gives it.
    classes.list.append(item);
    this.name.value = name;
    this.name.addEventListener("input", () => { this.#label(); classes.changed(); });
    this.remove.addEventListener("click", () => classes.drop(this));
    this.files.addEventListener("change", async () => {
      await this.takeFiles(this.files.files);
      this.files.value = "";
    });
    this.shoot.addEventListener("click", () => classes.camera.open(`Photographs of ${this.name.value}`,
      (image) => { this.take(image); return this.full.length < classes.mostExamples; }));
    this.#arrange();
  }

  get full() { return this.pads.filter((pad) => !pad.empty); }

  take(image) {
    if (this.full.length >= this.classes.mostExamples) {
      throw new Error(`A class has at most ${this.classes.mostExamples} examples.`);
    }
    this.pads.find((pad) => pad.empty).show(image);
  }

  async takeFiles(files) {
    try {
      for (const file of files) this.take(await FileImage.read(file));
    } catch (error) {
      this.classes.problem(error.message);
    }
  }

  /** One empty square behind the full ones, as long as there may be more. */
  #arrange() {
    const { mostExamples } = this.classes;
    const last = this.pads.at(-1);
    if (this.pads.length < mostExamples && (!last || !last.empty)) this.#addSlot();
    this.files.parentElement.hidden = this.full.length >= mostExamples;
    this.shoot.hidden = !this.classes.camera.there || this.full.length >= mostExamples;
    this.#label();
  }

  #addSlot() {
    const slot = document.getElementById("slot").content.firstElementChild.cloneNode(true);
    this.slots.append(slot);
    const pad = new Pad(slot.querySelector("canvas"), () => {
      this.#arrange();
      this.classes.changed();
    });
    this.pads.push(pad);
    slot.querySelector(".remove").addEventListener("click", () => {
      const next = this.pads[this.pads.indexOf(pad) + 1];
      if (next) {
        pad.forget();
        slot.remove();
        this.pads = this.pads.filter((other) => other !== pad);
        this.#arrange();
        next.canvas.focus();
        this.classes.changed();
      } else {
        pad.canvas.focus();
        pad.clear();
      }
    });
  }

  #label() {
    const name = this.name.value || "a class";
    this.remove.setAttribute("aria-label", `Remove ${name}`);
    this.files.setAttribute("aria-label", `Add images of ${name}`);
    this.shoot.setAttribute("aria-label", `Photograph ${name}`);
    this.pads.forEach((pad, i) => {
      const kind = pad.empty ? "empty" : pad.image ? "an image" : "a drawing";
      pad.canvas.setAttribute("aria-label", `Example ${i + 1} of ${name}: ${kind}`);
      const button = pad.canvas.parentElement.querySelector(".remove");
      button.disabled = pad.empty;
      button.setAttribute("aria-label", `Remove example ${i + 1} of ${name}`);
    });
  }
}
