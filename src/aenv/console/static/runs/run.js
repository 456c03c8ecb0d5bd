// @ts-check
/** One run: outcomes, rewards, its tasks; and beside another run, task by task. */

import { get } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { byTask, episodesOf, mean, scores } from "./episodes.js";
import { badge, button, choices, field, figure, heading, histogram, line, outcomes, select, table } from "../base/parts.js";
import { count, number, plain, span } from "../base/text.js";

const OUTCOMES = ["", "ok", "policy", "env", "infra", "timeout", "user", "cancelled"];
const ORDERS = ["task", "reward", "spread"];
const ROWS = 500;

/** @type {import("../main.js").Page} */
export default async function run({ parts, query, signal, put }) {
  const id = parts[1];
  const [begin, known] = await Promise.all([episodesOf({ run: id }, signal), get("trajectory-runs", { run: id, limit: 1 }, signal).catch(() => ({ items: [] }))]);
  const about = known.items[0];
  let final = begin.items.map(slim).filter(counts);
  let next = begin.next;
  if (query.with) return beside(id, final, query.with, signal);
  const wanted = { outcome: query.outcome || "", task: query.task || "", order: query.order || "task" };
  const sums = h("div", { class: "grid" });
  const more = h("p", { class: "note row" });
  const list = h("div", null);

  function draw() {
    const chosen = final.filter((each) => (!wanted.outcome || each.outcome === wanted.outcome) && (!wanted.task || each.task.includes(wanted.task)));
    const groups = [...byTask(chosen)].map(([task, own]) => ({ task, own, all: scores(own) }));
    const spread = (/** @type {number[]} */ all) => (all.length ? Math.max(...all) - Math.min(...all) : -1);
    if (wanted.order === "reward") groups.sort((a, b) => (mean(a.all) ?? Infinity) - (mean(b.all) ?? Infinity));
    if (wanted.order === "spread") groups.sort((a, b) => spread(b.all) - spread(a.all));
    swap(list, groups.length > ROWS ? h("p", { class: "quiet" }, `The first ${ROWS} of ${count(groups.length)} tasks; filter to see others.`) : null,
      table("Tasks", ["Task", ["Samples", "right"], ["Mean reward", "right"], ["Lowest", "right"], ["Highest", "right"], "Outcomes", ["Mean time", "right"]],
        groups.slice(0, ROWS).map(({ task, own, all }) => [h("a", { href: to(["group", id, task]) }, plain(task)), count(own.length), number(mean(all)), all.length ? number(Math.min(...all)) : "–", all.length ? number(Math.max(...all)) : "–",
          outcomes(tallied(own)), span(mean(own.map((each) => each.seconds).filter((each) => typeof each === "number")))]), "No episodes."));
  }

  /** All that is said of the episodes that were read. */
  function drawAll() {
    const rewards = scores(final);
    swap(sums, figure("Episodes", count(final.length), outcomes(tallied(final))),
      figure("Mean reward", number(mean(rewards)), `of ${count(rewards.length)} ${rewards.length === 1 ? "reward" : "rewards"}; ${count(final.length - rewards.length)} without one`),
      figure("Rewards", histogram(rewards, "How often rewards are in each range")),
      figure("In the order of their beginning", line(averaged(final), "Mean reward over the run")));
    more.hidden = next === null;
    swap(more, `The first ${count(final.length)} episodes. `, button("Read all", readAll, { class: "small" }));
    draw();
  }

  /** A run of 100,000 episodes takes some seconds to read; of each, what this page shows is kept. */
  async function readAll() {
    while (next !== null && !signal.aborted) {
      const page = await episodesOf({ run: id }, signal, { after: next, most: 1000 });
      final = final.concat(page.items.map(slim).filter(counts));
      next = page.next;
      swap(more, `${count(final.length)} episodes read…`);
    }
    drawAll();
  }
  drawAll();
  const form = choices([select("Outcome", "outcome", OUTCOMES, wanted.outcome), field("Task", "task", wanted.task, { type: "search" }), select("Order", "order", ORDERS, wanted.order)], (values) => {
    Object.assign(wanted, values);
    put(values);
    draw();
  });
  return h("div", null, heading(plain(about?.title || id)), about?.title ? h("p", { class: "quiet" }, plain(id)) : null, more, sums, form, list);
}

/** @param {any} each an episode; what this page shows of it */
function slim({ id, task, sample, state, final, outcome, score, seconds, began }) {
  return { id, task, sample, state, final, outcome, score, seconds, began };
}

/** @param {any} each whether it is the result of its sample, or may become it */
function counts(each) {
  return each.final || each.state !== "ended";
}

/** @param {any[]} own */
function tallied(own) {
  /** @type {Record<string, number>} */
  const found = {};
  for (const each of own) found[each.outcome || each.state] = (found[each.outcome || each.state] || 0) + 1;
  return found;
}

/**
 * Rewards, averaged over at most 60 stretches of the run.
 * @param {any[]} episodes
 */
function averaged(episodes) {
  const ordered = scores([...episodes].sort((a, b) => a.began - b.began));
  const size = Math.max(1, Math.ceil(ordered.length / 60));
  const out = [];
  for (let i = 0; i < ordered.length; i += size) out.push(mean(ordered.slice(i, i + size)));
  return out;
}

/**
 * Two runs, task by task.
 * @param {string} id
 * @param {any[]} own
 * @param {string} other
 * @param {AbortSignal} signal
 */
async function beside(id, own, other, signal) {
  const found = await episodesOf({ run: other }, signal);
  const theirs = found.items.filter((each) => each.final);
  const [first, second] = [byTask(theirs), byTask(own)];
  const rows = [...new Set([...first.keys(), ...second.keys()])].map((task) => {
    const [was, is] = [mean(scores(first.get(task) || [])), mean(scores(second.get(task) || []))];
    return { task, was, is, change: was === null || is === null ? null : is - was };
  });
  rows.sort((a, b) => (a.change ?? 0) - (b.change ?? 0));
  const changed = rows.filter((each) => each.change !== null);
  return h("div", null, heading("Two runs, task by task"),
    h("p", null, h("a", { href: to(["runs", other]) }, plain(other)), " and ", h("a", { href: to(["runs", id]) }, plain(id))),
    found.next || theirs.length >= 10_000 || own.length >= 10_000 ? h("p", { class: "note" }, "The first 10,000 episodes of each.") : null,
    h("div", { class: "grid" }, figure("Better", count(changed.filter((each) => (each.change ?? 0) > 0).length)), figure("Worse", count(changed.filter((each) => (each.change ?? 0) < 0).length)),
      figure("Mean change", number(mean(changed.map((each) => each.change ?? 0)))), figure("Only in one", count(rows.length - changed.length))),
    table("Tasks of both runs", ["Task", ["First", "right"], ["Second", "right"], ["Change", "right"], ""], rows.slice(0, ROWS).map((each) => [plain(each.task), number(each.was), number(each.is),
      each.change === null ? "–" : `${each.change > 0 ? "+" : ""}${number(each.change)}`, each.change ? badge(each.change > 0 ? "better" : "worse") : ""])));
}
