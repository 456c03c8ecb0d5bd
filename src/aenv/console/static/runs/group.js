// @ts-check
/** The samples of one task side by side: rewards, advantages, outcomes, and the step at which they part. */

import { get, path } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { advantage, episodesOf, scores } from "./episodes.js";
import { essence, isError, isStep, label, summary } from "./events.js";
import { badge, button, choices, heading, select } from "../base/parts.js";
import { count, number, plain, span } from "../base/text.js";

const COLUMNS = 16;
const STEPS = 200;

/** @type {import("../main.js").Page} */
export default async function group({ parts, query, signal, put }) {
  const [, run, task] = parts;
  const { items } = await episodesOf({ run, task }, signal);
  const all = items.filter((each) => each.final || each.state !== "ended");
  const rewards = scores(all);
  const order = query.order || "sample";
  const samples = [...all].sort((a, b) => (order === "reward" ? (b.score ?? -Infinity) - (a.score ?? -Infinity) : order === "length" ? (b.events ?? 0) - (a.events ?? 0) : a.sample - b.sample)).slice(0, COLUMNS);
  const steps = await Promise.all(samples.map((each) => get(`${path("trajectories", each.id)}/events`, { limit: STEPS }, signal).then((page) => page.items.filter(isStep))));
  const keys = steps.map((own) => own.map(essence));
  const longest = Math.max(0, ...steps.map((own) => own.length));
  let part = 0;
  while (part < longest && keys.every((own) => own[part] === keys[0][part])) part++;
  const grid = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps of the samples side by side" });

  /** @param {boolean} whole */
  function draw(whole) {
    const from = whole ? 0 : Math.max(0, part - 1);
    const rows = [];
    for (let i = from; i < longest; i++) {
      const alike = keys.map((own) => keys.filter((other) => other[i] === own[i]).length);
      rows.push(h("tr", { class: i === part ? "parting" : null }, h("th", { scope: "row" }, String(i + 1)), ...steps.map((own, column) => cell(own[i], samples[column], alike[column] === steps.length))));
    }
    const head = h("tr", null, h("th", { scope: "col" }, "Step"), ...samples.map((each) => h("th", { scope: "col" }, card(each, rewards))));
    swap(grid, h("table", { class: "side" }, h("caption", { class: "unseen" }, "One column for each sample"), h("thead", null, head), h("tbody", null, ...rows)));
  }
  draw(part < 3);

  const said = samples.length < 2 ? "There is only one sample." : part >= longest ? "All samples did the same." : part === 0 ? "They differ from the first step on." : `${part === 1 ? "The first step is" : `The first ${part} steps are`} the same; they part at step ${part + 1}.`;
  return h("div", null, heading(plain(task)),
    h("p", { class: "quiet" }, h("a", { href: to(["runs", run]) }, plain(run)), ` · ${count(all.length)} samples${all.length > COLUMNS ? `, ${COLUMNS} of them shown` : ""}`),
    h("p", { class: "row" }, said, part > 2 ? button("Show the common steps", () => draw(true), { class: "small" }) : null,
      samples.length > 1 ? h("a", { href: to(["episode", samples[0].id], { with: samples[1].id }) }, "Compare the first two") : null),
    choices([select("Order", "order", ["sample", "reward", "length"], order)], (values) => {
      put(values);
      dispatchEvent(new HashChangeEvent("hashchange"));
    }),
    tree(all), grid);
}

/**
 * Which episodes were forked from which, where any were.
 * @param {any[]} all
 */
function tree(all) {
  const known = new Map(all.map((each) => [each.id, each]));
  const parent = (/** @type {any} */ each) => (each.parents || []).map((/** @type {any} */ one) => String(one.episode)).find((/** @type {string} */ id) => known.has(id) && id !== each.id);
  if (!all.some(parent)) return null;
  /** @type {(from: string | undefined, depth: number) => Node} */
  const branch = (from, depth) => h("ul", null, ...all.filter((each) => parent(each) === from && depth < 50).map((each) => h("li", null,
    h("a", { href: to(["episode", each.id]) }, `sample ${each.sample}`), " ", badge(each.outcome || each.state), ` reward ${each.score === null ? "none" : number(each.score)}`, branch(each.id, depth + 1))));
  return h("details", { class: "card", open: true }, h("summary", null, "Fork tree"), branch(undefined, 0));
}

/**
 * @param {any} each
 * @param {number[]} rewards
 */
function card(each, rewards) {
  const gain = advantage(each.score, rewards);
  const origin = (each.parents || []).map((/** @type {any} */ parent) => h("a", { href: to(["episode", String(parent.episode)]) }, plain(parent.kind)));
  return h("div", { class: "sample" },
    h("a", { href: to(["episode", each.id]) }, `sample ${each.sample}`), badge(each.outcome || each.state),
    h("div", null, "reward ", h("strong", null, each.score === null ? (each.reward === null || each.reward === undefined ? "none" : "see episode") : number(each.score))),
    h("div", { class: "quiet" }, gain === null ? "no advantage" : `advantage ${gain > 0 ? "+" : ""}${number(gain)}`),
    h("div", { class: "quiet" }, `${(each.steps ?? each.events) === 1 ? "1 step" : `${count(each.steps ?? each.events)} steps`}, ${span(each.seconds)}`), origin.length ? h("div", { class: "quiet" }, "from ", ...origin) : null);
}

/**
 * @param {any} event
 * @param {any} episode
 * @param {boolean} same
 */
function cell(event, episode, same) {
  if (!event) return h("td", { class: "over" }, "–");
  return h("td", { class: `${same ? "same" : "other"} ${isError(event) ? "wrong" : ""}` },
    h("a", { href: to(["episode", episode.id], { at: event.seq }), class: "kind" }, label(event)), " ", summary(event).slice(0, 140));
}
