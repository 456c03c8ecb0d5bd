// @ts-check
/** Files of an instance: look around, read, edit, upload, download, remove. */

import { bytesOf, get, path, request, send } from "../base/api.js";
import { h, say, swap } from "../base/dom.js";
import { asking, button, copier, failure, table } from "../base/parts.js";
import { bytes, clock, plain } from "../base/text.js";

const READ = 512 * 1024; // larger files are downloaded, not shown

/**
 * @param {string} id of an instance
 * @param {string} start folder to begin in
 * @param {AbortSignal} signal
 * @param {(folder: string) => void} moved
 */
export function files(id, start, signal, moved) {
  const base = path("instance", id);
  const place = h("div", null, h("p", { class: "quiet" }, "Loading…"));
  const open = h("div", null);

  /** @param {string} folder */
  async function list(folder) {
    try {
      const items = await get(`${base}/files/list`, { path: folder, limit: 2000 }, signal);
      moved(folder);
      const up = folder === "/" ? null : folder.replace(/\/[^/]*$/, "") || "/";
      const rows = items.sort((/** @type {any} */ a, /** @type {any} */ b) => Number(b.type === "folder") - Number(a.type === "folder")).map((/** @type {any} */ each) => {
        const name = each.path.split("/").at(-1);
        const go = each.type === "folder" ? () => list(each.path) : each.type === "file" ? () => show(each) : null;
        return [h("span", null, go ? button(plain(name), go, { class: "link" }) : plain(name), each.target ? h("span", { class: "quiet" }, ` → ${plain(each.target)}`) : null),
          each.type, each.type === "file" ? bytes(each.size) : "", plain(each.mode), clock(each.modified_at)];
      });
      swap(place, trail(folder), tools(folder),
        table("Files", ["Name", "Kind", ["Size", "right"], "Mode", "Changed"], [...(up ? [[button("..", () => list(up), { class: "link", "aria-label": "Up" }), "", "", "", ""]] : []), ...rows], "This folder is empty."));
    } catch (error) {
      if (signal.aborted) return;
      swap(place, failure(error), folder === "/" ? null : button("To the top", () => list("/"), { class: "small" }));
    }
  }

  /** @param {string} folder */
  function trail(folder) {
    const names = folder.split("/").filter(Boolean);
    return h("nav", { class: "trail", "aria-label": "Folder" }, button("/", () => list("/"), { class: "link" }),
      ...names.map((name, i) => [button(plain(name), () => list(`/${names.slice(0, i + 1).join("/")}`), { class: "link" }), i + 1 < names.length ? " / " : ""]).flat());
  }

  /** @param {string} folder */
  function tools(folder) {
    const picker = h("input", { type: "file", class: "unseen", "aria-label": "File to upload", tabindex: "-1" });
    const upload = button("Upload…", () => picker.click(), { class: "small" });
    picker.addEventListener("change", async () => {
      const [chosen] = picker.files;
      if (!chosen) return;
      try {
        await request("PUT", `${base}/files`, { query: { path: `${folder === "/" ? "" : folder}/${chosen.name}` }, raw: chosen, signal });
        say("uploaded");
        await list(folder);
      } catch (error) {
        upload.after(failure(error));
      }
    });
    const name = h("input", { "aria-label": "Name of a new file", placeholder: "new-file.txt", size: "14", spellcheck: "false" });
    const make = button("New file", async () => {
      const wanted = name.value.trim();
      if (!wanted || wanted.includes("/")) throw new Error("Give it a name without a slash.");
      await show({ path: `${folder === "/" ? "" : folder}/${wanted}`, size: 0, fresh: true });
    }, { class: "small" });
    return h("p", { class: "row" }, upload, picker, name, make);
  }

  /** @param {any} file */
  async function show(file) {
    const data = file.fresh ? new Uint8Array() : file.size > READ ? null : await bytesOf(`${base}/files`, { path: file.path }, signal);
    const text = data && decoded(data);
    const editor = h("textarea", { class: "code", rows: "16", spellcheck: "false", "aria-label": `Content of ${plain(file.path)}`, value: text ?? "" });
    const save = button("Save", async () => {
      await request("PUT", `${base}/files`, { query: { path: file.path }, raw: new Blob([editor.value]), signal });
      say("saved");
      await list(file.path.replace(/\/[^/]*$/, "") || "/");
    });
    const download = button("Download", async () => saved(file.path.split("/").at(-1), await bytesOf(`${base}/files`, { path: file.path }, signal)), { class: "plain" });
    const remove = asking("Remove", "Remove it now?", async () => {
      await send("DELETE", `${base}/files?path=${encodeURIComponent(file.path)}`);
      swap(open);
      await list(file.path.replace(/\/[^/]*$/, "") || "/");
    });
    swap(open, h("section", { class: "card", "aria-label": "File" }, h("h3", null, h("code", null, plain(file.path))),
      text === null || text === undefined ? h("p", { class: "quiet" }, file.size > READ ? "It is too long to be shown here." : "It is not text.") : editor,
      h("p", { class: "row" }, typeof text === "string" ? save : null, file.fresh ? null : download, typeof text === "string" ? copier(() => editor.value) : null, file.fresh ? null : remove, button("Close", () => swap(open), { class: "plain" }))));
    open.scrollIntoView({ block: "nearest" });
  }

  void list(start || "/");
  return h("div", null, place, open);
}

/**
 * Text, or null where it is none.
 * @param {Uint8Array} data
 */
function decoded(data) {
  if (data.includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

/**
 * Hand a file to the browser, as bytes: what is in it is never shown as a page.
 * @param {string} name
 * @param {Uint8Array} data
 */
export function saved(name, data) {
  const url = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_") || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

