// @ts-check
/** One environment of the hub: what it offers, its README, its versions. */

import { get, path } from "../base/api.js";
import { h, to } from "../base/dom.js";
import { markdown } from "../base/markdown.js";
import { badge, block, facts, heading, table } from "../base/parts.js";
import { bytes, clock, plain, pretty } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default async function environment({ parts, query, signal }) {
  const name = parts[1];
  const base = path("api", "v1", "environments", name);
  const [one, versions] = await Promise.all([get(base, { ref: query.ref }, signal), get(`${base}/versions`, {}, signal)]);
  const ref = `${one.name}@${one.version}`;
  const other = query.with && query.with !== one.version ? await get(`${base}/versions/${path(query.with)}`, {}, signal) : null;
  return h("div", null,
    heading(plain(ref), h("a", { class: "action", href: to(["playground"], { env: ref }) }, "Try it")),
    h("p", null, plain(one.description || "")),
    one.deprecated ? h("p", { class: "note" }, "Deprecated: ", plain(one.deprecated)) : null,
    one.yanked ? h("p", { class: "note" }, "Yanked: ", plain(one.yanked)) : null,
    facts([["State", badge(one.status)], ["Owner", plain(one.builtin ? "built in" : one.owner)], ["Who may read it", one.public ? "everyone" : "its owner and those it is granted to"],
      ["Size", `${bytes(one.size)} in ${one.files} files`], ["Published", clock(one.created_at)], ["Digest", h("code", null, plain(one.digest))], ["Tags", plain((one.tags || []).join(", "))]]),
    offers("Tools", one.schemas?.tools), offers("Functions", one.schemas?.functions), offers("Rewards", one.schemas?.rewards),
    other ? difference(other, one) : null,
    h("h2", null, "Versions"),
    table("Versions", ["Version", "State", "Published", ["Size", "right"], ""], (versions.items || versions).map((/** @type {any} */ each) => [
      h("a", { href: to(["hub", name], { ref: each.version }), "aria-current": each.version === one.version ? "true" : null }, plain(each.version)),
      badge(each.yanked ? "yanked" : each.deprecated ? "deprecated" : each.status), clock(each.created_at), bytes(each.size),
      each.version === one.version ? "shown" : h("a", { href: to(["hub", name], { ref: one.version, with: each.version }) }, "compare"),
    ])),
    h("h2", null, "README"),
    one.readme ? h("div", { class: "card prose" }, markdown(one.readme)) : h("p", { class: "quiet" }, "There is none."),
    h("details", null, h("summary", null, "config.json"), block(pretty(one.config))));
}

/**
 * @param {string} title
 * @param {any[] | undefined} items
 */
function offers(title, items) {
  if (!items?.length) return null;
  return h("section", null, h("h2", null, title), ...items.map((each) => h("details", { class: "card" },
    h("summary", null, h("code", null, plain(each.name)), " ", h("span", { class: "quiet" }, plain(each.description || ""))),
    h("h3", null, "Arguments"), block(pretty(each.inputSchema ?? each.parameters ?? {})),
    each.outputSchema ? h("div", null, h("h3", null, "Result"), block(pretty(each.outputSchema))) : null)));
}

/**
 * What changed between two versions: tools, schemas and settings.
 * @param {any} older
 * @param {any} newer
 */
function difference(older, newer) {
  const rows = [];
  for (const kind of ["tools", "functions", "rewards"]) {
    const [was, is] = [older, newer].map((each) => new Map((each.schemas?.[kind] || []).map((/** @type {any} */ one) => [one.name, JSON.stringify(one)])));
    for (const name of new Set([...was.keys(), ...is.keys()]))
      if (was.get(name) !== is.get(name)) rows.push([kind.slice(0, -1), plain(name), !was.has(name) ? "added" : !is.has(name) ? "removed" : "changed"]);
  }
  for (const name of new Set([...Object.keys(older.config || {}), ...Object.keys(newer.config || {})]))
    if (JSON.stringify(older.config?.[name]) !== JSON.stringify(newer.config?.[name])) rows.push(["setting", plain(name), "changed"]);
  if (older.readme !== newer.readme) rows.push(["file", "README.md", "changed"]);
  return h("section", null, h("h2", null, `From ${plain(older.version)} to ${plain(newer.version)}`), table("Changes", ["What", "Name", "Change"], rows, "Tools, settings and README are the same."));
}
