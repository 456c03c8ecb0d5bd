// @ts-check
/** The instances that the caller may see, page by page. */

import { every, get } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { badge, choices, failure, field, heading, select, table } from "../base/parts.js";
import { bytes, count, plain, short, since, span } from "../base/text.js";

const STATES = ["", "Pending", "Creating", "Running", "Failed", "Terminated"];
const PAGE = 100;
const NEVER = 10 * 365 * 86_400; // replicas of services have no end

/** @type {import("../main.js").Page} */
export default function instances({ query, signal, put }) {
  const place = h("div", null, h("p", { class: "quiet" }, "Loading…"));
  const wanted = { status: query.status || "", env: query.env || "", owner: query.owner || "" };
  /** @type {(string | undefined)[]} cursors of the pages before this one */
  const before = [];
  /** @type {string | undefined} */
  let after;

  async function update() {
    try {
      const page = await get("env-instance/list", { limit: PAGE, after, status: wanted.status, envName: wanted.env, owner: wanted.owner }, signal);
      const back = h("button", { type: "button", disabled: !before.length, on: { click: () => turn(before.pop()) } }, "Previous");
      const next = h("button", { type: "button", disabled: !page.next, on: { click: () => (before.push(after), turn(page.next)) } }, "Next");
      const focused = document.activeElement?.getAttribute("href");
      swap(place, rows(page.items), page.next || before.length ? h("p", { class: "row" }, back, next) : null);
      if (focused) /** @type {HTMLElement | null} */ (place.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
    } catch (error) {
      if (!signal.aborted) swap(place, failure(error));
    }
  }

  /** @param {string | undefined} cursor */
  function turn(cursor) {
    after = cursor;
    void update();
  }

  const form = choices([select("State", "status", STATES, wanted.status), field("Environment", "env", wanted.env, { placeholder: "name or name@version" }),
    field("Owner", "owner", wanted.owner)], (values) => {
    Object.assign(wanted, values);
    put(values);
    before.length = 0;
    turn(undefined);
  });
  void every(3, signal, update);
  return h("div", null, heading("Instances", h("a", { class: "action", href: "#/playground" }, "Open one")), form, place);
}

/** @param {any[]} items */
function rows(items) {
  const cells = items.map((each) => [
    h("a", { href: to(["instances", each.id]) }, plain(each.id)),
    badge(each.status),
    plain(`${each.env?.name ?? ""}@${each.env?.version ?? ""}`),
    plain(each.account || each.owner || ""),
    span(since(each.started_at || each.created_at)),
    left(each),
    bytes(each.usage?.memory_bytes),
    count(each.usage?.calls),
    each.reason ? short(each.reason, 90) : "",
  ]);
  return table("Instances", ["Id", "State", "Environment", "Owner", "Age", "Time left", ["Memory", "right"], ["Calls", "right"], "Why"], cells, "No instances.");
}

/** @param {any} each */
function left(each) {
  const gone = since(each.expires_at);
  if (gone === null || each.ended_at) return "–";
  return gone < -NEVER ? "no end" : gone < 0 ? span(-gone) : "over";
}
