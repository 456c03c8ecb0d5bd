// @ts-check
/** One instance: its state, why it ended, its events, and its log while it is written. */

import { every, get, lines, path, send } from "./api.js";
import { h, say, swap, to } from "./dom.js";
import { asking, badge, button, facts, failure, heading, table } from "./parts.js";
import { bytes, clock, count, plain, since, span } from "./text.js";

const MOST = 400_000; // characters of the log that are kept

/** @type {import("./main.js").Page} */
export default async function instance({ parts, signal }) {
  const id = parts[1];
  const state = h("div", null);
  const events = h("div", null);
  const actions = h("div", { class: "row" });
  const log = h("pre", { class: "block log", tabindex: "0", "aria-label": "Log", role: "log", "aria-live": "off" });
  const follows = h("span", { class: "quiet" });
  let ended = false;

  async function update() {
    if (ended) return;
    try {
      const found = await get(path("env-instance", id), { deleted: true }, signal);
      const happened = await get(`${path("env-instance", id)}/events`, {}, signal);
      ended = found.status === "Terminated" || found.status === "Failed";
      swap(state, about(found));
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

  async function follow() {
    try {
      follows.textContent = "waiting for output";
      for await (const piece of lines(`${path("env-instance", id)}/logs`, { follow: true }, signal)) {
        const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        log.append(plain(piece));
        if ((log.textContent || "").length > MOST) swap(log, (log.textContent || "").slice(-MOST / 2));
        if (low) log.scrollTop = log.scrollHeight;
        follows.textContent = "live";
      }
      follows.textContent = log.textContent ? "ended" : "It has written nothing.";
    } catch (error) {
      if (!signal.aborted) follows.textContent = /** @type {Error} */ (error).message;
    }
  }

  void every(2, signal, update);
  void follow();
  return h("div", null, heading(plain(id)), state, actions, h("h2", null, "Log ", follows), log, h("h2", null, "Events"), events);
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
