/** The translation page: options, translation as you type, and the view of the result. */

import {closeAlternatives, openAlternatives} from "./alternatives.js";
import {chunksOf, listModels, setKey, splitLines, translate, translateLines} from "./api.js";
import {enableFiles} from "./file_panel.js";
import {clearDetails, showDetails} from "./details.js";
import {fillSelect, invalidOption, phrases, showGlossaryNote, terms} from "./option_fields.js";
import {isRightToLeft, linesOf, sentencesOf, wordsOf} from "./text.js";
import {enableThemes} from "./theme.js";
import {wordElement, wordsWithTokens} from "./words.js";

const element = (id) => document.getElementById(id);
const DELAY = 250; // milliseconds after the last keystroke
const MAX_RESULTS = 2_000;

let models = [];
let limits = null; // of a request
const sentencesOfLines = new Map(); // as the server splits them, by line
let sourceText = ""; // that of `sentences`; an update sets it to the current text
let sentences = []; // see `sentencesOf`
let selected = 0; // index of the sentence whose details are shown
const indices = new Map(); // of the sentences in the output, by text
let request = new AbortController();
let timer = 0;
const results = new Map(); // n-best lists by `keyOf`
const partial = new Map(); // text so far of the sentences that are being translated, by `keyOf`
const prefixes = new Map(); // prefix of the translation that the user chose, by `prefixKeyOf`
const ranks = new Map(); // index of the shown translation, by `keyOf`

// --- Models and options ----------------------------------------------------------------------------------------------

const model = () => models.find(({name}) => name === element("model").value);

function showLanguages() {
  const unique = (values) => [...new Set(values)].map((value) => [value, value]);
  fillSelect("source-language", unique(models.map(({source}) => source)));
  const fromSource = models.filter(({source}) => source === element("source-language").value);
  fillSelect("target-language", unique(fromSource.map(({target}) => target)));
  const modelsOfPair = fromSource.filter(({target}) => target === element("target-language").value);
  fillSelect("model", modelsOfPair.map(({name, engine}) => [name, `${name} (${engine})`]));
  showModel();
}

/** Set the options to those of the model, and disable what it does not support. */
function showModel() {
  const {source, target, beam_size: beamSize, length_alpha: lengthAlpha, unsupported} = model();
  element("beam-size").max = Math.max(32, beamSize);
  element("beam-size").value = beamSize;
  element("length-alpha").value = lengthAlpha;
  element("swap").disabled = !models.some((other) => other.source === target && other.target === source);
  element("source").lang = element("backdrop").lang = source;
  element("output").lang = target;
  for (const field of ["required", "glossary"]) {
    element(field).disabled = field in unsupported;
    element(field).title = unsupported[field] ?? "";
  }
  const names = {
    required: "Required phrases", glossary: "Glossary", alignments: "Aligned words", attention: "Attention",
    prefix: "Prefixes", partial_word: "Typing the beginning of an alternative", alternatives: "Alternatives",
  };
  element("reasons").replaceChildren(...Object.keys(names).filter((field) => field in unsupported).map((field) => {
    const item = document.createElement("li");
    item.textContent = `${names[field]}: ${unsupported[field]}`;
    return item;
  }));
  schedule(0);
}

/** Return the fields of requests that the options set. The model's own beam may exceed the limit of requests. */
function searchOptions() {
  const beamSize = element("beam-size").valueAsNumber;
  return {
    model: model().name,
    beam_size: beamSize === model().beam_size ? null : beamSize,
    length_alpha: element("length-alpha").valueAsNumber,
    forbidden: phrases("forbidden"),
    required: phrases("required"),
    glossary: terms(),
    n_best: Math.min(element("n-best").valueAsNumber, beamSize),
  };
}

/** Return the key of a sentence in `prefixes`, with the languages, because prefixes are in the target language. */
const prefixKeyOf = ({text}) => JSON.stringify([model().source, model().target, text]);

/** Return the fields of a request for the translations of a sentence. */
function requestFor(sentence) {
  const prefix = prefixes.get(prefixKeyOf(sentence));
  const alignments = !("alignments" in model().unsupported);
  return {...searchOptions(), scores: true, alignments, ...(prefix && {prefix})};
}

/** Return the key of a sentence in `results`; "" before the models are loaded. */
const keyOf = (sentence) => (models.length ? JSON.stringify([sentence.text, requestFor(sentence)]) : "");

