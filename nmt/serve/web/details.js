/** The details of a sentence: its n-best list, its prefix and its attention. */

import {drawMap, meanOf, showHeads} from "./attention.js";

const element = (id) => document.getElementById(id);

const ATTENTION_NOTE = element("attention-note").textContent;

let current = null; // argument of `showDetails`
let shownFor = ""; // source, prefix and translation of the attention on the page
let wantedFor = ""; // the same for the attention that was requested last; "" if there is none
let attention = null;
let request = new AbortController();
let chosen = {layer: 0, head: null};

/** Hide the details. */
export function clearDetails() {
  current = null;
  wantedFor = "";
  request.abort();
  element("details").hidden = true;
}

/**
 * Show the details of a sentence.
 *
 * source, nBest, rank: the sentence, its translations, and the index of the one that is shown
 * prefix:              of the translation, undefined if the user chose none
 * reason:              why attention is unavailable, undefined if it is available
 * onRank, onUnpin:     called with the index of a chosen translation, and to remove the prefix
 * findAttention:       (index of a translation, signal) => its attention
 */
export function showDetails(details) {
  current = details;
  const {source, nBest, rank, prefix} = details;
  element("details").hidden = false;
  element("details-source").textContent = source;
  element("pinned").hidden = !prefix;
  element("pinned-text").textContent = prefix ?? "";
  const hadFocus = element("n-best-list").contains(document.activeElement);
  element("n-best-list").replaceChildren(...nBest.map(({text, score, log_prob: logProb}, index) => {
    const [item, button, numbers] = ["li", "button", "span"].map((name) => document.createElement(name));
    button.type = "button";
    button.dir = "auto";
    button.textContent = text;
    button.setAttribute("aria-pressed", index === rank);
    button.addEventListener("click", () => details.onRank(index));
    numbers.className = "quiet";
    numbers.textContent = ` score ${score.toFixed(3)}, log-probability ${logProb.toFixed(2)}`;
    item.append(button, numbers);
    return item;
  }));
  if (hadFocus) {
    element("n-best-list").querySelector('[aria-pressed="true"]').focus();
  }
  showAttention();
}

/** Draw the attention if its section is open; request it first if it is not loaded. */
async function showAttention() {
  const details = current;
  if (!details || !element("attention").open) {
    return;
  }
  const {source, nBest, rank, prefix, reason, findAttention} = details;
  const key = JSON.stringify([source, prefix, nBest[rank]]);
  const isShown = key === shownFor;
  element("heads").hidden = element("map").hidden = Boolean(reason) || !isShown;
  element("attention-note").textContent = reason ?? ATTENTION_NOTE;
  if (reason) {
    return;
  }
  const isRequested = key === wantedFor; // the page is shown again after each translated line
  wantedFor = key;
  if (isRequested && !isShown) {
    return;
  }
  request.abort();
  if (isShown) {
    draw();
  } else {
    element("map-readout").textContent = "";
    request = new AbortController();
    const {signal} = request;
    await requestAttention(key, () => findAttention(rank, signal));
  }
}

/** Request and draw attention, unless another one is wanted by then. */
async function requestAttention(key, find) {
  try {
    const found = await find();
    if (key === wantedFor) {
      attention = found;
      shownFor = key;
      draw();
    }
  } catch (error) {
    if (key === wantedFor) {
      wantedFor = "";
      element("map-readout").textContent = error.message;
      element("heads").hidden = element("map").hidden = true;
    }
  }
}

function draw() {
  element("heads").hidden = element("map").hidden = false;
  const {weights} = attention;
  if (chosen.layer >= weights.length || chosen.head >= weights[0].length) {
    chosen = {layer: 0, head: null};
  }
  showHeads(element("heads"), weights, chosen, (choice) => {
    chosen = choice;
    draw();
    element("heads").querySelector('[aria-pressed="true"]').focus();
  });
  const heads = weights[chosen.layer];
  const name = `Layer ${chosen.layer + 1}, ${chosen.head === null ? "mean of heads" : `head ${chosen.head + 1}`}`;
  const matrix = chosen.head === null ? meanOf(heads) : heads[chosen.head];
  element("map-readout").textContent = name;
  drawMap(element("map"), attention, matrix, name, element("map-readout"));
}

element("attention").addEventListener("toggle", showAttention);
element("unpin").addEventListener("click", () => current?.onUnpin());
