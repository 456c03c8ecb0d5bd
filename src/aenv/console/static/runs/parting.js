// @ts-check
/** Where two episodes part: what `aenv trajectory diff` says, to look at. */

import { get, path } from "../base/api.js";
import { h, to } from "../base/dom.js";
import { essence, isStep, label, summary } from "./events.js";
import { badge, button, failure } from "../base/parts.js";
import { EventPager } from "./pager.js";
import { count, plain } from "../base/text.js";

const MOST = 20_000; // events of each that are compared

/**
 * @param {any} about
 * @param {string} other
 * @param {AbortSignal} signal
 * @param {(seq: number) => void} jump
 */
export async function parting(about, other, signal, jump) {
  try {
    const second = await get(path("trajectories", other), {}, signal);
    const [left, right] = [steps(about.id, signal), steps(second.id, signal)];
    let same = 0;
    let [a, b] = [await left.next(), await right.next()];
    while (!a.done && !b.done && essence(a.value) === essence(b.value)) {
      same++;
      [a, b] = [await left.next(), await right.next()];
    }
    const one = a.done ? null : a.value;
    const two = b.done ? null : b.value;
    const said = !one && !two ? "Both did the same." : `The first ${count(same)} steps are the same. Then:`;
    return h("section", { class: "card", "aria-label": "Difference" },
      h("p", null, said, " ", h("a", { href: to(["episode", about.id]) }, "end the comparison")),
      one || two ? h("div", { class: "pair" }, side("This one", about, one, one ? () => jump(one.seq) : null), side("The other", second, two, null)) : null);
  } catch (error) {
    return failure(error);
  }
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 */
async function* steps(id, signal) {
  let seen = 0;
  for await (const event of new EventPager(id, signal, () => {}).all()) {
    if (isStep(event)) yield event;
    if (++seen > MOST) throw new Error(`only the first ${count(MOST)} events are compared here, and they are the same; use aenv trajectory diff`);
  }
}

/**
 * @param {string} title
 * @param {any} about
 * @param {any} event
 * @param {(() => void) | null} show
 */
function side(title, about, event, show) {
  return h("div", null, h("h3", null, title, " ", badge(about.outcome || about.state)), h("p", { class: "quiet" }, h("a", { href: to(["episode", about.id]) }, plain(about.id)), ` · reward ${about.score ?? "none"}`),
    h("p", null, event ? h("span", null, h("span", { class: "kind" }, label(event)), " ", summary(event)) : "It was over."), show ? button("Show it", show, { class: "small" }) : null);
}
