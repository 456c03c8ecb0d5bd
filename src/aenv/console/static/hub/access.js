// @ts-check
/** Who may read and write an environment, and the state of its versions. */

import { get, path, send } from "../base/api.js";
import { h, say, swap } from "../base/dom.js";
import { asking, badge, button, facts, failure, select, table } from "../base/parts.js";
import { plain } from "../base/text.js";

/**
 * @param {any} one a version
 * @param {AbortSignal} signal
 */
export async function access(one, signal) {
  const base = path("api", "v1", "environments", one.name);
  const place = h("div", null);

  /** @param {() => Promise<any>} work */
  async function change(work) {
    await work();
    say("changed");
    await draw();
  }

  async function draw() {
    let found;
    try {
      found = await get(`${base}/grants`, {}, signal);
    } catch (error) {
      if (signal.aborted) return;
      return void swap(place, [401, 403, 404].includes(/** @type {any} */ (error).status)
        ? h("p", null, one.public ? "Everyone who reaches the hub may read it." : "Its owner and those it is granted to may read it.", " Only its owner sees and changes who may what.")
        : failure(error));
    }
    const user = h("input", { "aria-label": "User", placeholder: "user, or * for all", size: "18", spellcheck: "false" });
    const kind = select("may", "access", ["read", "write"], "read");
    const owner = h("input", { "aria-label": "New owner", placeholder: "user", size: "12", spellcheck: "false" });
    const grants = Object.entries(found.grants || {});
    swap(place,
      facts([["Owner", plain(found.owner || "administrators")], ["Visible to", badge(found.public ? "everyone" : "private")], ["Namespace", found.namespace && plain(`${found.namespace} of ${found.namespace_owner}`)]]),
      h("p", { class: "row" }, button(found.public ? "Make it private" : "Open it to everyone", () => change(() => send("PATCH", base, { public: !found.public }, signal)), { class: "plain" })),
      table("Who may what", ["User", "May", ""], grants.map(([name, may]) => [plain(name), plain(may),
        asking("Take it back", "Take it back now?", () => change(() => send("DELETE", `${base}/grants?user=${encodeURIComponent(name)}`, undefined, signal)))]), "Nobody but the owner."),
      h("p", { class: "row" }, user, kind, button("Grant", () => change(() => send("POST", `${base}/grants`, { user: user.value.trim(), access: /** @type {any} */ (kind.querySelector("select")).value }, signal)))),
      h("p", { class: "row" }, owner, asking("Give it away", "Give it away now?", () => change(() => send("POST", `${base}/transfer`, { user: owner.value.trim() }, signal)))));
  }

  if (one.builtin) return h("p", null, "It comes with aenv: everyone may read it, and nobody can change it.");
  await draw();
  return place;
}

/**
 * What can be done with a version: fix it, advise against it, hide it.
 * @param {any} one
 */
export function publishing(one) {
  if (one.builtin) return null;
  const base = `${path("api", "v1", "environments", one.name)}/versions/${path(one.version)}`;
  const reason = h("input", { "aria-label": "Reason", placeholder: "reason", size: "24" });
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  const post = async (/** @type {string} */ what, /** @type {any} */ body) => {
    await send("POST", `${base}/${what}`, body);
    say("changed");
    again();
  };
  const because = () => {
    if (!reason.value.trim()) throw new Error("Give a reason.");
    return { reason: reason.value.trim() };
  };
  return h("details", { class: "card" }, h("summary", null, "Publishing"),
    h("p", { class: "quiet" }, "A released version never changes. A deprecated one still resolves, with the reason. A yanked one resolves only by its exact number."),
    h("div", { class: "row" },
      one.status === "Released" ? null : asking("Release", "Release it for good?", () => post("release", {})), reason,
      one.deprecated ? button("No longer deprecated", () => post("deprecate", { reason: null }), { class: "plain" }) : button("Deprecate", () => post("deprecate", because()), { class: "plain" }),
      one.yanked ? button("No longer yanked", () => post("yank", { reason: null }), { class: "plain" }) : button("Yank", () => post("yank", because()), { class: "plain" })));
}
