// @ts-check
/** Events of an episode: one line for each, all of it for one, and which events count as equal. */

import { shown } from "../base/content.js";
import { h } from "../base/dom.js";
import { badge, block, facts } from "../base/parts.js";
import { clock, plain, pretty, short, span } from "../base/text.js";
import { tokens } from "./tokens.js";

export const KINDS = ["message", "call", "result", "state", "usage", "note", "begin", "end"];
const STEPS = new Set(["message", "call", "result", "state"]);
const IGNORED = new Set(["seq", "at", "seconds", "usage", "id", "tool_call_id", "prompt_token_ids", "token_ids", "logprobs", "model", "first_token_seconds"]);

/** @param {any} event */
export function isError(event) {
  return Boolean((event.kind === "result" && (event.is_error || event.error)) || event.fault || (event.kind === "end" && event.outcome && event.outcome !== "ok"));
}

/** @param {any} event */
export function isStep(event) {
  return STEPS.has(event.kind);
}

/**
 * The text of an event without what differs between any two episodes: times, token counts, ids of calls.
 * @param {any} event
 */
export function essence(event) {
  return JSON.stringify(event, (name, value) => (IGNORED.has(name) ? undefined : value));
}

/** @param {any} event */
export function summary(event) {
  switch (event.kind) {
    case "begin":
      return short(event.task?.instruction || event.task?.id || "");
    case "message":
      return short([content(event.content), ...callsOf(event).map((each) => `→ ${each.function?.name || each.name || ""}(${each.function?.arguments ?? JSON.stringify(each.arguments ?? {})})`)].filter(Boolean).join(" "));
    case "call":
      return short(`${event[event.of] || event.of || ""}(${JSON.stringify(event.arguments ?? {})})`);
    case "result":
      return short(event.error ? (event.error.message ?? event.error) : content(event.content) || event.structured);
    case "end":
      return short(`${event.outcome}${event.reward === null || event.reward === undefined ? ", no reward" : `, reward ${JSON.stringify(event.reward)}`}${event.failure_reason ? `: ${event.failure_reason}` : ""}`);
    case "note":
      return short(event.text || event.data);
    default:
      return short(JSON.stringify({ ...event, seq: undefined, at: undefined, kind: undefined }));
  }
}

/**
 * @param {any} event
 * @returns {any[]} the tool calls of a message, as far as they are any
 */
function callsOf(event) {
  return Array.isArray(event.tool_calls) ? event.tool_calls.filter((/** @type {any} */ each) => each && typeof each === "object") : [];
}

/** @param {any} value */
function content(value) {
  if (typeof value === "string") return value;
  return (Array.isArray(value) ? value : []).map((each) => each?.text ?? `[${each?.type || "?"}]`).join(" ");
}

/** @param {any} event */
export function label(event) {
  return plain(event.kind === "message" ? event.role || "message" : event.kind);
}

/**
 * All of an event.
 * @param {any} event
 */
export function details(event) {
  const calls = callsOf(event).map((each) => h("div", null, h("h3", null, "calls ", h("code", null, plain(each.function?.name || each.name || ""))), block(pretty(text(each.function?.arguments ?? each.arguments)))));
  return h("article", { class: "event" },
    h("h2", null, `${event.seq} · ${label(event)} `, isError(event) ? badge("error") : null, event.fault ? badge(event.fault) : null),
    facts([["When", clock(event.at)], ["Took", event.seconds !== undefined && span(event.seconds)], ["First token after", event.first_token_seconds !== undefined && span(event.first_token_seconds)],
      ["Tokens", event.usage && plain(`${event.usage.input_tokens ?? event.usage.prompt_tokens ?? "?"} in, ${event.usage.output_tokens ?? event.usage.completion_tokens ?? "?"} out`)],
      ["Ended by", event.finish_reason && plain(event.finish_reason)], ["Outcome", event.outcome && badge(event.outcome)], ["Reward", event.kind === "end" && plain(JSON.stringify(event.reward ?? null) === "null" ? "none" : JSON.stringify(event.reward))]]),
    ...shown(event.content), ...calls,
    event.arguments !== undefined ? block(pretty(event.arguments)) : null,
    event.kind === "note" && event.text ? block(event.text) : null,
    event.structured ?? event.data ? block(pretty(event.structured ?? event.data)) : null,
    event.error ? block(pretty(event.error), "wrong") : null,
    event.failure_reason ? block(event.failure_reason, "wrong") : null,
    tokens(event),
    h("details", null, h("summary", null, "The event as JSON"), block(pretty(JSON.stringify(event, null, 1).slice(0, 200_000)))));
}

/** @param {any} raw */
function text(raw) {
  if (typeof raw !== "string") return raw;
  try {
    return JSON.parse(raw);
  } catch {
    return raw;
  }
}
