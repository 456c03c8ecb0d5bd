// @ts-check
/** Two texts, line by line. */

import { h } from "./dom.js";
import { plain } from "./text.js";

const MOST = 1500; // lines between the first and the last difference that are compared exactly
const AROUND = 3; // equal lines that are shown around a change

/**
 * @typedef {{mark: " " | "-" | "+", text: string}} Row
 * @param {string} before
 * @param {string} after
 * @returns {Row[]}
 */
export function compared(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const same = (/** @type {string} */ text) => /** @type {Row} */ ({ mark: " ", text });
  return [...a.slice(0, head).map(same), ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)), ...a.slice(a.length - tail).map(same)];
}

/**
 * The longest common subsequence, by the textbook.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Row[]}
 */
function middle(a, b) {
  const removed = a.map((text) => /** @type {Row} */ ({ mark: "-", text }));
  const added = b.map((text) => /** @type {Row} */ ({ mark: "+", text }));
  if (!a.length || !b.length || a.length > MOST || b.length > MOST) return [...removed, ...added];
  const width = b.length + 1;
  const table = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
  /** @type {Row[]} */
  const out = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) out.push({ mark: " ", text: a[i++] }), j++;
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) out.push(removed[i++]);
    else out.push(added[j++]);
  }
  return [...out, ...removed.slice(i), ...added.slice(j)];
}

/**
 * What changed, with some lines around it.
 * @param {string} before
 * @param {string} after
 */
export function difference(before, after) {
  const rows = compared(before, after);
  const near = rows.map(() => false);
  rows.forEach((row, i) => {
    if (row.mark !== " ") for (let k = Math.max(0, i - AROUND); k <= Math.min(rows.length - 1, i + AROUND); k++) near[k] = true;
  });
  const out = [];
  let skipped = 0;
  rows.slice(0, 20_000).forEach((row, i) => {
    if (!near[i]) return void skipped++;
    if (skipped) out.push(h("span", { class: "skipped" }, `… ${skipped} equal lines\n`));
    skipped = 0;
    out.push(h(row.mark === "+" ? "ins" : row.mark === "-" ? "del" : "span", null, `${row.mark} ${plain(row.text)}\n`));
  });
  if (skipped && out.length) out.push(h("span", { class: "skipped" }, `… ${skipped} equal lines\n`));
  return h("pre", { class: "block changes", tabindex: "0", "aria-label": "Changes" }, ...(out.length ? out : ["No differences."]));
}
