// @ts-check
/** One episode: its timeline, which is paged by the server and windowed here; and where it parts from another. */

import { every, get, path } from "../base/api.js";
import { isStatic } from "../base/files_api.js";
import { h, say, swap, to } from "../base/dom.js";
import { details, isError, KINDS, label, summary } from "./events.js";
import { badge, button, choices, facts, failure, field, heading, select } from "../base/parts.js";
import { EventPager } from "./pager.js";
import { parting } from "./parting.js";
import { frames, player } from "./recording.js";
import { replayer } from "./replay.js";
import { clock, count, plain, span } from "../base/text.js";
import { episodeView, viewOf } from "../hub/view.js";
import { spansOf, waterfall } from "./waterfall.js";
import { loadSettings } from "../base/settings.js";
import { WindowedList } from "../base/windowed.js";

/** @type {import("../main.js").Page} */
export default async function episode({ parts, query, signal, put }) {
  let about = await get(path("trajectories", parts[1]), {}, signal);
  const wanted = { kind: query.kind || "", q: query.q || "" };
  /** @type {number[] | null} numbers of the events that the filter lets through; null: all */
  let chosen = null;
  let total = about.events ?? 0;
  let searching = new AbortController();
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const found = h("span", { class: "quiet", role: "status" });
  const pager = new EventPager(about.id, signal, () => list.draw());
  /** @type {ReturnType<typeof episodeView> | null} */
  let beside = null;
  /** @type {any} the event that is shown */
  let shown = null;
  const view = h("div", null);
  if (about.environment?.name && !isStatic)
    void viewOf(about.environment.name, about.environment.version, signal).then((files) => {
      if (!files) return;
      try {
        beside = episodeView(files, about, (start, most) => pager.read(start, most), signal);
      } catch (error) {
        return swap(view, failure(error));
      }
      if (shown) void beside.show(shown); // it was chosen before the view was there
      swap(view, h("section", { "aria-label": "View of the environment" }, h("h2", null, "View of the environment"), beside.node));
    });
  const number = (/** @type {number} */ row) => (chosen ? chosen[row] : row);
  const list = new WindowedList("Timeline of the episode", (row) => cells(pager.at(number(row)), number(row)), async (row) => {
    const event = await pager.wait(number(row)).catch((/** @type {any} */ error) => ({ error }));
    if (list.current !== row || !event) return;
    put({ at: number(row) });
    swap(detail, event.kind ? details(event) : failure(event.error));
    if (event.kind) {
      shown = event;
      void beside?.show(event);
    }
  });

  /**
   * @param {any} event
   * @param {number} index
   */
  function cells(event, index) {
    const when = event && typeof event.at === "number" ? span(Math.max(0, event.at - about.began)) : "";
    return [h("span", { class: "seq" }, String(index)), h("span", { class: "when" }, when),
      h("span", { class: `kind ${event && isError(event) ? "wrong" : ""}` }, event ? label(event) : "…"), h("span", { class: "what" }, event ? summary(event) : "")];
  }

  /** Show only events of a kind, or with some words. The server has no such question, so all events pass by once. */
  async function filter() {
    searching.abort();
    searching = new AbortController();
    const own = searching.signal;
    list.current = -1;
    if (!wanted.kind && !wanted.q) {
      chosen = null;
      found.textContent = "";
      return list.resize(total);
    }
    chosen = [];
    list.resize(0);
    const words = wanted.q.toLowerCase();
    let seen = 0;
    for await (const event of pager.all()) {
      if (own.aborted || signal.aborted) return;
      const fits = (!wanted.kind || (wanted.kind === "errors" ? isError(event) : event.kind === wanted.kind)) && (!words || JSON.stringify(event).toLowerCase().includes(words));
      if (fits) chosen.push(event.seq);
      if (++seen % 1000 === 0) {
        found.textContent = `${count(chosen.length)} of ${count(seen)}…`;
        list.resize(chosen.length);
      }
    }
    found.textContent = `${count(chosen.length)} of ${count(seen)} events`;
    list.resize(chosen.length);
  }

  /** @param {1 | -1} way */
  async function toError(way) {
    const here = list.current >= 0 ? number(list.current) : way > 0 ? -1 : total;
    if (way > 0) {
      for await (const event of pager.all(here + 1)) if (isError(event)) return jump(event.seq);
    } else {
      for (let start = here; start > 0; ) {
        const from = Math.max(0, start - 1000);
        const before = (await pager.read(from, start - from)).filter(isError).at(-1);
        if (before) return jump(before.seq);
        start = from;
      }
    }
    say(way > 0 ? "no further error" : "no earlier error");
    found.textContent = way > 0 ? "no further error" : "no earlier error";
  }

  /** @param {number} seq */
  function jump(seq) {
    const row = chosen ? chosen.findIndex((each) => each >= seq) : seq;
    if (row >= 0) list.choose(row);
  }

  const form = choices([select("Show", "kind", ["", "errors", ...KINDS], wanted.kind), field("Search", "q", wanted.q, { type: "search", id: "search" })], (values) => {
    Object.assign(wanted, values);
    put(values);
    void filter().catch((error) => swap(detail, failure(error)));
  });
  const again = replayer(pager, signal, jump);
  const played = h("div", null);
  const other = h("input", { "aria-label": "Id of another episode", placeholder: "id of another episode", size: "22", spellcheck: "false" });
  const compare = button("Compare", () => {
    if (other.value.trim()) location.hash = to(["episode", about.id], { with: other.value.trim() }).slice(1);
  }, { class: "small" });
  const tape = button("Terminal", async () => swap(played, played.childElementCount ? null : player(await frames(pager.all()), signal, jump)), { class: "small", title: "Play back what terminals showed" });
  const timed = h("div", null);
  const times = button("Trace", async () => {
    await loadSettings();
    swap(timed, timed.childElementCount ? null : waterfall(await spansOf(pager.all()), jump));
    put({ trace: timed.childElementCount ? 1 : null });
  }, { class: "small", title: "Where the time went, and the trace of OpenTelemetry" });
  if (query.trace) times.click();
  const actions = h("div", { class: "row" }, isStatic ? null : again.start, tape, times, other, compare);
  form.append(button("Next error", () => toError(1), { class: "small" }), found, h("span", { class: "quiet keys" }, "Keys: j k next, previous · e E error · / search"));
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (/** @type {any} */ (event.target).closest?.("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { j: () => list.choose(list.current + 1), k: () => list.choose(list.current - 1), e: () => void toError(1), E: () => void toError(-1), "/": () => document.getElementById("search")?.focus() }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  document.addEventListener("keydown", keys);
  signal.addEventListener("abort", () => document.removeEventListener("keydown", keys));

  if (about.state === "running") {
    void every(2, signal, async () => {
      if (about.state !== "running") return;
      const before = total;
      for await (const event of pager.all(total)) total = event.seq + 1;
      about = await get(path("trajectories", about.id), {}, signal);
      total = Math.max(total, about.events ?? 0);
      if (total !== before) pager.forgetFrom(before);
      if (!chosen) list.resize(total);
      swap(head, ...heads(about));
    });
  }
  const head = h("div", null, ...heads(about));
  const apart = query.with ? await parting(about, query.with, signal, (seq) => jump(seq)) : null;
  list.resize(total);
  requestAnimationFrame(async () => {
    if (wanted.kind || wanted.q) await filter().catch((error) => swap(detail, failure(error)));
    if (query.at !== undefined) jump(Number(query.at));
  });
  return h("div", { class: "episode" }, head, apart, actions, again.place, played, timed, form, h("div", { class: "split" }, list.node, detail), view);
}

/** @param {any} about */
function heads(about) {
  const env = about.environment || {};
  const why = about.failure_reason || about.error?.message || (typeof about.error === "string" ? about.error : "");
  return [heading(plain(about.task), badge(about.outcome || about.state)),
    h("p", { class: "quiet" }, h("a", { href: to(["runs", about.run]) }, plain(about.run)), " · ", h("a", { href: to(["group", about.run, about.task]) }, "all samples"), ` · ${plain(about.id)}`),
    why ? h("p", { class: "failure" }, plain(why), about.fault ? h("span", null, " ", badge(about.fault)) : null) : null,
    facts([["Reward", about.reward === null || about.reward === undefined ? "none" : plain(JSON.stringify(about.reward))], ["Sample", `${about.sample}, attempt ${about.attempt}${about.final ? "" : ", not the result of its sample"}`],
      ["Environment", plain(env.version ? `${env.name}@${env.version}` : env.name || "")], ["Agent", plain(about.agent?.name || "")], ["Model", plain(typeof about.model === "string" ? about.model : about.model?.name || "")],
      ["Began", clock(about.began)], ["Took", about.seconds !== null ? span(about.seconds) : null], ["Events", count(about.events)], ["Steps", about.steps], ["Tokens", about.tokens && plain(Object.entries(about.tokens).map(([k, v]) => `${v} ${k}`).join(", "))],
      ["From", about.parents?.length ? h("span", null, ...about.parents.map((/** @type {any} */ each) => h("a", { href: to(["episode", String(each.episode)]) }, plain(each.kind)))) : null]])];
}
