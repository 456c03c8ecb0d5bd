// @ts-check
/** What the platform does now: room, instances, rates, latencies, failures. */

import { every, get, parseMetrics, request } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { badge, failure, figure, heading, line, outcomes, table } from "../base/parts.js";
import { quantiles } from "./quantiles.js";
import { bytes, clock, count, number, plain, short, span } from "../base/text.js";

const SECONDS = 2;
const POINTS = 150;
const LISTED = 3; // the list costs more than the figures: every third time
const ENDED = 15; // and that of ended instances is longer still
const PLANNED = new Set(["ttl", "deleted", "owner", "stopped"]); // every other end is a failure

/** @typedef {Map<string, {labels: Record<string, string>, value: number}[]>} Figures */

/**
 * @param {Figures} figures
 * @param {string} name
 * @param {Record<string, string>} [labels]
 */
function sum(figures, name, labels = {}) {
  const rows = (figures.get(`aenv_api_${name}`) || []).filter((row) => Object.entries(labels).every(([k, v]) => row.labels[k] === v));
  return rows.reduce((all, row) => all + row.value, 0);
}

/**
 * @param {Figures} figures
 * @param {string} name
 */
function times(figures, name) {
  return quantiles(figures.get(`aenv_api_${name}_bucket`) || [], {}, [0.5, 0.95]);
}

/** @param {number | null} ms */
function upTo(ms) {
  return ms === null ? "–" : Number.isFinite(ms) ? `≤ ${span(ms / 1000)}` : "very long";
}

/** @type {import("../main.js").Page} */
export default async function overview({ signal }) {
  const live = h("div", { class: "grid", id: "figures" });
  const places = h("div", null);
  /** @type {Record<string, (number | null)[]>} */
  const history = { instances: [], creates: [], calls: [] };
  /** @type {{at: number, creates: number, calls: number} | null} */
  let before = null;
  let mayRead = true;
  let tick = 0;
  /** @type {any} */
  let now = { items: [] };
  /** @type {any[]} */
  let ended = [];

  async function figures() {
    if (!mayRead) return null;
    try {
      return parseMetrics(await (await request("GET", "metrics", { signal })).text());
    } catch (error) {
      if (/** @type {any} */ (error).status !== 403) throw error;
      mayRead = false;
      return null;
    }
  }

  async function update() {
    try {
      if (tick++ % LISTED === 0) {
        now = await get("env-instance/list", { limit: 500 }, signal);
        if (tick % ENDED === 1) {
          const [failed, over] = await Promise.all(["Failed", "Terminated"].map((status) => get("env-instance/list", { limit: 1000, status }, signal)));
          ended = [...failed.items, ...over.items.filter((/** @type {any} */ each) => each.ended_by && !PLANNED.has(each.ended_by))];
        }
        swap(places, faults(ended), owners(now.items, Boolean(now.next)), environments(now.items), troubles([...now.items, ...ended]));
      }
      const found = await figures();
      const items = now.items;
      const by = (/** @type {string} */ state) => items.filter((/** @type {any} */ each) => each.status === state).length;
      swap(live, ...(found ? withMetrics(found) : [figure("Running", count(by("Running"))), figure("Waiting or starting", count(by("Pending") + by("Creating"))),
        figure("Rates and latencies", "–", "Your token may not read metrics: that needs the role admin or metrics.")]));
    } catch (error) {
      if (!signal.aborted) swap(live, failure(error));
    }
  }

  /** @param {Figures} found */
  function withMetrics(found) {
    const at = performance.now() / 1000;
    const total = { at, creates: sum(found, "instance_operations_total", { operation: "create" }), calls: sum(found, "mcp_requests_total") };
    const used = sum(found, "places", { state: "used" });
    const rate = (/** @type {"creates" | "calls"} */ name) => (before ? Math.max(0, (total[name] - before[name]) / (at - before.at)) : null);
    for (const [name, value] of /** @type {[string, number | null][]} */ ([["instances", used], ["creates", rate("creates")], ["calls", rate("calls")]])) {
      history[name].push(value);
      if (history[name].length > POINTS) history[name].shift();
    }
    before = total;
    const limit = sum(found, "places", { state: "limit" });
    const [creates, calls] = [times(found, "create_duration_ms"), times(found, "mcp_request_duration_ms")];
    return [
      figure("Instances", count(used), [line(history.instances, "Instances over the last minutes"), limit ? `room for ${count(limit)}` : "no limit set"]),
      figure("Creates per second", number(history.creates.at(-1) ?? null), line(history.creates, "Creates per second over the last minutes")),
      figure("Calls per second", number(history.calls.at(-1) ?? null), line(history.calls, "Calls per second over the last minutes")),
      figure("Being made", count(sum(found, "places", { state: "creating" })), `${count(sum(found, "queue_length"))} wait for room`),
      figure("Create takes", upTo(creates[0]), `19 of 20 ${upTo(creates[1])}`),
      figure("Call takes", upTo(calls[0]), `19 of 20 ${upTo(calls[1])}`),
      figure("Ended", count(sum(found, "instances_ended_total")), ends(found)),
      figure("Refused requests", count(sum(found, "refused_total")), (found.get("aenv_api_refused_total") || []).map((row) => `${count(row.value)} ${plain(row.labels.code)}`).join(", ")),
      figure("Server", bytes(sum(found, "server_resident_bytes")), `up ${span(sum(found, "server_uptime_seconds"))}, ${count(sum(found, "server_open_files"))} open files`),
    ];
  }

  void every(SECONDS, signal, update);
  return h("div", null, heading("Overview", h("span", { class: "quiet" }, "live")), live, places);
}

