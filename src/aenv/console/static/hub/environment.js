// @ts-check
/** One environment of the hub: what it offers, its README, tasks, files and versions, and who may what. */

import { get, path, send } from "../base/api.js";
import { difference } from "../base/difference.js";
import { h, swap, to } from "../base/dom.js";
import { markdown } from "../base/markdown.js";
import { badge, block, button, facts, failure, heading, table, tabs } from "../base/parts.js";
import { bytes, clock, count, plain, pretty, short } from "../base/text.js";
import { access, publishing } from "./access.js";
import { bundle, textOf } from "./bundle.js";

const TASKS = 100; // on a page

/** @type {import("../main.js").Page} */
export default async function environment({ parts, query, signal, put }) {
  const name = parts[1];
  const base = path("api", "v1", "environments", name);
  const [one, versions] = await Promise.all([get(base, { ref: query.ref }, signal), get(`${base}/versions`, {}, signal)]);
  const ref = `${one.name}@${one.version}`;
  const other = query.with && query.with !== one.version ? await get(`${base}/versions/${path(query.with)}`, {}, signal) : null;
  const views = {
    ...(other ? { Changes: () => changes(other, one, signal) } : {}),
    Offers: () => h("div", null, offers("Tools", one.schemas?.tools), offers("Functions", one.schemas?.functions), offers("Rewards", one.schemas?.rewards),
      h("details", null, h("summary", null, "config.json"), block(pretty(one.config)))),
    README: () => (one.readme ? h("div", { class: "card prose" }, markdown(one.readme)) : h("p", { class: "quiet" }, "There is none.")),
    Tasks: () => tasks(ref, signal),
    Files: () => files(one, signal),
    Versions: () => h("div", null, publishing(one), table("Versions", ["Version", "State", "Published", ["Size", "right"], ""], (versions.items || versions).map((/** @type {any} */ each) => [
      h("a", { href: to(["hub", name], { ref: each.version, view: "Versions" }), "aria-current": each.version === one.version ? "true" : null }, plain(each.version)),
      badge(each.yanked ? "yanked" : each.deprecated ? "deprecated" : each.status), clock(each.created_at), bytes(each.size),
      each.version === one.version ? "shown" : h("a", { href: to(["hub", name], { ref: one.version, with: each.version }) }, "compare"),
    ]))),
    Access: () => access(one, signal),
  };
  return h("div", null,
    heading(plain(ref), h("a", { class: "action", href: to(["playground"], { env: ref }) }, "Try it")),
    h("p", null, plain(one.description || "")),
    one.deprecated ? h("p", { class: "note" }, "Deprecated: ", plain(one.deprecated)) : null,
    one.yanked ? h("p", { class: "note" }, "Yanked: ", plain(one.yanked)) : null,
    facts([["State", badge(one.status)], ["Owner", plain(one.builtin ? "built in" : one.owner)], ["Who may read it", one.public || one.builtin ? "everyone" : "its owner and those it is granted to"],
      ["Size", `${bytes(one.size)} in ${one.files} files`], ["Published", clock(one.created_at)], ["Digest", h("code", { title: plain(one.digest) }, plain(one.digest.slice(0, 19)))], ["Tags", plain((one.tags || []).join(", "))]]),
    tabs("Views of the environment", views, query.view || "", (view) => put({ view })));
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
 * Tasks are made by the environment's code, so an instance lists them. What agents may not see is left out.
 * @param {string} ref
 * @param {AbortSignal} signal
 */
function tasks(ref, signal) {
  const place = h("div", null);

  /** @param {number} start */
  async function list(start) {
    swap(place, h("p", { class: "quiet", role: "status" }, "An instance lists them…"));
    const made = await send("POST", "env-instance", { envName: ref, ttl: "2m", labels: { from: "console" } }, signal);
    try {
      const page = await send("POST", `${path("instance", made.id)}/task/list?start=${start}&limit=${TASKS}`, {}, signal);
      const rows = page.tasks.map((/** @type {any} */ each) => [plain(each.id), short(each.instruction || "", 300), short(each.metadata && Object.keys(each.metadata).length ? each.metadata : "", 120)]);
      swap(place, h("p", { class: "quiet" }, `${count(page.total)} tasks`), table("Tasks", ["Task", "Instruction", "Metadata"], rows, "It lists no tasks."),
        h("p", { class: "row" }, start ? button("Previous", () => list(Math.max(0, start - TASKS))) : null, start + TASKS < page.total ? button("Next", () => list(start + TASKS)) : null));
    } catch (error) {
      swap(place, failure(error));
    } finally {
      await send("DELETE", path("env-instance", made.id)).catch(() => null);
    }
  }
  swap(place, h("p", null, "The environment's code lists its tasks, in an instance that is stopped afterwards."), button("List the tasks", () => list(0)));
  return place;
}

/**
 * @param {any} one
 * @param {AbortSignal} signal
 */
async function files(one, signal) {
  const found = await bundle(one.digest, signal);
  return h("div", null, ...[...found.values()].map((each) => {
    const place = h("div", null);
    const row = h("details", { class: "card" }, h("summary", null, h("code", null, plain(each.path)), h("span", { class: "quiet" }, ` ${bytes(each.size)}`)), place);
    row.addEventListener("toggle", async () => {
      if (!row.open || place.childElementCount) return;
      const text = await textOf(each, signal).catch(() => null);
      swap(place, text === null ? h("p", { class: "quiet" }, "It is not text, or too long to be shown.") : block(text));
    });
    return row;
  }), found.size ? null : h("p", { class: "quiet" }, "This version was registered without its files."));
}

/**
 * What changed between two versions: tools, settings, and every file.
 * @param {any} older
 * @param {any} newer
 * @param {AbortSignal} signal
 */
async function changes(older, newer, signal) {
  const rows = [];
  for (const kind of ["tools", "functions", "rewards"]) {
    const [was, is] = [older, newer].map((each) => new Map((each.schemas?.[kind] || []).map((/** @type {any} */ one) => [one.name, JSON.stringify(one)])));
    for (const name of new Set([...was.keys(), ...is.keys()]))
      if (was.get(name) !== is.get(name)) rows.push([kind.slice(0, -1), plain(name), !was.has(name) ? "added" : !is.has(name) ? "removed" : "changed"]);
  }
  for (const name of new Set([...Object.keys(older.config || {}), ...Object.keys(newer.config || {})]))
    if (name !== "version" && JSON.stringify(older.config?.[name]) !== JSON.stringify(newer.config?.[name])) rows.push(["setting", plain(name), "changed"]);
  const [was, is] = await Promise.all([bundle(older.digest, signal), bundle(newer.digest, signal)]);
  const texts = [];
  for (const name of [...new Set([...was.keys(), ...is.keys()])].sort()) {
    const [before, after] = [was.get(name), is.get(name)];
    if (String(before?.blobs) === String(after?.blobs)) continue;
    const [a, b] = await Promise.all([textOf(before, signal), textOf(after, signal)]);
    texts.push(h("section", null, h("h3", null, h("code", null, plain(name)), ` ${before ? (after ? "" : "removed") : "added"}`), a === null || b === null ? h("p", { class: "quiet" }, "It is not text, or too long.") : difference(a, b)));
  }
  return h("section", null, h("h2", null, `From ${plain(older.version)} to ${plain(newer.version)}`), table("Changes", ["What", "Name", "Change"], rows, "Tools and settings are the same."),
    h("h2", null, "Files"), ...(texts.length ? texts : [h("p", { class: "quiet" }, "All files are the same.")]));
}