/** Return the shown translation of a sentence, or undefined if there is none yet. */
function shown(sentence) {
  const key = keyOf(sentence);
  const nBest = results.get(key);
  return nBest?.[ranks.get(key)] ?? nBest?.[0];
}

/** Remove translations whose text equals that of an earlier one with other tokens. */
const distinct = (nBest) => nBest.filter(({text}, i) => nBest.findIndex((other) => other.text === text) === i);

// --- Translation -----------------------------------------------------------------------------------------------------

/** Translate after a delay; a newer call replaces an older one. */
function schedule(delay = DELAY) {
  clearTimeout(timer);
  closeAlternatives();
  timer = setTimeout(update, delay);
}

/** Translate the sentences that have no result. The newest update aborts the others. */
async function update() {
  if (!models.length) { // `start` shows why
    return;
  }
  request.abort();
  request = new AbortController();
  partial.clear();
  const {signal} = request;
  showGlossaryNote();
  const problem = invalidOption();
  showError(problem);
  if (problem) {
    element("status").textContent = ""; // of the aborted update
    return;
  }
  try {
    await findSentences(signal);
    showSource();
    const missing = missingTexts();
    element("status").textContent = missing.size ? "Translating…" : "";
    showOutput();
    for (const [fields, texts] of missing) {
      await translateTexts([...texts], JSON.parse(fields), signal);
    }
    element("status").textContent = "";
    showBusy();
  } catch (error) {
    if (!signal.aborted) {
      element("status").textContent = "";
      showError(error.message);
    }
  }
  dropOldResults();
}

/** Return the distinct texts of the sentences without a result, by the fields of their requests as JSON. */
function missingTexts() {
  const missing = new Map();
  for (const sentence of sentences) {
    if (!results.has(keyOf(sentence))) {
      const fields = JSON.stringify(requestFor(sentence));
      missing.set(fields, (missing.get(fields) ?? new Set()).add(sentence.text));
    }
  }
  return missing;
}

/** Translate texts; store and show each translation, and with greedy search also its tokens, as they arrive. */
async function translateTexts(texts, fields, signal) {
  const isGreedy = (fields.beam_size ?? model().beam_size) === 1;
  for (const lines of chunksOf(texts, "sentence", limits, fields)) {
    const store = (map, index, value) => {
      if (!signal.aborted) {
        map.set(JSON.stringify([lines[index], fields]), value);
        showTranslation(lines[index]);
      }
    };
    const onLine = (index, nBest) => store(results, index, distinct(nBest));
    const onText = isGreedy ? (index, text) => store(partial, index, text) : null;
    await translateLines({...fields, text: lines}, signal, onLine, onText);
  }
}

function dropOldResults() {
  const used = new Set(sentences.map(keyOf));
  for (const key of results.keys()) { // the oldest first
    if (results.size > MAX_RESULTS && !used.has(key)) {
      results.delete(key);
    }
  }
}

/** Request the sentences of new lines, if lines are split into sentences. */
async function findSentences(signal) {
  const lines = new Set(element("split").checked ? linesOf(element("source").value).filter((line) => line.trim()) : []);
  for (const line of sentencesOfLines.keys()) {
    if (!lines.has(line)) {
      sentencesOfLines.delete(line);
    }
  }
  const unknown = [...lines].filter((line) => !sentencesOfLines.has(line));
  element("status").textContent = unknown.length ? "Translating…" : "";
  for (const chunk of chunksOf(unknown, "line", limits, {})) {
    const found = await splitLines(chunk, signal);
    chunk.forEach((line, i) => sentencesOfLines.set(line, found[i]));
  }
}

// --- View ------------------------------------------------------------------------------------------------------------

/** Show an error message, or hide it if it is "". */
function showError(message) {
  element("error").hidden = !message;
  element("error").textContent = message;
}

/** Show the current source text, without its words, and its length. */
function showText() {
  const {length} = [...element("source").value];
  element("count").textContent = `${length} character${length === 1 ? "" : "s"}`;
  element("backdrop").replaceChildren(element("source").value);
}

/** Show the words of the source text. */
function showSource() {
  showText();
  sourceText = element("source").value;
  sentences = sentencesOf(sourceText, (line) => sentencesOfLines.get(line) ?? [line]);
  selected = Math.max(0, Math.min(selectedByCursor(), sentences.length - 1));
  const parts = [];
  let end = 0;
  for (const [index, sentence] of sentences.entries()) {
    for (const [number, word] of wordsOf(sentence.text).entries()) {
      const [first, last] = [sentence.start + word.start, sentence.start + word.end];
      const span = wordElement("source", index, number);
      span.textContent = sourceText.slice(first, last);
      parts.push(sourceText.slice(end, first), span);
      end = last;
    }
  }
  element("backdrop").replaceChildren(...parts, sourceText.slice(end));
}

