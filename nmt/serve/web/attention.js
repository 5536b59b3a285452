/** Heatmaps of attention weights. A matrix has a row for each target token and a column for each source token. */

const THUMBNAIL_PIXELS = 72;
const CELL = 26;
const LABEL_FONT = "13px system-ui, sans-serif";

/** Return the mean of matrices of the same size. */
export function meanOf(matrices) {
  const sum = (i, j) => matrices.reduce((total, matrix) => total + matrix[i][j], 0);
  return matrices[0].map((row, i) => row.map((_, j) => sum(i, j) / matrices.length));
}

/**
 * Show a button with a thumbnail for each head of each layer, and for the mean of each layer.
 *
 * chosen: {layer, head}, where head null is the mean; onChoose receives the same
 */
export function showHeads(container, weights, chosen, onChoose) {
  container.style.gridTemplateColumns = `repeat(${weights[0].length + 1}, max-content)`;
  container.replaceChildren(...weights.flatMap((heads, layer) => [meanOf(heads), ...heads].map((matrix, column) => {
    const head = column ? column - 1 : null;
    const name = head === null ? `Layer ${layer + 1}, mean` : `Layer ${layer + 1}, head ${head + 1}`;
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", name);
    button.setAttribute("aria-pressed", layer === chosen.layer && head === chosen.head);
    const canvas = document.createElement("canvas");
    canvas.width = matrix[0]?.length || 1;
    canvas.height = matrix.length || 1;
    const scale = THUMBNAIL_PIXELS / Math.max(canvas.width, canvas.height);
    canvas.style.width = `${canvas.width * scale}px`;
    canvas.style.height = `${canvas.height * scale}px`;
    fill(canvas.getContext("2d"), matrix, 1);
    const caption = document.createElement("span");
    caption.textContent = head === null ? `${layer + 1} · mean` : `${layer + 1} · ${head + 1}`;
    button.append(canvas, caption);
    button.addEventListener("click", () => onChoose({layer, head}));
    return button;
  })));
}

/** Draw a matrix with its tokens; `readout` shows the weight under the pointer. */
export function drawMap(canvas, {source, target}, matrix, name, readout) {
  const context = canvas.getContext("2d");
  context.font = LABEL_FONT;
  const widest = (tokens) => 8 + Math.max(0, ...tokens.map((token) => context.measureText(token).width));
  const [left, top] = [widest(target), widest(source)];
  const [width, height] = [left + CELL * source.length + 1, top + CELL * target.length + 1];
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.scale(ratio, ratio);
  context.font = LABEL_FONT; // resizing resets it
  context.textBaseline = "middle";
  context.fillStyle = getComputedStyle(canvas).color;
  context.textAlign = "right";
  target.forEach((token, i) => context.fillText(token, left - 5, top + CELL * (i + 0.5)));
  context.textAlign = "left";
  source.forEach((token, j) => {
    context.save();
    context.translate(left + CELL * (j + 0.5), top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(token, 0, 0);
    context.restore();
  });
  context.translate(left, top);
  fill(context, matrix, CELL);
  context.strokeStyle = getComputedStyle(canvas).color;
  context.lineWidth = 0.5;
  context.strokeRect(0, 0, CELL * source.length, CELL * target.length);
  canvas.setAttribute("aria-label", `${name}: ${strongest({source, target}, matrix)}`);
  canvas.onpointermove = ({offsetX, offsetY}) => {
    const [i, j] = [Math.floor((offsetY - top) / CELL), Math.floor((offsetX - left) / CELL)];
    const weight = matrix[i]?.[j];
    readout.textContent = weight === undefined ? "" : `${target[i]} → ${source[j]}: ${weight.toFixed(3)}`;
  };
}

/** Describe a matrix in words: the source token with the highest weight, for each target token. */
function strongest({source, target}, matrix) {
  return matrix.map((row, i) => `${target[i]} to ${source[row.indexOf(Math.max(...row))]}`).join(", ");
}

function fill(context, matrix, cell) {
  context.fillStyle = getComputedStyle(document.querySelector("h1")).color; // the theme's accent color
  for (const [i, row] of matrix.entries()) {
    for (const [j, weight] of row.entries()) {
      context.globalAlpha = weight;
      context.fillRect(j * cell, i * cell, cell, cell);
    }
  }
  context.globalAlpha = 1;
}
