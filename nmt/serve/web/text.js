/** Sentences, words and tokens of texts. Positions are indices of UTF-16 code units. */

const CONTROL = /[\x00-\x1f\x7f-\x9f\ufeff]/g; // the server may treat them as spaces

/** Return the lines of a text; lone surrogates are replaced as the server does. */
export const linesOf = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd").split("\n");

/** Return whether the first letter of a text is Hebrew, Arabic, or of another script that runs from right to left. */
export const isRightToLeft = (text) => /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/u.test(text);

/**
 * Return the sentences of a text: where they start and end, and what to send to the server.
 *
 * split: returns the sentences of a line, without the white space between them
 */
export function sentencesOf(text, split) {
  const found = [];
  let lineStart = 0;
  for (const line of linesOf(text)) {
    let end = 0;
    for (const sentence of split(line)) {
      const index = line.indexOf(sentence, end);
      end = index + sentence.length;
      const trimmed = sentence.trim();
      if (trimmed) {
        const start = lineStart + index + sentence.indexOf(trimmed);
        found.push({start, end: start + trimmed.length, text: trimmed.replace(CONTROL, " ")});
      }
    }
    lineStart += line.length + 1;
  }
  return found;
}

/** Return start and end of each word; words are separated by white space, as in alignments. */
export function wordsOf(text) {
  return Array.from(text.matchAll(/\S+/g), ({0: word, index}) => ({start: index, end: index + word.length}));
}

/**
 * Return start, end and probability of each token of a translation.
 *
 * Returns null if the tokens do not spell the text, or if the number of probabilities does not match: a line that was
 * split has one for the EOS of each part.
 */
export function tokensOf({text, tokens, token_log_probs: logProbs}) {
  if (logProbs.length !== tokens.length + 1) {
    return null;
  }
  const [bytes, positions] = utf8(text);
  const found = [];
  let at = 0;
  for (const [number, token] of tokens.entries()) {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(token);
    const spelled = byte ? [parseInt(byte[1], 16)] : new TextEncoder().encode(token.replaceAll("▁", " "));
    let first = -1;
    for (const value of spelled) {
      if (value !== SPACE) {
        while (bytes[at] === SPACE) {
          at += 1;
        }
        if (bytes[at] !== value) {
          return null;
        }
        first = first < 0 ? at : first;
        at += 1;
      }
    }
    if (first >= 0) {
      found.push({start: positions[first], end: positions[at], probability: Math.exp(logProbs[number])});
    }
  }
  return found;
}

const SPACE = 0x20;

/** Return the UTF-8 bytes of a text, and the position of the character of each byte and of the end. */
function utf8(text) {
  const bytes = [];
  const positions = [];
  let position = 0;
  for (const character of text) {
    for (const byte of new TextEncoder().encode(character)) {
      bytes.push(byte);
      positions.push(position);
    }
    position += character.length;
  }
  return [bytes, [...positions, position]];
}
