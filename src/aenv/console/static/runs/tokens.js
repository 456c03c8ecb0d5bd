// @ts-check
/** Tokens of a message: ids and log-probabilities where they were recorded, and where the model was unsure. */

import { h } from "../base/dom.js";
import { facts } from "../base/parts.js";
import { count, number, plain } from "../base/text.js";

const MOST = 5000;

/**
 * Ids and log-probabilities. Unlikely tokens are darker.
 * @param {any} event
 */
export function tokens(event) {
  const ids = Array.isArray(event.token_ids) ? event.token_ids.slice(0, MOST) : [];
  if (!ids.length) return null;
  const given = Array.isArray(event.logprobs) ? event.logprobs : [];
  const known = given.filter((/** @type {any} */ each) => typeof each === "number" && Number.isFinite(each));
  const mean = known.length ? known.reduce((/** @type {number} */ all, /** @type {number} */ each) => all + each, 0) / known.length : null;
  const unsure = known.filter((/** @type {number} */ each) => each < Math.log(0.5)).length;
  const cells = ids.map((/** @type {any} */ id, /** @type {number} */ i) => {
    const p = typeof given[i] === "number" ? given[i] : null;
    const cell = h("span", { class: "token", title: p === null ? `token ${i}: no log-probability` : `token ${i}: log-probability ${number(p)}, probability ${number(100 * Math.exp(p))} %` }, plain(id));
    if (p !== null) cell.style.setProperty("--doubt", String(Math.min(1, -p / 5)));
    return cell;
  });
  const prompt = Array.isArray(event.prompt_token_ids) ? event.prompt_token_ids.length : null;
  return h("details", null, h("summary", null, `${event.token_ids.length} tokens`),
    facts([["Prompt tokens", prompt === null ? null : count(prompt)], ["Mean log-probability", mean === null ? null : number(mean)], ["Perplexity", mean === null ? null : number(Math.exp(-mean))],
      ["Less likely than not", known.length ? `${count(unsure)} of ${count(known.length)}` : null]]),
    h("p", { class: "tokens" }, ...cells), ids.length < event.token_ids.length ? h("p", { class: "quiet" }, `The first ${count(MOST)}.`) : null);
}
