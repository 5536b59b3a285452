/** Requests to the server. */

const MAX_RETRIES = 10; // while the server is busy, about a minute
const MAX_PAUSE = 30; // seconds

let key = ""; // UTF-8, one character per byte, because fetch encodes headers as Latin-1

/** Set the API key of all requests. */
export function setKey(value) {
  key = String.fromCharCode(...new TextEncoder().encode(value));
}

/** Return the models, the limits of requests, and whether a key is required. */
export async function listModels() {
  return (await checked(await fetch("v1/models"))).json();
}

/** Translate one text; returns its n-best list. */
export async function translate(body, signal) {
  return (await (await post("v1/translate", body, signal)).json()).translations[0];
}

/** Return the sentences of each line. */
export async function splitLines(lines, signal) {
  return (await (await post("v1/sentences", {text: lines}, signal)).json()).sentences;
}

/**
 * Translate lines; calls onLine(index, n-best list) for each as soon as it is translated.
 *
 * onText: if given, called with the index and the text so far of a line after each token; needs beam size 1
 */
export async function translateLines(body, signal, onLine, onText = null) {
  const response = await post("v1/translate", {...body, [onText ? "stream_tokens" : "stream"]: true}, signal);
  for await (const [name, data] of events(response.body)) {
    if (name === "line") {
      onLine(data.index, data.translations);
    } else if (name === "text") {
      onText(data.index, data.text);
    } else if (name === "error") {
      throw new Error(data.error);
    } else {
      return;
    }
  }
  throw new Error("the connection ended early; try again");
}

/**
 * Yield lists of parts, each within the limits of a request; throws an error for a part with too many bytes.
 *
 * unit:   what a part is, for that error
 * fields: the other fields of each request
 *
 * A part with too many characters or lines is sent alone, and the server rejects it.
 */
export function* chunksOf(parts, unit, limits, fields) {
  // 200 bytes are for "text", "stream" and others.
  const capacity = limits.bytes - new TextEncoder().encode(JSON.stringify(fields)).length - 200;
  let chunk = [];
  let [characters, bytes] = [0, 0];
  for (const part of parts) {
    const size = new TextEncoder().encode(JSON.stringify(part)).length + 1;
    const isFull = chunk.length === limits.lines || characters + part.length > limits.characters
      || bytes + size > capacity;
    if (size > capacity) { // the server would close the connection before it has read the request
      throw new Error(`a ${unit} is too large; the limit is ${limits.bytes} bytes; split it`);
    }
    if (chunk.length && isFull) {
      yield chunk;
      chunk = [];
      [characters, bytes] = [0, 0];
    }
    chunk.push(part);
    characters += part.length;
    bytes += size;
  }
  if (chunk.length) {
    yield chunk;
  }
}

/** Send a request; repeat it after increasing pauses while the server is busy. */
async function post(path, body, signal) {
  const headers = {"content-type": "application/json", ...(key && {authorization: `Bearer ${key}`})};
  for (let count = 1; ; count += 1) {
    const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body), signal});
    const isBusy = response.status === 503 && response.headers.has("retry-after"); // not if it is shutting down
    if (!isBusy || count > MAX_RETRIES) {
      return checked(response);
    }
    const seconds = Math.max(count, Number(response.headers.get("retry-after")) || 0);
    await pause(1000 * Math.min(seconds, MAX_PAUSE));
    signal?.throwIfAborted();
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Return the response, or throw the error that it describes. */
async function checked(response) {
  if (response.ok) {
    return response;
  }
  const problem = await response.json().catch(() => ({error: `the server answered with status ${response.status}`}));
  throw new Error(problem.error);
}

/** Yield the name and data of each server-sent event. */
async function* events(body) {
  let text = "";
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (let {value, done} = await reader.read(); !done; {value, done} = await reader.read()) {
    const blocks = (text + decoder.decode(value, {stream: true})).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
