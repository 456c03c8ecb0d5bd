// @ts-check
/** Ports of an instance: what listens there, and an address of it for a browser. */

import { path, request, send } from "../base/api.js";
import { h, swap } from "../base/dom.js";
import { button, copier, failure, table } from "../base/parts.js";
import { plain } from "../base/text.js";

const COMMAND = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null";

/**
 * The ports on which something listens, from `/proc/net/tcp`.
 * @param {string} text
 */
export function listening(text) {
  const found = new Map();
  for (const row of text.split("\n")) {
    const parts = row.trim().split(/\s+/);
    const port = /^([0-9A-F]+):([0-9A-F]{4})$/.exec(parts[1] || "");
    if (port && parts[3] === "0A") found.set(parseInt(port[2], 16), /^0+$/.test(port[1]) ? "all addresses" : "loopback");
  }
  return [...found].sort((a, b) => a[0] - b[0]);
}

/**
 * @param {string} id of an instance
 * @param {AbortSignal} signal
 */
export function ports(id, signal) {
  const place = h("div", null);
  const links = h("div", null);
  const entry = h("input", { type: "number", min: "1", max: "65535", value: "8000", "aria-label": "Port", size: "6" });
  const minutes = h("input", { type: "number", min: "1", value: "30", "aria-label": "Minutes that the address works", size: "4" });

  async function look() {
    try {
      const done = (await (await request("POST", `${path("instance", id)}/exec`, { body: { command: COMMAND, timeout: 10 }, signal })).json()).data;
      swap(place, table("Ports", [["Port", "right"], "Open to", ""], listening(done.stdout).map(([port, where]) => [String(port), where, button("Make an address", () => sign(port), { class: "small" })]), "Nothing listens in this instance."));
    } catch (error) {
      if (!signal.aborted) swap(place, failure(error));
    }
  }

  /** @param {number} port */
  async function sign(port) {
    const made = await send("POST", `${path("env-instance", id)}/presign-url`, { port, expiration_time_in_minutes: Number(minutes.value) }, signal);
    links.append(h("p", { class: "row" }, `Port ${port}: `, h("a", { href: made.url, target: "_blank", rel: "noopener noreferrer" }, plain(made.url.slice(0, 80)), made.url.length > 80 ? "…" : ""), copier(() => made.url)));
  }

  void look();
  return h("div", null, h("p", { class: "quiet" }, "An address of a port works without a token for as long as you say. Give it only to those who may use the port."),
    place, h("p", { class: "row" }, h("label", null, "Port ", entry), h("label", null, "Minutes ", minutes), button("Make an address", () => sign(Number(entry.value))), button("Look again", look, { class: "plain" })), links);
}