/** @param {Figures} found */
function ends(found) {
  return (found.get("aenv_api_instances_ended_total") || []).map((row) => `${count(row.value)} ${plain(row.labels.how)}`).join(", ");
}

/**
 * @param {any[]} items
 * @param {boolean} more
 */
function owners(items, more) {
  const rows = tally(items, (each) => each.account || each.owner || "you");
  return h("section", null, h("h2", null, "By user"), more ? h("p", { class: "quiet" }, "The first 500 instances.") : null,
    table("Instances by user", ["User", ["Instances", "right"], ["Memory", "right"], ["Calls", "right"]],
      rows.map(([name, own]) => [plain(name), count(own.length), bytes(total(own, "memory_bytes")), count(total(own, "calls"))]), "No instances run."));
}

/** @param {any[]} items */
function environments(items) {
  const rows = tally(items, (each) => `${each.env?.name}@${each.env?.version}`);
  return h("section", null, h("h2", null, "By environment"),
    table("Instances by environment", ["Environment", ["Instances", "right"], ["Memory", "right"], ["Calls", "right"]],
      rows.map(([name, own]) => [h("a", { href: to(["instances"], { env: name }) }, plain(name)), count(own.length), bytes(total(own, "memory_bytes")), count(total(own, "calls"))]),
      "No instances run."));
}

/**
 * Ended instances by whose fault it was.
 * @param {any[]} items
 */
function faults(items) {
  /** @type {Record<string, number>} */
  const by = {};
  for (const each of items) by[each.fault || "unknown"] = (by[each.fault || "unknown"] || 0) + 1;
  return items.length ? h("section", null, h("h2", null, "Errors by fault, last hour"), h("div", { class: "card" }, outcomes(by))) : null;
}

/** @param {any[]} items */
function troubles(items) {
  const seen = new Map(items.filter((each) => (each.fault && each.status !== "Terminated") || each.status === "Failed" || (each.ended_by && !PLANNED.has(each.ended_by))).map((each) => [each.id, each]));
  const rows = [...seen.values()].sort((a, b) => String(b.ended_at).localeCompare(String(a.ended_at))).slice(0, 20).map((each) => [h("a", { href: to(["instances", each.id]) }, plain(each.id)),
    badge(each.fault || each.status), short(each.reason || "", 200), clock(each.ended_at || each.updated_at)]);
  return h("section", null, h("h2", null, "Failures of the last hour"), table("Failures", ["Instance", "Fault", "Why", "When"], rows, "None."));
}

/**
 * @param {any[]} items
 * @param {(each: any) => string} name
 * @returns {[string, any[]][]}
 */
function tally(items, name) {
  /** @type {Map<string, any[]>} */
  const found = new Map();
  for (const each of items) if (each.status !== "Terminated" && each.status !== "Failed") found.set(name(each), [...(found.get(name(each)) || []), each]);
  return [...found].sort((a, b) => b[1].length - a[1].length);
}

/**
 * @param {any[]} items
 * @param {string} name
 */
function total(items, name) {
  return items.reduce((all, each) => all + (each.usage?.[name] || 0), 0);
}
