// @ts-check
/** A view that an author describes instead of programs: `console/layout.json`, drawn by the console's own parts. */

import { every, path, send } from "../base/api.js";
import { shown } from "../base/content.js";
import { h, swap } from "../base/dom.js";
import { markdown } from "../base/markdown.js";
import { block, button, facts, failure, figure, line, table } from "../base/parts.js";
import { number, plain, pretty, short } from "../base/text.js";

const PARTS = 50;
const ROWS = 500;
const COLUMNS = 60;
const BACK = 400; // events before the chosen one that are looked through for state
const FASTEST = 0.5; // seconds

/**
 * @typedef {{kind: string, title?: string, at?: string, columns?: string[], function?: string, arguments?: any}} Part
 * @typedef {{function?: string, arguments?: any, seconds?: number, tools?: string[], show: Part[]}} Layout
 */

/** @type {Record<string, (value: any, part: Part) => any>} what each kind of part shows of a value */
const KINDS = {
  text: (value) => block(typeof value === "string" ? value : pretty(value)),
  markdown: (value) => markdown(String(value ?? "")),
  json: (value) => block(pretty(JSON.stringify(value, null, 1).slice(0, 200_000))),
  progress: (value) => h("progress", { max: "1", value: Math.max(0, Math.min(1, Number(value) || 0)), "aria-label": "Progress" }),
  line: (value) => line(listed(value).map((each) => (typeof each === "number" && Number.isFinite(each) ? each : null)), "Values in their order"),
  image: (value) => h("div", null, ...shown(typeof value === "string" ? { image_url: { url: value } } : value)),
  facts: (value) => facts(Object.entries(object(value)).slice(0, ROWS).map(([name, each]) => [plain(name), short(each, 200) || "–"])),
  list: (value) => h("ul", null, ...listed(value).slice(0, ROWS).map((each) => h("li", null, short(each, 300)))),
  columns: (value) => h("div", { class: "pair" }, ...Object.entries(object(value)).slice(0, COLUMNS).map(([name, own]) => h("div", null, h("h4", null, plain(name)), KINDS.list(own, { kind: "list" })))),
  table: rows,
  grid: (value) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid" }, h("table", { class: "cells" }, h("tbody", null,
    ...listed(value).slice(0, ROWS).map((row) => h("tr", null, ...(typeof row === "string" ? [...row] : listed(row)).slice(0, COLUMNS * 2).map((cell) => h("td", null, short(cell, 20)))))))),
};

/** @param {any} value */
function figureOf(value) {
  return typeof value === "number" ? number(value) : short(value, 60) || "–";
}

/** @param {any} value @returns {any[]} */
function listed(value) {
  return Array.isArray(value) ? value : [];
}

/** @param {any} value @returns {Record<string, any>} */
function object(value) {
  return typeof value === "object" && value !== null ? value : {};
}

/**
 * @param {any} value a list of objects, or an object of objects
 * @param {Part} part
 */
function rows(value, part) {
  const own = Array.isArray(value) ? value : Object.entries(object(value)).map(([name, each]) => ({ "": name, ...(typeof each === "object" && each !== null ? each : { value: each }) }));
  const names = (Array.isArray(part.columns) ? part.columns.map(String) : [...new Set(own.slice(0, ROWS).flatMap((each) => Object.keys(object(each))))]).slice(0, COLUMNS);
  return table(plain(part.title || "Table"), names.map(plain), own.slice(0, ROWS).map((each) => names.map((name) => short(object(each)[name], 200))));
}

/**
 * The layout in a file.
 * @param {string} text
 * @returns {Layout}
 */
export function parsed(text) {
  const found = JSON.parse(text);
  if (!Array.isArray(found?.show)) throw new Error("console/layout.json has no list `show`");
  return { ...found, show: found.show.slice(0, PARTS).map(object) };
}

/**
 * The value at a JSON Pointer; undefined where there is none.
 * @param {any} state
 * @param {unknown} pointer
 */
function valueAt(state, pointer) {
  if (typeof pointer !== "string" || pointer === "") return state;
  let value = state;
  for (const each of pointer.split("/").slice(1)) {
    const name = each.replaceAll("~1", "/").replaceAll("~0", "~");
    if (typeof value !== "object" || value === null || !Object.hasOwn(value, name)) return undefined;
    value = value[name];
  }
  return value;
}