/** Show all sentences. */
function showOutput() {
  const focused = focusedWord();
  const parts = [];
  let end = 0;
  indices.clear();
  for (const [index, sentence] of sentences.entries()) {
    parts.push(sourceText.slice(end, sentence.start), sentenceElement(index));
    end = sentence.end;
    indices.set(sentence.text, indices.get(sentence.text) ?? []);
    indices.get(sentence.text).push(index);
  }
  element("output").replaceChildren(...parts);
  showBusy();
  restoreFocus(focused);
  showSelected();
}

/** Update the sentences with this text in the output after their translation has changed. */
function showTranslation(text) {
  const focused = focusedWord();
  const found = indices.get(text) ?? []; // none if it has been removed from the source text
  found.forEach((index) => element("output").children[index].replaceWith(sentenceElement(index)));
  restoreFocus(focused);
  if (found.includes(selected)) {
    showSelected();
  }
}

/** Return whether the text has not changed since the last update. */
const isCurrent = () => element("source").value === sourceText;

const isComplete = () => isCurrent() && sentences.every(shown);

function showBusy() {
  element("output").setAttribute("aria-busy", !isComplete());
}

/** Return the element of a sentence of the output. */
function sentenceElement(index) {
  const span = document.createElement("span");
  span.className = `sentence${index === selected ? " selected" : ""}`;
  const translation = shown(sentences[index]);
  if (translation) {
    span.append(...wordsWithTokens(translation, index));
  } else {
    span.classList.add("pending");
    span.textContent = `${partial.get(keyOf(sentences[index])) ?? ""}…`;
  }
  return span;
}

const focusedWord = () => document.activeElement?.closest?.("#output .word");

/** Move the focus to the element that has replaced a word, and let Tab reach one word. */
function restoreFocus(word) {
  const {sentence, word: number} = word?.dataset ?? {};
  const current = word && findWord(sentence, number);
  const reachable = document.querySelector('#output .word[tabindex="0"]') ?? document.querySelector("#output .word");
  (current ?? reachable)?.setAttribute("tabindex", "0");
  if (current !== word) {
    current?.focus();
  }
}

const findWord = (sentence, number) =>
  document.querySelector(`#output [data-sentence="${sentence}"][data-word="${number}"]`);

/** Highlight a word and the words that it is aligned to; without a word, remove the highlight. */
function highlight(word) {
  document.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
  const links = word && sentences[word.sentence] && shown(sentences[word.sentence])?.alignment;
  if (!links) {
    return;
  }
  const index = word.side === "source" ? 0 : 1; // of the word in a link
  const lit = links.filter((link) => link[index] === Number(word.word))
    .flatMap(([s, t]) => [["source", s], ["target", t]]);
  for (const [side, number] of [[word.side, word.word], ...lit]) {
    document.querySelector(`[data-side="${side}"][data-sentence="${word.sentence}"][data-word="${number}"]`)
      ?.classList.add("lit");
  }
}

/** Return the index of the sentence at the cursor in the source text; the selected one if there is none. */
function selectedByCursor() {
  const at = element("source").selectionStart;
  const index = sentences.findIndex(({start, end}) => start <= at && at <= end);
  return index >= 0 && document.activeElement === element("source") && isCurrent() ? index : selected;
}

function showSelected() {
  const sentence = sentences[selected];
  const key = sentence && keyOf(sentence);
  const nBest = results.get(key);
  if (!nBest) {
    clearDetails();
    return;
  }
  const fields = requestFor(sentence);
  showDetails({
    source: sentence.text, nBest, rank: nBest.indexOf(shown(sentence)), prefix: prefixes.get(prefixKeyOf(sentence)),
    reason: model().unsupported.attention,
    onRank: (rank) => {
      ranks.set(key, rank);
      showOutput();
    },
    onUnpin: () => pin(sentence, undefined),
    findAttention: async (rank, signal) => {
      const found = await translate({...fields, text: sentence.text, attention: true}, signal);
      return distinct(found)[rank].attention;
    },
  });
}

/** Set the prefix of the translation of a sentence, or remove it if `prefix` is undefined. */
function pin(sentence, prefix) {
  if (prefix) {
    prefixes.set(prefixKeyOf(sentence), prefix);
  } else {
    prefixes.delete(prefixKeyOf(sentence));
  }
  schedule(0);
}

