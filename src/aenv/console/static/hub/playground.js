// @ts-check
/** Try an environment by hand: open an instance, call what it offers, take the code along. */

import { get, path, send } from "../base/api.js";
import { shown } from "../base/content.js";
import { chat, model } from "./chat.js";
import { h, say, swap, to } from "../base/dom.js";
import { formOf } from "./forms.js";
import { asking, badge, block, button, copier, failure, heading } from "../base/parts.js";
import { curlCode, pythonCode } from "./snippets.js";
import { plain, pretty, short, span } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default async function playground({ query, signal, put }) {
  const place = h("div", null);
  const opener = h("div", { class: "card" });

  /** @param {string} id */
  async function use(id) {
    const instance = await get(path("env-instance", id), {}, signal);
    put({ instance: id, env: "" });
    swap(opener);
    opener.hidden = true;
    swap(place, await bench(instance));
  }

  /** @param {any} instance */
  async function bench(instance) {
    const base = path("instance", instance.id);
    const env = `${instance.env?.name}@${instance.env?.version}`;
    const [tools, others] = await Promise.all([get(`${base}/tools`, {}, signal), get(`${base}/functions/list`, {}, signal)]);
    const stop = asking("Stop it", "Stop it now?", async () => {
      await send("DELETE", path("env-instance", instance.id));
      say("stopped");
      swap(place);
      put({ instance: "", env });
      opener.hidden = false;
      await choose(env);
    });
    const editable = (others.functions || []).some((/** @type {any} */ each) => each.name === "report_console"); // as mini-program has it
    const named = await model(signal);
    const talk = named ? h("details", { class: "card" }, h("summary", null, "Chat with ", h("code", null, plain(named))), chat({ tools, signal, call: (name, given) => send("POST", `${base}/tools/${path(name)}`, given, signal) })) : null;
    return h("div", null,
      h("div", { class: "row" }, badge(instance.status), h("a", { href: to(["instances", instance.id]) }, plain(instance.id)), h("span", { class: "quiet" }, `ends after ${plain(instance.ttl || "")} without a renewal`), editable ? h("a", { class: "action", href: to(["ide", instance.id]) }, "Open the IDE") : null, stop), talk,
      ...tools.map((/** @type {any} */ each) => caller(instance.id, env, "tool", each)),
      ...(others.functions || []).map((/** @type {any} */ each) => caller(instance.id, env, "function", each)),
      ...(others.reward || []).map((/** @type {any} */ each) => caller(instance.id, env, "reward", each)));
  }

  /** @param {string} [wanted] */
  async function choose(wanted) {
    const names = h("datalist", { id: "environments" });
    const entry = h("input", { id: "env", list: "environments", value: wanted || "", required: true, autocomplete: "off", spellcheck: "false" });
    const ttl = h("input", { id: "ttl", value: "15m", size: "6", spellcheck: "false" });
    const wait = h("p", { class: "quiet", role: "status" });
    const open = button("Open an instance", async () => {
      wait.textContent = "Making it…";
      try {
        const made = await send("POST", "env-instance", { envName: entry.value.trim(), ttl: ttl.value.trim(), labels: { from: "console" } });
        await use(made.id);
      } finally {
        wait.textContent = "";
      }
    });
    entry.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && open.click());
    swap(opener, h("div", { class: "row" }, h("label", { for: "env" }, "Environment"), entry, names, h("label", { for: "ttl" }, "Time to live"), ttl, open), wait);
    try {
      const page = await get("api/v1/environments", { limit: 200 }, signal);
      swap(names, ...page.items.map((/** @type {any} */ each) => h("option", { value: `${each.name}@${each.version}` })));
    } catch {
      // without a hub in this server, a name is typed
    }
  }

  if (query.instance) {
    try {
      await use(query.instance);
    } catch (error) {
      put({ instance: "" });
      swap(place, failure(error));
    }
  }
  if (!opener.hidden) void choose(query.env);
  return h("div", null, heading("Playground"), opener, place);
}

/**
 * A form that calls one tool, function or reward.
 * @param {string} instance
 * @param {string} env
 * @param {"tool" | "function" | "reward"} kind
 * @param {any} offer
 */
function caller(instance, env, kind, offer) {
  const form = formOf(offer.inputSchema || {});
  const result = h("div", { role: "status", class: "answer" });
  const code = h("div", { class: "snippets" });
  const where = kind === "tool" ? `tools/${path(offer.name)}` : kind === "function" ? `functions/${path(offer.name)}` : `task/reward?reward=${encodeURIComponent(offer.name)}`;
  const call = button(kind === "reward" ? "Compute" : "Call", async () => {
    swap(result, h("p", { class: "quiet" }, "Waiting…"));
    const began = performance.now();
    try {
      const given = form.read();
      swap(code, snippet("Python", pythonCode(env, kind, offer.name, given)), snippet("curl", curlCode(instance, where, given)));
      const data = await send("POST", `${path("instance", instance)}/${where}`, given);
      const took = h("p", { class: "quiet" }, span((performance.now() - began) / 1000), kind === "tool" && data.is_error ? h("span", null, " ", badge(data.fault || "error")) : null);
      swap(result, took, ...(kind === "tool" ? shown(data.content) : [block(pretty(data))]));
    } catch (error) {
      swap(result, failure(error));
    }
  });
  return h("details", { class: "card offer" },
    h("summary", null, h("span", { class: "kind" }, kind), h("code", null, plain(offer.name)), " ", h("span", { class: "quiet" }, short(offer.description || "", 200))),
    form.node, h("p", { class: "row" }, call), result, code);
}

/**
 * @param {string} title
 * @param {string} text
 */
function snippet(title, text) {
  return h("details", null, h("summary", null, title), h("div", { class: "copied" }, copier(() => text), block(text)));
}
