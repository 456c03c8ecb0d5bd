// @ts-check
/** What the platform does now: room, instances, rates, latencies, failures. */

import { every, get, parseMetrics, request } from "./api.js";
import { h, swap, to } from "./dom.js";
import { badge, failure, figure, heading, line, table } from "./parts.js";
import { bytes, clock, count, number, plain, short, span } from "./text.js";

const SECONDS = 2;
const POINTS = 150;
const LISTED = 3; // the list costs more than the figures: every third time

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
 * A quantile of a histogram, in milliseconds: the upper bound of its bucket.
 * @param {Figures} figures
 * @param {string} name
 * @param {number} share
 */
function quantile(figures, name, share) {
  /** @type {Map<number, number>} */
  const buckets = new Map();
  for (const { labels, value } of figures.get(`aenv_api_${name}_bucket`) || []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    buckets.set(bound, (buckets.get(bound) || 0) + value);
  }
  const rising = [...buckets].sort((a, b) => a[0] - b[0]);
  const all = rising.at(-1)?.[1] || 0;
  return all ? (rising.find(([, n]) => n >= share * all)?.[0] ?? null) : null;
}

/** @param {number | null} ms */
function upTo(ms) {
  return ms === null ? "–" : Number.isFinite(ms) ? `≤ ${span(ms / 1000)}` : "very long";
}

/** @type {import("./main.js").Page} */
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
  /** @type {any} */
  let ended = { items: [] };

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
        [now, ended] = await Promise.all([get("env-instance/list", { limit: 500 }, signal), get("env-instance/list", { limit: 50, status: "Failed" }, signal)]);
        swap(places, owners(now.items, Boolean(now.next)), environments(now.items), troubles([...now.items, ...ended.items]));
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
    return [
      figure("Instances", count(used), [line(history.instances, "Instances over the last minutes"), limit ? `room for ${count(limit)}` : "no limit set"]),
      figure("Creates per second", number(history.creates.at(-1) ?? null), line(history.creates, "Creates per second over the last minutes")),
      figure("Calls per second", number(history.calls.at(-1) ?? null), line(history.calls, "Calls per second over the last minutes")),
      figure("Being made", count(sum(found, "places", { state: "creating" })), `${count(sum(found, "queue_length"))} wait for room`),
      figure("Create takes", upTo(quantile(found, "create_duration_ms", 0.5)), `19 of 20 ${upTo(quantile(found, "create_duration_ms", 0.95))}`),
      figure("Call takes", upTo(quantile(found, "mcp_request_duration_ms", 0.5)), `19 of 20 ${upTo(quantile(found, "mcp_request_duration_ms", 0.95))}`),
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

/** @param {any[]} items */
function troubles(items) {
  const seen = new Map(items.filter((each) => each.fault || each.status === "Failed").map((each) => [each.id, each]));
  const rows = [...seen.values()].slice(0, 20).map((each) => [h("a", { href: to(["instances", each.id]) }, plain(each.id)),
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
