// @ts-check
/** The environments of the hub. */

import { get } from "../base/api.js";
import { h, swap, to } from "../base/dom.js";
import { badge, button, choices, failure, field, heading } from "../base/parts.js";
import { plain, short } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default async function hub({ query, signal, put }) {
  const list = h("ul", { class: "cards" });
  const more = h("p", null);

  /**
   * @param {string} words
   * @param {string} [after]
   */
  async function load(words, after) {
    try {
      const page = words ? await get("api/v1/search", { q: words }, signal) : await get("api/v1/environments", { limit: 60, after }, signal);
      const items = Array.isArray(page) ? page : page.items;
      const cards = items.map(card);
      if (after) list.append(...cards);
      else swap(list, ...(cards.length ? cards : [h("li", { class: "quiet" }, "No environments found.")]));
      swap(more, page.next ? button("Show more", () => load(words, page.next)) : null);
    } catch (error) {
      if (!signal.aborted) swap(list, h("li", null, /** @type {any} */ (error).status === 404 ? "This platform takes its environments from a hub elsewhere." : failure(error)));
    }
  }

  const form = choices([field("Search", "q", query.q || "", { type: "search" })], ({ q }) => {
    put({ q });
    void load(q);
  });
  await load(query.q || "");
  return h("div", null, heading("Hub"), form, list, more);
}

/** @param {any} each */
function card(each) {
  return h("li", { class: "card" },
    h("h2", null, h("a", { href: to(["hub", each.name]) }, plain(each.name)), h("small", null, ` ${plain(each.version)}`)),
    h("p", null, short(each.description || "", 220)),
    h("p", { class: "quiet" }, badge(each.status), each.deprecated ? " deprecated" : null, each.public ? " public" : " private",
      each.builtin ? " · built in" : each.owner ? ` · ${plain(each.owner)}` : null, ` · ${(each.tools || []).length === 1 ? "1 tool" : `${(each.tools || []).length} tools`}`, ...(each.tags || []).map((/** @type {any} */ tag) => h("span", { class: "tag" }, plain(tag)))));
}
