// @ts-check
/** Runs: rollouts that go on now, and recorded ones. */

import { every, get } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { badge, button, failure, heading, outcomes, table } from "../base/parts.js";
import { clock, count, number, plain, short } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default async function runs({ query, signal }) {
  const live = h("div", null);
  const list = h("div", null);
  /** @type {any[]} */
  let items = [];
  /** @type {string | null} */
  let next = null;
  let pick = query.with || "";

  async function rollouts() {
    try {
      const found = (await get("rollouts", {}, signal)).filter((/** @type {any} */ each) => each.state === "running");
      swap(live, found.length ? h("section", null, h("h2", null, "Running now"), table("Running rollouts", ["Id", "Environment", "Progress", "Outcomes", ["Mean reward", "right"]],
        found.map((/** @type {any} */ each) => [h("a", { href: to(["runs", each.id]) }, plain(each.id)), plain(each.environment), progress(each), outcomes(each.outcomes), number(each.mean_reward)]))) : null);
    } catch {
      swap(live); // the local platform serves no rollouts
    }
  }

  /** @param {string | null} after */
  async function load(after) {
    const page = await get("trajectory-runs", { limit: 100, after }, signal);
    items = after ? [...items, ...page.items] : page.items;
    next = page.next;
    draw();
  }

  function draw() {
    const rows = items.map((each) => [
      h("a", { href: to(["runs", each.id]) }, plain(each.title || each.id)), each.title ? short(each.id, 60) : "", plain(asked(each, "environment")), plain(asked(each, "agent")),
      outcomes(each.episodes), clock(each.created),
      pick && pick !== each.id ? h("a", { href: to(["runs", each.id], { with: pick }) }, "compare") : button(pick ? "chosen" : "compare…", () => ((pick = pick ? "" : each.id), draw()), { class: "small" }),
    ]);
    swap(list, h("h2", null, "Recorded"), table("Runs", ["Run", "Id", "Environment", "Agent", "Episodes", "Began", ""], rows, "Nothing was recorded yet."),
      next ? button("Show more", () => load(next)) : null);
  }

  try {
    await load(null);
  } catch (error) {
    swap(list, failure(error));
  }
  void every(3, signal, rollouts);
  return h("div", null, heading("Runs"), live, list);
}

/** @param {any} each */
function progress(each) {
  const node = h("progress", { max: String(each.total || 1), value: each.done, "aria-label": "Progress" });
  return h("span", { class: "row" }, node, `${count(each.done)} of ${count(each.total)}, ${count(each.running)} run`, badge(each.state));
}

/**
 * @param {any} run
 * @param {string} what
 */
function asked(run, what) {
  const found = run.request?.[what];
  return typeof found === "string" ? found : found?.name || "";
}
