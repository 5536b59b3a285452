/** The words of a text as elements. */

import {tokensOf, wordsOf} from "./text.js";

/** Return the element of a word. */
export function wordElement(side, sentence, word) {
  const span = document.createElement("span");
  span.className = "word";
  Object.assign(span.dataset, {side, sentence, word});
  return span;
}

/** Return the words of a translation as elements that contain its tokens, and the space between them. */
export function wordsWithTokens(translation, index) {
  const {text} = translation;
  const tokens = tokensOf(translation) ?? [];
  const parts = [];
  let end = 0;
  for (const [number, word] of wordsOf(text).entries()) {
    const span = wordElement("target", index, number);
    span.setAttribute("role", "button");
    span.setAttribute("aria-haspopup", "dialog");
    span.tabIndex = -1;
    let at = word.start;
    for (const token of tokens) {
      if (token.start >= word.start && token.start < word.end && token.end > token.start) {
        const part = document.createElement("span");
        part.className = "token";
        part.style.setProperty("--probability", token.probability);
        part.title = `probability ${token.probability.toFixed(2)}`;
        part.textContent = text.slice(at, Math.min(token.end, word.end));
        at = token.end;
        span.append(part);
      }
    }
    span.append(text.slice(at, Math.max(at, word.end)));
    parts.push(text.slice(end, word.start), span);
    end = word.end;
  }
  return parts;
}
