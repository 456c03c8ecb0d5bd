// @ts-check
/** A web app while it is written, in a sandboxed frame, with what its console says. */

import { h, swap } from "../base/dom.js";
import { PageFrame } from "../base/frame.js";
import { button } from "../base/parts.js";
import { plain } from "../base/text.js";

const SETTLE_MS = 300; // after the last line of the console until it is reported
const MOST = 200;

export class Preview {
  /**
   * @param {AbortSignal} signal
   * @param {(digest: string, entries: any[]) => Promise<any>} report
   */
  constructor(signal, report) {
    this.report = report;
    /** @type {import("../base/frame.js").Said[]} */
    this.entries = [];
    this.digest = "";
    /** @type {Record<string, string>} */
    this.files = {};
    /** @type {any} */
    this.timer = null;
    this.log = h("pre", { class: "block console", tabindex: "0", "aria-label": "Console of the preview", role: "log" });
    this.frame = new PageFrame({ title: "Preview of the app", said: (said) => this.hear(said) });
    this.narrow = false;
    const again = button("Reload", () => this.show(this.files, this.digest), { class: "small" });
    const phone = button("Phone width", () => {
      this.narrow = !this.narrow;
      this.frame.node.classList.toggle("phone", this.narrow);
      phone.setAttribute("aria-pressed", String(this.narrow));
    }, { class: "small", "aria-pressed": "false" });
    this.node = h("div", null, h("p", { class: "row" }, again, phone), this.frame.node, h("h3", null, "Console"), this.log);
    signal.addEventListener("abort", () => (clearTimeout(this.timer), this.frame.close()));
    this.draw();
  }

  /**
   * @param {Record<string, string>} files
   * @param {string} digest
   */
  async show(files, digest) {
    this.files = files;
    this.digest = digest;
    this.entries = [];
    this.draw();
    if (!files["index.html"]) return;
    const shown = this.frame.show(files);
    this.settle();
    await Promise.race([shown, new Promise((resolve) => setTimeout(resolve, 5000))]); // a page may never finish loading
    await this.told();
  }

  /** @param {import("../base/frame.js").Said} said */
  hear(said) {
    if (this.entries.length >= MOST) return;
    this.entries.push(said);
    this.draw();
    this.settle();
  }

  settle() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.told(), SETTLE_MS);
  }

  async told() {
    clearTimeout(this.timer);
    await this.report(this.digest, this.entries).catch(() => null);
  }

  draw() {
    swap(this.log, ...(this.entries.length ? this.entries.map(({ level, text }) => h("span", { class: level === "error" ? "wrong" : level === "warn" ? "warn" : "" }, `${plain(level)}: ${plain(text)}\n`)) : ["Nothing yet."]));
  }

  /** What went wrong in the preview, for the next message to the model. */
  errors() {
    const wrong = this.entries.filter((each) => each.level === "error").slice(0, 5);
    return wrong.length ? `The browser's console says:\n${wrong.map((each) => `- ${each.text.slice(0, 500)}`).join("\n")}` : "";
  }
}
