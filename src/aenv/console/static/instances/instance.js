// @ts-check
/** One instance: its state and use, why it ended, its log, files, ports and events, and a terminal in it. */

import { every, get, path, send } from "../base/api.js";
import { h, say, swap, to } from "../base/dom.js";
import { asking, badge, button, facts, failure, heading, table, tabs } from "../base/parts.js";
import { bytes, clock, count, plain, since, span } from "../base/text.js";
import { instanceView, viewOf } from "../hub/view.js";
import { files } from "./files.js";
import { LogView } from "./log.js";
import { ports } from "./ports.js";
import { Usage } from "./usage.js";

/** @type {import("../main.js").Page} */
export default async function instance({ parts, query, signal, put }) {
  const id = parts[1];
  const state = h("div", null);
  const events = h("div", null);
  const actions = h("div", { class: "row" });
  const log = new LogView(`${path("env-instance", id)}/logs`, signal);
  const usage = new Usage();
  let ended = false;
  /** @type {any} */
  let environment = null;

  async function update() {
    if (ended) return;
    try {
      const found = await get(path("env-instance", id), { deleted: true }, signal);
      const happened = await get(`${path("env-instance", id)}/events`, {}, signal);
      environment = found.env;
      ended = found.status === "Terminated" || found.status === "Failed";
      swap(state, about(found));
      if (!ended) usage.add(found.usage);
      swap(events, table("Events", ["When", "What", ""], happened.map((/** @type {any} */ each) => [clock(each.at), plain(each.type), plain(each.message)])));
      if (ended || !actions.childElementCount) swap(actions, ...(ended ? [] : may(found)));
    } catch (error) {
      if (!signal.aborted) swap(state, failure(error));
    }
  }

  /** @param {any} found */
  function may(found) {
    const ttl = h("input", { value: found.ttl || "30m", size: "6", "aria-label": "New time to live", spellcheck: "false" });
    const stop = asking("Stop", "Stop it now?", async () => {
      await send("DELETE", path("env-instance", id));
      say("stopped");
      await update();
    });
    const renew = button("Renew", async () => {
      await send("PUT", `${path("env-instance", id)}/ttl`, { ttl: ttl.value });
      say("renewed");
      await update();
    });
    return [h("a", { class: "action", href: to(["playground"], { instance: id }) }, "Call its tools"), ttl, renew, stop];
  }

  await update();
  void every(2, signal, update);
  const own = ended || !environment ? null : await viewOf(environment.name, environment.version, signal);
  const views = {
    ...(own ? { View: () => instanceView(own, id, signal) } : {}),
    Log: () => log.opened(),
    Events: () => events,
    ...(ended ? {} : {
      Usage: () => usage.node,
      Terminal: async () => (await import("./terminal.js")).terminal(id, signal),
      Files: () => files(id, query.path || "/", signal, (folder) => put({ path: folder })),
      Ports: () => ports(id, signal),
    }),
  };
  return h("div", null, heading(plain(id)), state, actions, tabs("Views of the instance", views, query.view || "Log", (view) => put({ view })));
}

/** @param {any} found */
function about(found) {
  const why = found.reason
    ? h("p", { class: found.fault && found.fault !== "policy" ? "failure" : "note" }, plain(found.reason), found.fault ? h("span", null, " ", badge(found.fault)) : null)
    : null;
  return h("div", null, why, facts([
    ["State", badge(found.status)],
    ["Environment", h("a", { href: to(["hub", found.env?.name || ""], { ref: found.env?.version }) }, plain(`${found.env?.name}@${found.env?.version}`))],
    ["Ended by", found.ended_by && plain(found.ended_by)],
    ["Exit code", found.exit_code],
    ["Owner", plain(found.account || found.owner || "")],
    ["Started", clock(found.started_at || found.created_at)],
    ["Ended", found.ended_at && clock(found.ended_at)],
    ["Time to live", found.ended_at ? null : `${plain(found.ttl || "")}, ${span(Math.max(0, -(since(found.expires_at) ?? 0)))} left`],
    ["Memory", found.usage?.memory_bytes && bytes(found.usage.memory_bytes)],
    ["CPU", found.usage?.cpu_nanoseconds === undefined ? null : span(found.usage.cpu_nanoseconds / 1e9)],
    ["Processes", found.usage?.processes],
    ["Calls", count(found.usage?.calls ?? null)],
    ["Network", plain(Array.isArray(found.network) ? found.network.join(", ") : found.network || "")],
    ["Labels", found.labels && plain(Object.entries(found.labels).map(([k, v]) => `${k}=${v}`).join(", "))],
    ["Notices", found.notices?.length ? plain(found.notices.join("; ")) : null],
  ]));
}
