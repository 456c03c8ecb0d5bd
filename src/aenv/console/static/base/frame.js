// @ts-check
/** A frame for pages that authors and agents wrote. They run in no origin, without a token, a storage or a network. */

import { ROOT } from "./api.js";
import { h } from "./dom.js";

const MOST = 500; // messages of a page's console that are kept

/**
 * @typedef {{level: string, text: string}} Said
 * @typedef {{title: string, said?: (said: Said) => void, call?: (name: string, given: any) => Promise<any>, listens?: (kind: string) => void}} Options
 */

export class PageFrame {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
    this.node = h("div", { class: "framed" });
    /** @type {any} */
    this.frame = null;
    this.heard = 0;
    this.listener = (/** @type {MessageEvent} */ event) => this.frame && event.source === this.frame.contentWindow && void this.hear(event.data);
    addEventListener("message", this.listener);
  }

  /** Stop listening. */
  close() {
    removeEventListener("message", this.listener);
    this.frame?.remove();
  }

  /**
   * Show a page; resolves when it has loaded.
   * @param {Record<string, string>} files
   * @param {string} [entry]
   */
  show(files, entry = "index.html") {
    this.frame?.remove();
    this.heard = 0;
    const frame = (this.frame = h("iframe", { sandbox: "allow-scripts allow-forms", title: this.options.title, referrerpolicy: "no-referrer", credentialless: true }));
    return new Promise((resolve) => {
      this.ready = () => this.tell({ aenv: "open", files, entry });
      this.loaded = () => resolve(null);
      frame.src = new URL("console/frame.html", ROOT).href;
      this.node.append(frame);
    });
  }

  /** @param {any} message */
  tell(message) {
    this.frame?.contentWindow?.postMessage(message, "*"); // its origin is opaque, so it has no name
  }

  /** @param {any} data of a page, which may be hostile */
  async hear(data) {
    if (typeof data !== "object" || !data) return;
    if (data.aenv === "ready") this.ready?.();
    else if (data.aenv === "loaded") this.loaded?.();
    else if (data.aenv === "listens") this.options.listens?.(String(data.kind));
    else if (data.aenv === "console" && this.heard++ < MOST) this.options.said?.({ level: String(data.level), text: String(data.text).slice(0, 4000) });
    else if (data.aenv === "call" && this.options.call) {
      try {
        const value = await this.options.call(String(data.name), data.arguments);
        this.tell({ aenv: "answer", id: data.id, value });
      } catch (error) {
        this.tell({ aenv: "answer", id: data.id, error: /** @type {Error} */ (error).message });
      }
    }
  }
}
