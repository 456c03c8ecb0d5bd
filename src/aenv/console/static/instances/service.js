// @ts-check
/** One service: its replicas, its storage, what they write, and how many there should be. */

import { every, get, path, send } from "../base/api.js";
import { h, say, swap, to } from "../base/dom.js";
import { asking, badge, button, copier, facts, failure, heading, table, tabs } from "../base/parts.js";
import { clock, count, plain } from "../base/text.js";
import { LogView } from "./log.js";

/** @type {import("../main.js").Page} */
export default async function service({ parts, query, signal, put }) {
  const id = parts[1];
  const place = path("env-service", id);
  const state = h("div", null);
  const events = h("div", null);
  const replicas = h("div", null);
  const actions = h("div", { class: "row" });
  const log = new LogView(`${place}/logs`, signal);

  async function update() {
    try {
      const [found, happened] = await Promise.all([get(place, {}, signal), get(`${place}/events`, {}, signal)]);
      swap(state, about(found));
      swap(replicas, table("Replicas", ["Instance", ""], (found.instances || []).map((/** @type {string} */ each) => [h("a", { href: to(["instances", each]) }, plain(each)), h("a", { href: to(["playground"], { instance: each }) }, "call its tools")]), "No replica runs."));
      swap(events, table("Events", ["When", "What", ""], happened.map((/** @type {any} */ each) => [clock(each.at), plain(each.type), plain(each.message)])));
      if (!actions.childElementCount) swap(actions, ...may(found));
    } catch (error) {
      if (!signal.aborted) swap(state, failure(error));
    }
  }

  /** @param {any} found */
  function may(found) {
    const wanted = h("input", { type: "number", min: "1", value: String(found.replicas), "aria-label": "Replicas", size: "4" });
    const version = h("input", { "aria-label": "Version", value: found.env?.version || "", size: "8", spellcheck: "false" });
    const scale = button("Scale", async () => {
      await send("PUT", place, { replicas: Number(wanted.value) });
      say("scaled");
      await update();
    });
    const roll = button("Roll out the version", async () => {
      await send("PUT", place, { version: version.value.trim() });
      say("the version is being rolled out");
      await update();
    }, { class: "plain" });
    const remove = asking("Delete", "Delete it now?", async () => {
      await send("DELETE", place);
      say("deleted");
      location.hash = "#/services";
    });
    return [h("label", null, "Replicas ", wanted), scale, h("label", null, "Version ", version), roll, remove];
  }

  await update();
  void every(3, signal, update);
  return h("div", null, heading(plain(id)), state, actions, tabs("Views of the service", { Replicas: () => replicas, Log: () => log.opened(), Events: () => events }, query.view || "Replicas", (view) => put({ view })));
}

/** @param {any} found */
function about(found) {
  return h("div", null, found.reason ? h("p", { class: "note" }, plain(found.reason)) : null, facts([
    ["State", badge(found.status)], ["Environment", h("a", { href: to(["hub", found.env?.name || ""], { ref: found.env?.version }) }, plain(`${found.env?.name}@${found.env?.version}`))],
    ["Replicas", `${count(found.available_replicas)} of ${count(found.replicas)}`], ["Revision", found.revision], ["Restarts", count(found.restarts ?? 0)], ["Owner", plain(found.owner || "")],
    ["Address", found.service_url && h("span", { class: "row" }, h("code", null, plain(found.service_url)), copier(() => found.service_url))],
    ["Storage", found.pvc_name && plain(`${found.pvc_name}, ${found.storage_used ?? "?"} of ${found.storage_size ?? "?"} at ${found.mount_path ?? "?"}`)],
    ["Created", clock(found.created_at)], ["Labels", found.labels && plain(Object.entries(found.labels).map(([k, v]) => `${k}=${v}`).join(", "))]]));
}
