// A model from a file: the page begins with it alone, until another is to be taught.

import { showSquares } from "./pad.js";

/** @param model what the server says of it; null for the page with all its parts
 *  @param page elements by id
 *  @param trial where the model is asked */
export function showAlone(model, page, trial) {
  const alone = model !== null;
  for (const part of ["letters", "reset", "examples", "adaptation", "try-number"]) page[part].hidden = alone;
  for (const part of ["teach", "saved-note"]) page[part].hidden = !alone;
  page["try-words"].textContent = alone ? `Try ${model.title}` : "Try it";
  // Reasons are read beside what they are about.
  if (alone) page.try.append(page.problem);
  else page.result.before(page.problem);
  if (!alone) return;
  showSquares(!model.ink);
  trial.use(model.key, model.names, model);
  page.files.hidden = true; // whoever started the server has the file, and its examples are in it
}
