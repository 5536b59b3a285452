/** Translation of files. A new format is a case of `openFile`. */

import {translateLines} from "./api.js";

/** The extensions of the file formats. */
export const EXTENSIONS = [".txt", ".tsv"];

/**
 * Parse a file: `lines` are the texts to translate, `write` returns the translated file for their translations.
 *
 * .txt: one sentence a line. .tsv: translates the first column and adds a column, like `nmt translate`.
 */
export function openFile(name, content) {
  const extension = /\.[^.]*$/.exec(name)?.[0].toLowerCase() ?? "";
  const text = content.replace(/^\ufeff/, "");
  const rows = text.replace(/\n$/, "").split("\n");
  switch (extension) {
    case ".txt":
      return {lines: rows, write: (translations) => joinLines(translations)};
    case ".tsv": {
      const records = rows.map((row) => row.replace(/\r$/, ""));
      return {
        lines: records.map((record) => record.split("\t")[0]),
        write: (translations) => joinLines(records.map((record, i) => `${record}\t${translations[i]}`)),
      };
    }
    default:
      throw new Error(`${name} is not supported; the file must be one of ${EXTENSIONS.join(", ")}; convert it`);
  }
}

function joinLines(lines) {
  return lines.map((line) => `${line}\n`).join("");
}

/** Translate all lines, in requests within the limits; calls onProgress(number of lines) after each line. */
export async function translateFile(lines, options, limits, signal, onProgress) {
  const translations = [];
  for (const chunk of chunksOf(lines, limits)) {
    await translateLines({...options, text: chunk}, signal, (_, [best]) => {
      translations.push(best.text);
      onProgress(translations.length);
    });
  }
  return translations;
}

/** Yield lists of lines; a line that exceeds a limit by itself is alone, and the server refuses it. */
function* chunksOf(lines, limits) {
  const reserved = 10_000; // bytes for the other fields of a request
  let chunk = [];
  let [characters, bytes] = [0, 0];
  for (const line of lines) {
    const size = new TextEncoder().encode(JSON.stringify(line)).length + 1;
    const isFull = chunk.length === limits.lines || characters + line.length > limits.characters
      || bytes + size > limits.bytes - reserved;
    if (chunk.length && isFull) {
      yield chunk;
      chunk = [];
      [characters, bytes] = [0, 0];
    }
    chunk.push(line);
    characters += line.length;
    bytes += size;
  }
  if (chunk.length) {
    yield chunk;
  }
}
