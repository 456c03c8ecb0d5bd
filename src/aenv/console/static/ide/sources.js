// @ts-check
/** Files of an app with an editor, and the history of each with what changed. */

import { difference } from "../base/difference.js";
import { h, say, swap } from "../base/dom.js";
import { button, table } from "../base/parts.js";
import { clock, plain } from "../base/text.js";

/**
 * @param {(name: string, given?: any) => Promise<any>} ask calls a function of the instance
 * @param {() => any} state of the app
 * @param {() => Promise<void>} changed
 */
export function sources(ask, state, changed) {
  const list = h("div", { class: "row" });
  const place = h("div", null);
  const past = h("div", null, h("p", { class: "quiet" }, "Nothing was written yet."));
  let open = "";

  /** @param {string} name */
  function edit(name) {
    open = name;
    const editor = h("textarea", { class: "code", rows: "18", spellcheck: "false", "aria-label": `Content of ${plain(name)}`, value: state().files[name] ?? "" });
    const save = button("Save", async () => {
      await ask("save_file", { file_path: name, content: editor.value });
      say("saved");
      await changed();
    });
    swap(place, h("h3", null, h("code", null, plain(name))), editor, h("p", { class: "row" }, save));
  }

  async function history() {
    const rows = (await ask("versions")).reverse();
    const shown = h("div", null);
    swap(past, table("Changes", [["Version", "right"], "File", "By", "When", ""], rows.slice(0, 200).map((/** @type {any} */ row) => [String(row.version), plain(row.path), plain(row.by), clock(row.at),
      button(row.digest ? "What changed" : "removed", async () => {
        const before = rows.filter((/** @type {any} */ each) => each.path === row.path && each.version < row.version)[0];
        const [a, b] = await Promise.all([before ? ask("version_text", { file_path: row.path, version: before.version }) : "", ask("version_text", { file_path: row.path, version: row.version })]);
        const restore = button("Restore this version", async () => {
          await ask("save_file", { file_path: row.path, content: b });
          await changed();
        }, { class: "small" });
        swap(shown, h("h3", null, `${plain(row.path)}, version ${row.version}`), difference(a, b), restore);
      }, { class: "small" })]), "Nothing was written yet."), shown);
  }

  function draw() {
    const names = Object.keys(state().files);
    const entry = h("input", { "aria-label": "Name of a new file", placeholder: "new-file.js", size: "14", spellcheck: "false" });
    swap(list, ...names.map((name) => button(plain(name), () => edit(name), { class: "small" })), entry, button("New file", () => entry.value.trim() && edit(entry.value.trim()), { class: "small" }));
    if (open && document.activeElement?.tagName !== "TEXTAREA") edit(open);
    void history().catch(() => null);
  }
  draw();
  return { files: h("div", null, list, place), history: past, draw };
}
