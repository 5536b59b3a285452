/** Translation of a file that the user selects or drops. */

import {EXTENSIONS, openFile, translateFile} from "./files.js";

const element = (id) => document.getElementById(id);
const UTF16_SAMPLE_BYTES = 200;

let request = new AbortController();
let settings = {};
let current = ""; // name of the file
let choose = null; // opens a column of a .tsv file

/**
 * Enable the selection of files.
 *
 * limits:        of a request
 * options:       returns the fields of requests
 * context:       returns the document context of the model
 * invalidOption: returns which option is invalid, and why; "" if none is
 */
export function enableFiles({limits, options, context, invalidOption}) {
  settings = {limits, options, context, invalidOption};
  element("file").accept = EXTENSIONS.join(",");
}

/** Hide the progress and the link of an earlier translation. */
function hideResult() {
  for (const id of ["download", "file-progress", "file-cancel"]) {
    element(id).hidden = true;
  }
}

function show(text) {
  element("file-status").textContent = `${current}: ${text}`;
}

/** Translate a file, or ask for the column to translate. */
async function select(file) {
  request.abort();
  request = new AbortController();
  const {signal} = request;
  hideResult();
  element("file-table").hidden = true;
  element("file-panel").hidden = false;
  current = file.name;
  try {
    if (!settings.limits) {
      throw new Error("the models are not loaded; reload the page");
    }
    const content = decode(await file.arrayBuffer());
    if (signal.aborted) {
      return;
    }
    const opened = openFile(current, content);
    if (opened.columns) {
      ({choose} = opened);
      const label = (text, i) => `${i + 1} (${text.length > 30 ? `${text.slice(0, 30)}…` : text})`;
      element("file-column").replaceChildren(...opened.columns.map((text, i) => new Option(label(text, i), i)));
      element("file-header").checked = false;
      element("file-table").hidden = false;
      element("file-column").focus();
      show("select the column to translate");
    } else {
      await run(opened, signal);
    }
  } catch (error) {
    if (!signal.aborted) { // no other file has been selected
      show(error.message);
    }
  }
}

function decode(buffer) {
  const start = new Uint8Array(buffer.slice(0, UTF16_SAMPLE_BYTES));
  const zeros = [0, 1].map((offset) => start.filter((byte, i) => byte === 0 && i % 2 === offset).length);
  if (!start.length) {
    throw new Error("empty; select another file");
  }
  if (Math.max(...zeros) > Math.max(3, 0.4 * start.length)) { // null bytes are valid UTF-8
    throw new Error("UTF-16; convert it to UTF-8");
  }
  try {
    return new TextDecoder("utf-8", {fatal: true}).decode(buffer);
  } catch {
    throw new Error("not UTF-8; convert it");
  }
}

/** Translate an opened file and offer the result for download. */
async function run(opened, signal) {
  const problem = settings.invalidOption();
  if (problem) {
    show(problem);
    return;
  }
  const progress = element("file-progress");
  const count = opened.parts.length;
  const total = `${count} ${opened.unit}${count === 1 ? "" : "s"}`;
  progress.max = count;
  progress.value = 0;
  progress.hidden = false;
  element("file-cancel").hidden = false;
  show(`0 of ${total}`);
  try {
    const options = {...settings.options(), n_best: 1};
    const content = await translateFile(opened, options, settings.context(), settings.limits, signal, (number) => {
      progress.value = number;
      show(`${number} of ${total}`);
    });
    const link = element("download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([content], {type: `${opened.type};charset=utf-8`}));
    link.download = current.replace(/(\.[^.]*)$/, ".translated$1");
    link.hidden = false;
    show(`${total} translated`);
  } catch (error) {
    if (!signal.aborted) {
      progress.hidden = true;
      show(error.message);
    }
  }
  if (!signal.aborted) {
    element("file-cancel").hidden = true;
  }
}

element("file").addEventListener("change", () => {
  const [file] = element("file").files;
  if (file) {
    select(file);
  }
  element("file").value = ""; // allow the selection of the same file again
});
element("file-translate").addEventListener("click", () => {
  request.abort();
  request = new AbortController();
  hideResult();
  try {
    run(choose(Number(element("file-column").value), element("file-header").checked), request.signal);
  } catch (error) {
    show(error.message);
  }
});
element("file-cancel").addEventListener("click", () => {
  request.abort();
  element("file-progress").hidden = element("file-cancel").hidden = true;
  show("canceled");
});
for (const type of ["dragover", "drop"]) {
  element("source").addEventListener(type, (event) => {
    if (event.dataTransfer?.types.includes("Files")) {
      event.preventDefault();
      if (type === "drop") {
        select(event.dataTransfer.files[0]);
      }
    }
  });
}
