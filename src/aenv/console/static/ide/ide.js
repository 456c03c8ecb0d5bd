// @ts-check
/** The Mini Program IDE: talk to a model that writes a web app, see it run, and look at its files and their history. */

import { every, get, path, send } from "../base/api.js";
import { h, say, swap, to } from "../base/dom.js";
import { badge, button, failure, heading, tabs } from "../base/parts.js";
import { plain } from "../base/text.js";
import { chat, model } from "../hub/chat.js";
import { saved } from "../instances/files.js";
import { Preview } from "./preview.js";
import { sources } from "./sources.js";

const SECONDS = 2;
const SYSTEM = "You write a small web app with the tools. index.html is its entry; use relative names for scripts and styles. "
  + "There is no network in the preview. After a change, build the app and read the browser's console, and fix what they say.";

/** @type {import("../main.js").Page} */
export default async function ide({ parts, query, signal, put }) {
  const id = parts[1];
  const base = path("instance", id);
  const ask = (/** @type {string} */ name, /** @type {any} */ given = {}) => send("POST", `${base}/functions/${path(name)}`, given, signal);
  const [instance, named, tools, kept] = await Promise.all([get(path("env-instance", id), {}, signal), model(signal), get(`${base}/tools`, {}, signal), ask("load_chat")]);
  /** @type {any} */
  let state = { files: {}, digest: "", errors: [], versions: 0 };
  const built = h("span", { role: "status" });
  const preview = new Preview(signal, (digest, entries) => ask("report_console", { digest, entries }));
  const own = sources(ask, () => state, refresh);

  async function refresh() {
    const now = await ask("app_state");
    if (now.digest === state.digest) return;
    state = now;
    swap(built, badge(state.errors.length ? "error" : "ok"), state.errors.length ? ` ${plain(state.errors[0])}` : " builds");
    own.draw();
    await preview.show(state.files, state.digest);
  }

  const talk = named
    ? chat({ tools, signal, system: SYSTEM, messages: kept, call: async (name, given) => {
      const done = await send("POST", `${base}/tools/${path(name)}`, given, signal);
      if (name !== "log_browser_console") await refresh();
      return done;
    }, before: () => preview.errors(), changed: async (messages) => {
      await ask("save_chat", { messages });
      await refresh();
    } })
    : h("p", { class: "note" }, "No model is configured. Run aenv console --model NAME@URL to talk to one; files can be edited by hand.");
  const zip = button("Export as zip", async () => {
    const made = await ask("export_zip");
    saved(made.name, Uint8Array.from(atob(made.base64), (each) => each.charCodeAt(0)));
    say("exported");
  }, { class: "plain" });
  void every(SECONDS, signal, () => refresh().catch((error) => void (signal.aborted || swap(built, failure(error)))));
  return h("div", null, heading("Mini Program IDE", h("a", { href: to(["instances", id]) }, plain(instance.id)), built, zip),
    h("div", { class: "ide" }, h("section", { "aria-label": "Conversation" }, h("h2", null, named ? `Chat with ${plain(named)}` : "Chat"), talk),
      tabs("Views of the app", { Preview: () => preview.node, Files: () => own.files, History: () => own.history }, query.view || "Preview", (view) => put({ view }))));
}
