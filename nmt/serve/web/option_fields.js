/** The option fields of the page: their values, and errors in them. */

const element = (id) => document.getElementById(id);

/** Replace the options of a select and keep its choice if possible. */
export function fillSelect(id, options) {
  const select = element(id);
  const before = select.value;
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  select.value = options.some(([value]) => value === before) ? before : options[0]?.[0] ?? "";
}

/** Return the text of a field; "" if the field is disabled. */
const enabledText = (id) => (element(id).disabled ? "" : element(id).value);

/** Return the phrases of a field, which are separated by commas. */
export const phrases = (id) => enabledText(id).split(",").map((phrase) => phrase.trim()).filter(Boolean);

/** Return the lines of the glossary that are not blank: number, and the parts between equals signs. */
const glossaryLines = () => enabledText("glossary").split("\n")
  .map((line, i) => ({number: i + 1, sides: line.split("=").map((side) => side.trim())}))
  .filter(({sides}) => sides.some(Boolean) || sides.length > 1);

const isTerm = ({sides}) => sides.length === 2 && sides.every(Boolean);

/** Return the terms of the glossary and their translations. */
export const terms = () => glossaryLines().filter(isTerm).map(({sides}) => sides);

/** Name the lines of the glossary that are not used. */
export function showGlossaryNote() {
  const unused = glossaryLines().filter((line) => !isTerm(line)).map(({number}) => number);
  const plural = unused.length === 1 ? "" : "s";
  element("glossary-note").textContent = unused.length
    ? `Unused line${plural}: ${unused.join(", ")}; write term = translation, with one equals sign`
    : "";
}

/** Return which option has an invalid value, and why; "" if there is none. */
export function invalidOption() {
  const input = ["beam-size", "length-alpha", "n-best"].map(element).find((field) => !field.checkValidity());
  return input ? `${input.parentElement.textContent.trim()}: ${input.validationMessage}` : "";
}
