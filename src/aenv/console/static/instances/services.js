// @ts-check
/** The services that the caller may see, and a form for a new one. */

import { every, get, send } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { badge, button, choices, failure, field, heading, table } from "../base/parts.js";
import { count, plain, short, since, span } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default function services({ query, signal, put }) {
  const place = h("div", null, h("p", { class: "quiet" }, "Loading…"));
  let env = query.env || "";

  async function update() {
    try {
      swap(place, rows(await get("env-service/list", { envName: env }, signal)));
    } catch (error) {
      if (!signal.aborted) swap(place, failure(error));
    }
  }

  const name = h("input", { id: "service-env", autocomplete: "off", spellcheck: "false", placeholder: "name@version" });
  const replicas = h("input", { id: "service-replicas", type: "number", min: "1", value: "1", size: "4" });
  const create = button("Start a service", async () => {
    const made = await send("POST", "env-service", { envName: name.value.trim(), replicas: Number(replicas.value) });
    location.hash = to(["services", made.id]).slice(1);
  });
  const form = choices([field("Environment", "env", env, { placeholder: "name or name@version" })], (values) => {
    env = values.env;
    put(values);
    void update();
  });
  void every(3, signal, update);
  return h("div", null, heading("Services"), form, place,
    h("details", { class: "card" }, h("summary", null, "Start a service"), h("p", { class: "quiet" }, "A service keeps replicas of an environment running and replaces those that end."),
      h("p", { class: "row" }, h("label", { for: "service-env" }, "Environment"), name, h("label", { for: "service-replicas" }, "Replicas"), replicas, create)));
}

/** @param {any[]} items */
function rows(items) {
  return table("Services", ["Id", "State", "Environment", "Owner", ["Replicas", "right"], ["Restarts", "right"], "Age", "Why"], items.map((each) => [
    h("a", { href: to(["services", each.id]) }, plain(each.id)), badge(each.status), plain(`${each.env?.name ?? ""}@${each.env?.version ?? ""}`), plain(each.owner || ""),
    `${count(each.available_replicas)} of ${count(each.replicas)}`, count(each.restarts ?? 0), span(since(each.created_at)), short(each.reason || "", 90)]), "No services.");
}
