// @ts-check
/** Replay an episode: make its recorded calls on a fresh instance, and show the first result that differs. */

import { path, send } from "../base/api.js";
import { h, say, swap } from "../base/dom.js";
import { badge, block, button, failure } from "../base/parts.js";
import { count, plain, pretty } from "../base/text.js";

const REDACTED = "[redacted]";

/**
 * @param {import("./pager.js").EventPager} pager
 * @param {AbortSignal} signal
 * @param {(seq: number) => void} jump
 */
export function replayer(pager, signal, jump) {
  const place = h("div", { role: "status" });
  const start = button("Replay", async () => {
    swap(place, h("p", { class: "quiet" }, "Making an instance…"));
    try {
      swap(place, ...(await replay()));
    } catch (error) {
      swap(place, failure(error));
    }
  }, { class: "small", title: "Make the recorded calls again on a fresh instance, and compare the results" });

  async function replay() {
    const { begin, calls, results, end } = await recorded();
    const made = await send("POST", "env-instance", asked(begin), signal);
    let [same, compared] = [0, 0];
    /** @type {{call: any, before: any, now: any} | null} */
    let first = null;
    /** @type {any} */
    let reward;
    try {
      for (const [number, call] of calls.entries()) {
        swap(place, h("p", { class: "quiet" }, `Call ${number + 1} of ${calls.length}…`));
        const now = await madeAgain(made.id, call);
        if (call.of === "reward" && !now.is_error) reward = now.structured;
        const before = results.get(call.id);
        if (!before) continue;
        compared++;
        if (alike(before, now)) same++;
        else first ??= { call, before, now };
      }
    } finally {
      await send("DELETE", path("env-instance", made.id)).catch(() => null);
    }
    say("replayed");
    const rewards = reward === undefined ? "no reward was computed" : JSON.stringify(reward) === JSON.stringify(end?.reward) ? `reward ${JSON.stringify(reward)}, as recorded` : `reward ${JSON.stringify(reward)}, recorded was ${JSON.stringify(end?.reward ?? null)}`;
    return [h("section", { class: "card", "aria-label": "Replay" },
      h("p", null, badge(first ? "different" : "same"), ` ${count(same)} of ${count(compared)} results are the same; ${plain(rewards)}.`, " ", button("Close", () => swap(place), { class: "small" })),
      first ? h("div", { class: "pair" },
        h("div", null, h("h3", null, `Recorded, event ${first.call.seq}`), block(pretty(shortened(first.before))), button("Show it", () => jump(/** @type {any} */ (first).call.seq), { class: "small" })),
        h("div", null, h("h3", null, "Now"), block(pretty(shortened(first.now)), "wrong"))) : null)];
  }

  async function recorded() {
    /** @type {any} */
    let [begin, end] = [null, null];
    const calls = [];
    const results = new Map();
    for await (const event of pager.all()) {
      if (event.kind === "begin") begin = event;
      if (event.kind === "end") end = event;
      if (event.kind === "call" && !event.state) calls.push(event);
      if (event.kind === "result") results.set(event.id, event);
    }
    const later = calls.filter((each) => each.of === "reward");
    return { begin, end, calls: [...calls.filter((each) => each.of !== "reward"), ...later], results };
  }

  return { start, place };
}

/** @param {any} begin */
function asked(begin) {
  const env = begin?.environment || {};
  if (begin?.imported) throw new Error("The episode was imported: a file does not choose which code runs here. Use aenv trajectory replay --env.");
  if (!env.name || env.source) throw new Error("The episode ran in a folder of another machine; use aenv trajectory replay.");
  const task = begin.task || {};
  const variables = Object.fromEntries(Object.entries(task.variables || {}).filter(([, value]) => value !== REDACTED));
  if (task.seed !== undefined && task.seed !== null) variables.AENV_SEED ??= String(task.seed);
  return { envName: env.version ? `${env.name}@${env.version}` : env.name, ttl: "10m", labels: { from: "console" }, environment_variables: variables,
    ...(task.arguments ? { arguments: task.arguments } : {}), ...(task.datasource ? { datasource: task.datasource } : {}) };
}

/**
 * Make a call again.
 * @param {string} id
 * @param {any} call
 */
async function madeAgain(id, call) {
  const base = path("instance", id);
  const name = call[call.of];
  const given = call.arguments ?? {};
  try {
    if (call.of === "tool") {
      if (typeof given !== "object" || Array.isArray(given)) return { is_error: true, content: null, structured: null };
      const data = await send("POST", `${base}/tools/${path(String(name))}`, given);
      return { is_error: Boolean(data.is_error), content: data.content, structured: data.structured ?? data.structuredContent ?? null };
    }
    const value = call.of === "function" ? await send("POST", `${base}/functions/${path(String(name))}`, given)
      : await send("POST", `${base}/task/reward${name ? `?reward=${encodeURIComponent(name)}` : ""}`, given);
    return { is_error: false, content: [], structured: value };
  } catch (error) {
    if (/** @type {any} */ (error).fault === "infra" || !(/** @type {any} */ (error).status)) throw error;
    return { is_error: true, content: [], structured: null, failure: /** @type {Error} */ (error).message };
  }
}

/**
 * @param {any} before a recorded result
 * @param {any} now
 */
function alike(before, now) {
  const key = (/** @type {any} */ each) => JSON.stringify([Boolean(each.is_error), each.structured ?? null, now.content === null ? null : ordered(each.content ?? [])]);
  return key(before) === key(now);
}

/**
 * @param {any} value JSON
 * @returns {any} the same with the names of objects in order
 */
function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, ordered(value[name])]));
}

/** @param {any} result */
function shortened({ is_error, content, structured, failure: why, error }) {
  return { is_error, content, structured, failure: why, error };
}

