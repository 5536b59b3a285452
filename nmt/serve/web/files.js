/** Translation of files. To add a format, add its extensions to `EXTENSIONS` and a case to `openFile`. */

import {chunksOf, translate, translateLines} from "./api.js";

/** The extensions of the file formats. */
export const EXTENSIONS = [".txt", ".tsv", ".html", ".htm", ".xhtml", ".srt"];

/**
 * Parse a file.
 *
 * parts:   what to translate: lines, or the parts of a document, which are translated as one text
 * unit:    what a part is
 * format:  of a document, undefined for lines
 * type:    media type
 * write:   returns the translated file for the translations of lines, or of the texts of a document
 * columns: of .tsv only, the content of the first line
 * choose:  of .tsv only, (column, whether the first line is a header) => parts, unit, type and write
 *
 * The translation of a .tsv column becomes an additional column, as in the output of `nmt translate`.
 */
export function openFile(name, content) {
  const extension = /\.[^.]*$/.exec(name)?.[0].toLowerCase() ?? "";
  const text = content.replace(/^\ufeff/, "");
  const rows = text.replace(/\n$/, "").split("\n");
  const write = (texts) => texts.join("");
  switch (extension) {
    case ".txt":
      return {parts: rows, unit: "line", type: "text/plain", write: joinLines};
    case ".tsv": {
      const records = rows.map((row) => row.replace(/\r$/, "").split("\t"));
      return {columns: records[0], choose: (column, hasHeader) => openColumn(records, column, hasHeader)};
    }
    case ".html":
    case ".htm":
    case ".xhtml":
      return {parts: [text], unit: "page", format: "html", type: "text/html", write};
    case ".srt":
      return {parts: splitSubtitles(text), unit: "subtitle", format: "srt", type: "text/plain", write};
    default:
      throw new Error(`unsupported format; the file must be one of ${EXTENSIONS.join(", ")}; convert it`);
  }
}

/** Split a file at empty lines before subtitles; a subtitle may contain empty lines. */
function splitSubtitles(text) {
  return text.split(/(?<=\n[ \t]*\r?\n)(?=(?:\S.*\r?\n)?[ \t]*[\d:.,]+[ \t]*-+>)/);
}

function openColumn(records, column, hasHeader) {
  const short = records.findIndex((record) => record.length <= column);
  if (short >= 0) {
    throw new Error(`line ${short + 1} has no column ${column + 1}; every line must have it; select another one`);
  }
  const unequal = records.findIndex((record) => record.length !== records[0].length);
  if (unequal >= 0) { // the translations would be in different columns
    const [found, expected] = [records[unequal].length, records[0].length];
    throw new Error(
      `line ${unequal + 1} differs from line 1 in its number of columns (${found} and ${expected}); correct the file`,
    );
  }
  if (hasHeader && records[0].includes("translation")) {
    throw new Error("the file already has a column 'translation', the name of the new column; rename the existing one");
  }
  const [header, rows] = hasHeader ? [records.slice(0, 1), records.slice(1)] : [[], records];
  return {
    parts: rows.map((record) => record[column]),
    unit: "line",
    type: "text/tab-separated-values",
    write: (translations) => joinLines([
      ...header.map((record) => [...record, "translation"].join("\t")),
      ...rows.map((record, i) => [...record, translations[i]].join("\t")),
    ]),
  };
}

function joinLines(lines) {
  return lines.map((line) => `${line}\n`).join("");
}

/**
 * Return the translated file, with requests within the limits; calls onProgress(number of translated parts).
 *
 * context: of the model: number of previous lines, and sides
 */
export async function translateFile({parts, unit, format, write}, options, context, limits, signal, onProgress) {
  const translations = [];
  let count = 0;
  if (context.size && !format) {
    await translateInOrder(parts, options, context, signal, (text) => {
      translations.push(text);
      onProgress(count += 1);
    });
    return write(translations);
  }
  const overlap = format === "srt" ? context.size : 0;
  for (const chunk of chunksOf(parts, unit, format ? documentLimits(limits, overlap) : limits, options)) {
    if (format) {
      const before = parts.slice(Math.max(0, count - overlap), count);
      const [best] = await translate({...options, format, text: [...before, ...chunk].join("")}, signal);
      translations.push(before.length ? splitSubtitles(best.text).slice(before.length).join("") : best.text);
      onProgress(count += chunk.length);
    } else {
      await translateLines({...options, text: chunk}, signal, (_, [best]) => {
        translations.push(best.text);
        onProgress(count += 1);
      });
    }
  }
  return write(translations);
}

/** Translate lines one by one, each with the previous lines of its document; a blank line ends a document. */
async function translateInOrder(lines, options, {size, sides}, signal, onText) {
  let previous = [];
  for (const line of lines) {
    const [{text}] = await translate({...options, text: line, context: previous}, signal);
    previous = line.trim() ? [...previous, sides === "both" ? [line, text] : line].slice(-size) : [];
    onText(text);
  }
}

/** Return the limits of a request with parts of a document: each speaker in a subtitle counts as a line. */
function documentLimits({lines, characters, bytes}, overlap) {
  const divisor = overlap ? 2 : 1; // reserve capacity for the previous subtitles
  return {lines: Math.ceil(lines / 4), characters: characters / divisor, bytes: bytes / divisor};
}
