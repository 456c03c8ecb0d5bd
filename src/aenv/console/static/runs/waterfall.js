// @ts-check
/** Where the time of an episode went: its model requests, calls and reward as spans, made of its events alone. */

import { h, svg } from "../base/dom.js";
import { facts } from "../base/parts.js";
import { settings } from "../base/settings.js";
import { count, plain, short, span } from "../base/text.js";

const SHOWN = 300; // spans; of more, the longest
const WIDTH = 1000;

/**
 * @typedef {{seq: number, kind: string, name: string, from: number, to: number, wrong: boolean}} Span
 * @typedef {{spans: Span[], from: number, to: number, trace: string}} Spans
 */

/**
 * The spans of an episode.
 * @param {AsyncIterable<any>} events
 * @returns {Promise<Spans>}
 */
export async function spansOf(events) {
  /** @type {Map<string, any>} */
  const calls = new Map();
  /** @type {Spans} */
  const found = { spans: [], from: Infinity, to: -Infinity, trace: "" };
  for await (const event of events) {
    if (typeof event.at !== "number") continue;
    found.from = Math.min(found.from, event.at);
    found.to = Math.max(found.to, event.at);
    const took = typeof event.seconds === "number" && event.seconds >= 0 ? event.seconds : null;
    if (event.kind === "begin" && /^[0-9a-f]{32}$/.test(event.trace)) found.trace = event.trace;
    else if (event.kind === "call") calls.set(String(event.id), event);
    else if (event.kind === "message" && event.role === "assistant" && took !== null)
      found.spans.push({ seq: event.seq, kind: "model", name: String(event.model ?? ""), from: event.at - took, to: event.at, wrong: false });
    else if (event.kind === "result") {
      const call = calls.get(String(event.id));
      calls.delete(String(event.id));
      const wrong = Boolean(event.is_error || event.error || event.fault);
      const from = call && typeof call.at === "number" ? call.at : event.at - (took ?? 0);
      if (call) found.spans.push({ seq: call.seq, kind: String(call.of), name: String(call[call.of] ?? ""), from, to: event.at, wrong });
    }
  }
  for (const each of found.spans) found.from = Math.min(found.from, each.from);
  return found;
}

/** @param {Span[]} spans sorted by their begin; how long at least one of them was open */
function covered(spans) {
  let [seconds, until] = [0, -Infinity];
  for (const each of spans) {
    seconds += Math.max(0, each.to - Math.max(until, each.from));
    until = Math.max(until, each.to);
  }
  return seconds;
}

/**
 * @param {Spans} found
 * @param {(seq: number) => void} jump
 */
export function waterfall({ spans, from, to, trace }, jump) {
  const all = [...spans].sort((a, b) => a.from - b.from);
  const whole = Math.max(to - from, 1e-6);
  const kinds = [...new Set(all.map((each) => each.kind))].sort();
  const share = (/** @type {number} */ seconds) => `${span(seconds)}, ${Math.round((100 * seconds) / whole)} %`;
  const of = (/** @type {string} */ kind) => all.filter((each) => each.kind === kind);
  /** @type {[string, any][]} */
  const sums = kinds.map((kind) => [plain(kind), `${count(of(kind).length)}: ${share(covered(of(kind)))}`]);
  const shown = all.length > SHOWN ? [...all].sort((a, b) => b.to - b.from - (a.to - a.from)).slice(0, SHOWN).sort((a, b) => a.from - b.from) : all;
  const rows = shown.map((each) => h("tr", null,
    h("td", null, h("button", { type: "button", class: "link", on: { click: () => jump(each.seq) } }, h("span", { class: `kind ${each.wrong ? "wrong" : ""}` }, plain(each.kind)), short(each.name, 40) || "–")),
    h("td", { class: "right" }, span(each.from - from)), h("td", { class: "right" }, span(each.to - each.from)),
    h("td", { class: "bars" }, bar((each.from - from) / whole, (each.to - each.from) / whole, each))));
  return h("section", { class: "card waterfall", "aria-label": "Trace of the episode" },
    facts([["In all", span(whole)], ...sums, ["In none of them", all.length ? share(Math.max(0, whole - covered(all))) : null], ["Trace", traceLink(trace)]]),
    all.length > SHOWN ? h("p", { class: "quiet" }, `The ${SHOWN} longest of ${count(all.length)} spans.`) : null,
    all.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Spans" }, h("table", null, h("caption", { class: "unseen" }, "Spans in the order of their begin"),
      h("thead", null, h("tr", null, ...["Span", "After", "Took"].map((each, i) => h("th", { scope: "col", class: i ? "right" : "" }, each)), h("th", { scope: "col", class: "bars" }, "In the episode"))), h("tbody", null, ...rows)))
      : h("p", { class: "quiet" }, "No event of this episode took time."));
}

/**
 * @param {number} start
 * @param {number} length
 * @param {Span} each
 */
function bar(start, length, each) {
  const kind = ["model", "tool", "function", "reward"].includes(each.kind) ? each.kind : "other";
  return svg("svg", { viewBox: `0 0 ${WIDTH} 10`, class: `span ${kind}${each.wrong ? " wrong" : ""}`, role: "img", "aria-label": `${Math.round(start * 100)} % to ${Math.round((start + length) * 100)} %`, preserveAspectRatio: "none" },
    svg("rect", { x: Math.min(WIDTH - 3, start * WIDTH), y: 0, width: Math.max(3, length * WIDTH), height: 10 }));
}

/** @param {string} trace id of a trace of OpenTelemetry */
export function traceLink(trace) {
  if (!trace) return null;
  const place = settings().trace_url;
  return place ? h("a", { href: place.replaceAll("{trace}", trace), target: "_blank", rel: "noopener noreferrer" }, trace) : h("code", null, trace);
}
