/** The list of alternatives for a word. */

const element = (id) => document.getElementById(id);
const COUNT = 6;
const DELAY = 200; // milliseconds after the last keystroke

let request = new AbortController();
let timer = 0;
let open = null; // argument of `openAlternatives`

/**
 * Show alternatives for a word of the translation.
 *
 * anchor:         the element of the word
 * before:         the translation up to the word
 * readOnlyReason: why no beginning can be typed; "" if one can
 * find:           (fields of the request, signal) => n-best list
 * onChoose:       called with the prefix up to and including the chosen word
 */
export function openAlternatives({anchor, before, readOnlyReason, find, onChoose}) {
  open = {anchor, before, readOnlyReason, find, onChoose};
  const dialog = element("alternatives");
  const beginning = element("beginning");
  beginning.value = "";
  beginning.readOnly = readOnlyReason !== "";
  beginning.placeholder = readOnlyReason || "Type the beginning";
  dialog.hidden = false;
  const box = anchor.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - dialog.offsetWidth - 8);
  dialog.style.left = `${Math.max(8, left) + scrollX}px`;
  dialog.style.top = `${box.bottom + scrollY + 6}px`;
  beginning.focus({preventScroll: true});
  update();
}

/** Hide the list; `refocus` moves the focus back to the word. */
export function closeAlternatives(refocus = false) {
  if (open) {
    request.abort();
    clearTimeout(timer);
    element("alternatives").hidden = true;
    const {anchor} = open;
    open = null;
    if (refocus && anchor.isConnected) {
      anchor.focus();
    }
  }
}

/** Request and show the alternatives for what is typed. */
async function update() {
  request.abort();
  request = new AbortController();
  const {signal} = request;
  const {before, readOnlyReason, find} = open;
  const prefix = before + element("beginning").value;
  showSearching();
  try {
    const fields = readOnlyReason ? {prefix: prefix.trimEnd()} : {prefix, partial_word: prefix !== ""};
    const found = await find({...fields, alternatives: true, n_best: COUNT}, signal);
    if (!signal.aborted) {
      show(found, before);
    }
  } catch (error) {
    if (!signal.aborted) {
      element("alternatives-note").textContent = error.message;
    }
  }
}

/** Remove the alternatives for an earlier beginning. */
function showSearching() {
  element("choices").replaceChildren();
  element("beginning").setAttribute("aria-activedescendant", "");
  element("alternatives-note").textContent = "Searching…";
}

function show(found, before) {
  const items = new Map(); // by word, because alternatives may differ only in later words
  for (const {text} of found) {
    const [, word, rest] = /^\s*(\S*)(.*)$/s.exec(text.slice(before.length)) ?? [];
    if (word && text.startsWith(before) && !items.has(word)) {
      items.set(word, rest);
    }
  }
  element("choices").replaceChildren(...Array.from(items, ([word, rest], i) => {
    const item = document.createElement("li");
    item.id = `choice-${i}`;
    item.role = "option";
    item.dir = "auto";
    item.dataset.word = word;
    const [strong, span] = [document.createElement("strong"), document.createElement("span")];
    strong.textContent = word;
    span.textContent = rest;
    span.className = "rest";
    item.append(strong, span);
    item.addEventListener("click", () => choose(item));
    return item;
  }));
  element("alternatives-note").textContent = items.size ? "" : "No alternatives";
  mark(0);
}

function choose(item) {
  const {before, onChoose} = open;
  closeAlternatives();
  onChoose(before + item.dataset.word);
}

/** Select the item with this index, cyclically. */
function mark(index) {
  const items = [...element("choices").children];
  const chosen = items.at(index % items.length || 0);
  items.forEach((item) => item.setAttribute("aria-selected", item === chosen));
  element("beginning").setAttribute("aria-activedescendant", chosen?.id ?? "");
}

element("beginning").addEventListener("input", () => {
  clearTimeout(timer);
  request.abort();
  showSearching();
  timer = setTimeout(update, DELAY);
});
element("alternatives").addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) { // the key belongs to an input method; Safari sets only the code
    return;
  }
  const items = [...element("choices").children];
  const current = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
  switch (event.key) {
    case "ArrowDown": mark(current + 1); break;
    case "ArrowUp": mark(current - 1); break;
    case "Enter": if (items[current]) choose(items[current]); break;
    case "Escape": closeAlternatives(true); break;
    default: return;
  }
  event.preventDefault();
});
document.addEventListener("pointerdown", (event) => {
  if (!element("alternatives").contains(event.target)) {
    closeAlternatives();
  }
});
