// @ts-check
/** Every metric of the platform, live and without a Prometheus; and where Prometheus and Grafana find the same. */

import { every, parseMetrics, request, ROOT } from "../base/api.js";
import { h, swap } from "../base/dom.js";
import { choices, failure, field, heading, line, select, table } from "../base/parts.js";
import { count, number, plain } from "../base/text.js";
import { quantiles } from "./quantiles.js";

const SECONDS = 3;
const POINTS = 200;
const ROWS = 40; // series of one metric

/** @type {import("../main.js").Page} */
export default async function metrics({ query, signal, put }) {
  const place = h("div", null, h("p", { class: "quiet" }, "Loading…"));
  const wanted = { q: query.q || "", show: query.show || "with values" };
  /** @type {Map<string, {values: (number | null)[], last: number}>} */
  const history = new Map();
  let before = 0;

  async function update() {
    try {
      const text = await (await request("GET", "metrics", { signal })).text();
      draw(text);
    } catch (error) {
      if (signal.aborted) return;
      const refused = /** @type {any} */ (error).status === 403;
      swap(place, refused ? h("p", { class: "note" }, "Your token may not read metrics: that needs the role admin or metrics.") : failure(error));
    }
  }

  /** @param {string} text */
  function draw(text) {
    const about = headers(text);
    const found = parseMetrics(text);
    const now = performance.now() / 1000;
    const passed = before ? now - before : 0;
    before = now;
    const sections = [];
    for (const [name, { kind, help }] of about) {
      const rows = (kind === "histogram" ? found.get(`${name}_count`) : found.get(name)) || [];
      const shown = rows.slice(0, ROWS).map((row) => {
        const key = name + JSON.stringify(row.labels);
        const own = history.get(key) || { values: [], last: NaN };
        const rate = passed && !Number.isNaN(own.last) ? Math.max(0, (row.value - own.last) / passed) : null;
        own.values.push(kind === "gauge" ? row.value : rate);
        if (own.values.length > POINTS) own.values.shift();
        own.last = row.value;
        history.set(key, own);
        const times = kind === "histogram" ? quantiles(found.get(`${name}_bucket`) || [], row.labels) : null;
        return [plain(Object.entries(row.labels).map(([k, v]) => `${k}=${v}`).join(", ") || "all"), number(row.value), kind === "gauge" ? "" : number(rate), times ? times.map((each) => (each === null ? "–" : number(each))).join(" / ") : "",
          line(own.values, `${name} over time`)];
      });
      const fits = (!wanted.q || name.includes(wanted.q) || help.toLowerCase().includes(wanted.q.toLowerCase())) && (wanted.show === "all" || rows.length > 0);
      if (!fits) continue;
      sections.push(h("section", null, h("h2", null, h("code", null, plain(name)), h("small", null, ` ${plain(kind)}`)), h("p", { class: "quiet" }, plain(help)),
        table(name, ["Labels", [kind === "histogram" ? "Count" : "Value", "right"], ["Per second", "right"], ["p50 / p95 / p99", "right"], "Over time"], shown, "Nothing yet."),
        rows.length > ROWS ? h("p", { class: "quiet" }, `${count(rows.length - ROWS)} more series.`) : null));
    }
    swap(place, ...(sections.length ? sections : [h("p", { class: "quiet" }, "No metric fits.")]));
  }

  const form = choices([field("Search", "q", wanted.q, { type: "search" }), select("Show", "show", ["with values", "all"], wanted.show)], (values) => {
    Object.assign(wanted, values);
    put(values);
    void update();
  });
  void every(SECONDS, signal, update);
  return h("div", null, heading("Metrics", h("span", { class: "quiet" }, "live")), form,
    h("p", { class: "quiet" }, "Prometheus reads the same at ", h("code", null, plain(new URL("metrics", ROOT).href)), "; a dashboard for Grafana is in ", h("code", null, "deploy/grafana/aenv.json"), "."), place);
}

/**
 * Kind and meaning of each metric.
 * @param {string} text
 */
function headers(text) {
  /** @type {Map<string, {kind: string, help: string}>} */
  const found = new Map();
  for (const row of text.split("\n")) {
    const parts = /^# (HELP|TYPE) (\S+) (.*)$/.exec(row);
    if (!parts) continue;
    const own = found.get(parts[2]) || { kind: "gauge", help: "" };
    parts[1] === "HELP" ? (own.help = parts[3]) : (own.kind = parts[3]);
    found.set(parts[2], own);
  }
  return found;
}
