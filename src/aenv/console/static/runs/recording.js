// @ts-check
/** What a terminal showed during an episode, played back: commands with their output, and screens. */

import { h, swap } from "../base/dom.js";
import { button } from "../base/parts.js";
import { plain, span } from "../base/text.js";

const LONGEST = 1500; // milliseconds of a pause between two frames, whatever it was
const MOST = 5000; // frames
const KEPT = 60_000; // characters of a transcript

/**
 * @typedef {{at: number, seq: number, text: string}} Frame
 * @param {AsyncIterable<any>} events
 * @returns {Promise<Frame[]>}
 */
export async function frames(events) {
  /** @type {Map<string, any>} */
  const calls = new Map();
  /** @type {Frame[]} */
  const found = [];
  let transcript = "";
  for await (const event of events) {
    if (event.kind === "call") calls.set(event.id, event);
    if (event.kind !== "result" || found.length >= MOST) continue;
    const call = calls.get(event.id);
    calls.delete(event.id);
    const data = dataOf(event);
    const typed = call?.arguments?.command ?? call?.arguments?.cmd;
    if (typeof data?.screen === "string") found.push({ at: event.at, seq: event.seq, text: data.screen });
    else if (typeof typed === "string") {
      transcript = `${transcript}$ ${typed}\n${outputOf(data, event)}`.slice(-KEPT);
      if (!transcript.endsWith("\n")) transcript += "\n";
      found.push({ at: event.at, seq: event.seq, text: transcript });
    }
  }
  return found;
}

/** @param {any} event a result */
function dataOf(event) {
  if (event.structured && typeof event.structured === "object") return event.structured;
  const text = Array.isArray(event.content) ? event.content[0]?.text : event.content;
  if (typeof text !== "string") return null;
  try {
    return JSON.parse(text);
  } catch {
    return { output: text };
  }
}

/**
 * @param {any} data
 * @param {any} event
 */
function outputOf(data, event) {
  const out = Array.isArray(data?.output) ? data.output[0] : (data?.output ?? data?.stdout);
  return typeof out === "string" ? out + (typeof data?.stderr === "string" ? data.stderr : "") : event.error?.message || "";
}

/**
 * A player of frames.
 * @param {Frame[]} found
 * @param {AbortSignal} signal
 * @param {(seq: number) => void} jump
 */
export function player(found, signal, jump) {
  if (!found.length) return h("p", { class: "quiet" }, "No call of this episode used a terminal.");
  const screen = h("pre", { class: "block screen", tabindex: "0", "aria-label": "Terminal" });
  const slider = h("input", { type: "range", min: "0", max: String(found.length - 1), value: "0", "aria-label": "Frame" });
  const when = h("span", { class: "quiet" });
  let at = 0;
  /** @type {any} */
  let timer = null;

  /** @param {number} number */
  function show(number) {
    at = Math.max(0, Math.min(found.length - 1, number));
    slider.value = String(at);
    swap(screen, plain(found[at].text));
    screen.scrollTop = screen.scrollHeight;
    when.textContent = `${at + 1} of ${found.length}, after ${span(found[at].at - found[0].at)}`;
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    play.textContent = "Play";
  }

  function next() {
    if (at + 1 >= found.length) return stop();
    const pause = Math.min(LONGEST, Math.max(60, (found[at + 1].at - found[at].at) * 1000));
    timer = setTimeout(() => (show(at + 1), next()), pause);
  }

  const play = button("Play", () => {
    if (timer) return stop();
    if (at + 1 >= found.length) show(0);
    play.textContent = "Pause";
    next();
  }, { class: "small" });
  slider.addEventListener("input", () => (stop(), show(Number(slider.value))));
  signal.addEventListener("abort", stop);
  show(0);
  return h("section", { "aria-label": "Terminal of the episode" }, screen, h("p", { class: "row player" }, play, slider, when, button("Show the event", () => jump(found[at].seq), { class: "small" })));
}