/** Show the alternatives for a word of the translation. */
function openWord(word) {
  selected = Number(word.dataset.sentence);
  const {sentence: index, word: number} = word.dataset;
  showOutput();
  const anchor = findWord(index, number);
  if (!anchor) { // the text or an option has changed
    return;
  }
  const sentence = sentences[index];
  const {text} = shown(sentence);
  const {unsupported} = model();
  if ("alternatives" in unsupported) {
    element("status").textContent = unsupported.alternatives;
    return;
  }
  openAlternatives({
    anchor,
    before: text.slice(0, wordsOf(text)[number].start),
    readOnlyReason: unsupported.partial_word ?? "",
    find: (fields, signal) => translate(
      {...requestFor(sentence), alignments: false, text: sentence.text, ...fields}, signal,
    ),
    onChoose: (prefix) => pin(sentence, prefix),
  });
}

// --- Events ----------------------------------------------------------------------------------------------------------

element("source").addEventListener("input", () => {
  showText();
  schedule();
});
element("source-language").addEventListener("change", showLanguages);
element("target-language").addEventListener("change", showLanguages);
element("model").addEventListener("change", showModel);
for (const id of ["beam-size", "length-alpha", "n-best", "forbidden", "required", "glossary", "split"]) {
  element(id).addEventListener("input", () => schedule());
}
element("key").addEventListener("input", () => {
  setKey(element("key").value);
  schedule();
});
element("colors").addEventListener("change", () => {
  element("output").classList.toggle("colored", element("colors").checked);
});
element("clear").addEventListener("click", () => {
  element("source").value = "";
  element("source").focus();
  schedule(0);
});
element("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(element("output").textContent);
    element("status").textContent = isComplete() ? "Copied" : "Copied an incomplete translation";
  } catch { // no permission, or no clipboard, which browsers offer only over HTTPS or on localhost
    getSelection().selectAllChildren(element("output"));
    element("status").textContent = "Selected; press Ctrl+C";
  }
});
element("swap").addEventListener("click", () => {
  const {source, target} = model();
  if (isComplete()) { // the output of a pending sentence has an ellipsis
    element("source").value = element("output").textContent;
  }
  element("source-language").value = target;
  showLanguages();
  element("target-language").value = source;
  showLanguages();
});

const outputWord = (event) => event.target.closest?.("#output .word");
element("output").addEventListener("click", (event) => outputWord(event) && openWord(outputWord(event)));
element("output").addEventListener("pointerover", (event) => highlight(outputWord(event)?.dataset));
element("output").addEventListener("pointerleave", () => highlight());
element("output").addEventListener("focusin", (event) => highlight(outputWord(event)?.dataset));
element("output").addEventListener("keydown", (event) => {
  const words = [...document.querySelectorAll("#output .word")];
  const current = outputWord(event);
  const right = current && isRightToLeft(current.parentElement.textContent) ? -1 : 1;
  const step = {ArrowRight: right, ArrowLeft: -right}[event.key];
  if (current && step) {
    const next = words[words.indexOf(current) + step];
    if (next) {
      current.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    event.preventDefault();
  } else if (current && (event.key === "Enter" || event.key === " ")) {
    openWord(current);
    event.preventDefault();
  }
});

// The text area covers the words of the source, so they are found by position.
element("source").addEventListener("pointermove", ({clientX, clientY}) => {
  highlight([...document.querySelectorAll("#backdrop .word")].find((word) => [...word.getClientRects()].some(
    ({left, right, top, bottom}) => left <= clientX && clientX <= right && top <= clientY && clientY <= bottom,
  ))?.dataset);
});
element("source").addEventListener("pointerleave", () => highlight());
document.addEventListener("selectionchange", () => {
  const index = selectedByCursor();
  if (index !== selected) {
    selected = index;
    showOutput();
  }
});

// --- Start -----------------------------------------------------------------------------------------------------------

async function start() {
  enableThemes(() => sentences.length && showSelected()); // heatmaps use the colors of the theme
  try {
    const listed = await listModels();
    ({models, limits} = listed);
    element("key-field").hidden = !listed.requires_key;
    element("options").open = listed.requires_key;
    showLanguages();
    enableFiles({limits, options: searchOptions, context: () => model().context, invalidOption});
  } catch (error) {
    showError(error.message);
  }
}

start();
