/** Translation of a file that the user selects or drops. */

import {EXTENSIONS, openFile, translateFile} from "./files.js";

const element = (id) => document.getElementById(id);

let request = new AbortController();
let settings = {};

/** Enable the selection of files. options: returns the fields of requests; limits: of a request */
export function showFilePanel({limits, options}) {
  settings = {limits, options};
  element("file").accept = EXTENSIONS.join(",");
}

async function translateSelected(file) {
  request.abort();
  request = new AbortController();
  const {signal} = request;
  element("file-panel").hidden = false;
  element("download").hidden = true;
  element("file-cancel").hidden = false;
  const show = (text) => {
    element("file-status").textContent = `${file.name}: ${text}`;
  };
  try {
    const {lines, write} = openFile(file.name, new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer()));
    const progress = element("file-progress");
    [progress.max, progress.value] = [lines.length, 0];
    const options = {...settings.options(), n_best: 1};
    const translations = await translateFile(lines, options, settings.limits, signal, (count) => {
      progress.value = count;
      show(`${count} of ${lines.length} lines`);
    });
    const link = element("download");
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([write(translations)], {type: "text/plain;charset=utf-8"}));
    link.download = file.name.replace(/(\.[^.]*)$/, ".translated$1");
    link.hidden = false;
    show(`${lines.length} lines translated`);
  } catch (error) {
    show(signal.aborted ? "canceled" : error instanceof TypeError ? "is not UTF-8 text; convert it" : error.message);
  }
  element("file-cancel").hidden = true;
}

element("file").addEventListener("change", () => {
  const [file] = element("file").files;
  if (file) {
    translateSelected(file);
  }
  element("file").value = ""; // the same file may be selected again
});
element("file-cancel").addEventListener("click", () => request.abort());
for (const type of ["dragover", "drop"]) {
  element("source").addEventListener(type, (event) => {
    if (event.dataTransfer?.types.includes("Files")) {
      event.preventDefault();
      if (type === "drop") {
        translateSelected(event.dataTransfer.files[0]);
      }
    }
  });
}
