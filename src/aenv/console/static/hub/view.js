// @ts-check
/** The view that an environment's author ships in `console/`: pages in a sandboxed frame, or a layout that we draw. */

import { get, path, send } from "../base/api.js";
import { PageFrame } from "../base/frame.js";
import { h } from "../base/dom.js";
import { plain } from "../base/text.js";
import { bundle, textOf } from "./bundle.js";
import { episodeLayout, instanceLayout, parsed } from "./layout.js";

const FOLDER = "console/";
const ENTRY = "console/index.html";
const LAYOUT = "console/layout.json";
const MOST = 2 << 20; // bytes of all files of a view

/**
 * The files of an environment's view; null where it has none.
 * @param {string} name of the environment
 * @param {string} version
 * @param {AbortSignal} signal
 * @returns {Promise<Record<string, string> | null>}
 */
export async function viewOf(name, version, signal) {
  try {
    const one = await get(path("api", "v1", "environments", name), { ref: version }, signal);
    const found = await bundle(one.digest, signal);
    if (!found.has(ENTRY) && !found.has(LAYOUT)) return null;
    const own = [...found.values()].filter((each) => each.path.startsWith(FOLDER));
    if (own.reduce((all, each) => all + each.size, 0) > MOST) return null;
    const texts = await Promise.all(own.map((each) => textOf(each, signal)));
    return Object.fromEntries(own.map((each, i) => /** @type {[string, string]} */ ([each.path, texts[i] ?? ""])));
  } catch {
    return null; // no hub here, or a version that it no longer has
  }
}

/**
 * A view beside an instance: it may call the functions of this instance, no tools and no rewards.
 * @param {Record<string, string>} files
 * @param {string} id of the instance
 * @param {AbortSignal} signal
 */
export function instanceView(files, id, signal) {
  if (!files[ENTRY]) return instanceLayout(parsed(files[LAYOUT]), id, signal);
  const frame = new PageFrame({
    title: "View of the environment",
    call: (name, given) => send("POST", `${path("instance", id)}/functions/${path(name)}`, given, signal),
    listens: (kind) => kind === "instance" && frame.tell({ aenv: "instance", value: { id } }),
  });
  signal.addEventListener("abort", () => frame.close());
  void frame.show(files, ENTRY);
  return h("div", null, frame.node, note());
}

/**
 * A view beside an episode: it is told of the event that is chosen, and calls nothing.
 * @param {Record<string, string>} files
 * @param {any} about the episode
 * @param {(start: number, most: number) => Promise<any[]>} read events of the episode
 * @param {AbortSignal} signal
 */
export function episodeView(files, about, read, signal) {
  if (!files[ENTRY]) return episodeLayout(parsed(files[LAYOUT]), read);
  /** @type {any} the chosen event, for a view that begins to listen after it was chosen */
  let chosen = null;
  const frame = new PageFrame({
    title: "View of the environment",
    call: async () => {
      throw new Error("an episode is over: nothing can be called");
    },
    listens: (kind) => {
      if (kind === "episode") frame.tell({ aenv: "episode", value: { id: about.id, task: about.task, reward: about.reward } });
      else if (kind === "event" && chosen) frame.tell({ aenv: "event", value: chosen });
    },
  });
  signal.addEventListener("abort", () => frame.close());
  void frame.show(files, ENTRY);
  return {
    node: h("div", null, frame.node, note()),
    show: (/** @type {any} */ event) => frame.tell({ aenv: "event", value: (chosen = event) }),
  };
}

function note() {
  return h("p", { class: "quiet" }, plain("This view comes with the environment. It runs without rights, and reaches no network."));
}