/**
 * @param {Layout} layout
 * @param {any} state
 * @param {((part: Part) => any) | null} act calls a function of the instance; null: nothing can be called
 */
function drawn(layout, state, act) {
  return layout.show.map((part) => {
    if (part.kind === "figure") return figure(plain(part.title || ""), figureOf(valueAt(state, part.at)));
    if (part.kind === "button") return act ? button(plain(part.title || part.function), () => act(part), { class: "small" }) : null;
    const show = Object.hasOwn(KINDS, part.kind) ? KINDS[part.kind] : null;
    if (!show) return failure(new Error(`console/layout.json: unknown kind ${short(part.kind, 40)}`));
    const value = valueAt(state, part.at);
    return h("section", null, part.title ? h("h3", null, plain(part.title)) : null, value === undefined ? h("p", { class: "quiet" }, "Not there yet.") : show(value, part));
  });
}

/**
 * A layout beside an instance: its function is called again and again, and what it returns is shown.
 * @param {Layout} layout
 * @param {string} id of the instance
 * @param {AbortSignal} signal
 */
export function instanceLayout(layout, id, signal) {
  const node = h("div", { class: "layout" }, h("p", { class: "quiet" }, "Waiting for the instance."));
  const call = (/** @type {string} */ name, /** @type {any} */ given) => send("POST", `${path("instance", id)}/functions/${path(name)}`, object(given), signal);
  let last = "";
  async function refresh() {
    if (!layout.function || !node.isConnected && last) return;
    try {
      const state = await call(String(layout.function), layout.arguments);
      const text = JSON.stringify(state);
      if (text !== last) swap(node, ...drawn(layout, state, act)); // what has not changed keeps its focus and its scroll
      last = text;
    } catch (error) {
      last = "";
      if (!signal.aborted) swap(node, failure(error));
    }
  }
  async function act(/** @type {Part} */ part) {
    await call(String(part.function), part.arguments);
    await refresh();
  }
  if (layout.function) void every(Math.max(FASTEST, Number(layout.seconds) || 2), signal, refresh);
  else swap(node, h("p", { class: "quiet" }, "This view is for episodes: its layout names no function."), ...drawn({ show: layout.show.filter((each) => each.kind === "button") }, null, act));
  return node;
}

/**
 * A layout beside an episode: it shows the last result at or before the chosen event that has state in it.
 * @param {Layout} layout
 * @param {(start: number, most: number) => Promise<any[]>} read events of the episode
 */
export function episodeLayout(layout, read) {
  const node = h("div", { class: "layout" }, h("p", { class: "quiet" }, "Choose an event."));
  let newest = -1;
  return {
    node,
    show: async (/** @type {any} */ event) => {
      newest = event.seq;
      try {
        const from = Math.max(0, event.seq - BACK);
        const state = stateIn(layout, await read(from, event.seq - from + 1));
        if (newest !== event.seq) return;
        swap(node, ...(state ? [h("p", { class: "quiet" }, `after event ${state.seq}`), ...drawn(layout, state.value, null)] : [h("p", { class: "quiet" }, "No result before this event has state in it.")]));
      } catch (error) {
        swap(node, failure(error));
      }
    },
  };
}

/**
 * The newest result that is an object or a list.
 * @param {Layout} layout
 * @param {any[]} events
 */
function stateIn(layout, events) {
  const wanted = Array.isArray(layout.tools) ? new Set(layout.tools.map(String)) : null;
  const calls = new Map(events.filter((each) => each.kind === "call").map((each) => [each.id, each]));
  for (const event of events.reverse()) {
    if (event.kind !== "result" || event.is_error) continue;
    const call = calls.get(event.id);
    if (wanted ? !wanted.has(call?.[call?.of]) : call?.of === "reward") continue;
    const value = event.structured ?? jsonOf(Array.isArray(event.content) ? event.content[0]?.text : event.content);
    if (typeof value === "object" && value !== null) return { seq: event.seq, value };
  }
  return null;
}

/** @param {unknown} text */
function jsonOf(text) {
  try {
    return typeof text === "string" ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
