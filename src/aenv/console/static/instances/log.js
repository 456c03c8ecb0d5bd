// @ts-check
/** A log while it is written: what has come so far, and the rest as it comes. */

import { lines } from "../base/api.js";
import { h, swap } from "../base/dom.js";
import { plain } from "../base/text.js";

const MOST = 400_000; // characters that are kept

export class LogView {
  /**
   * @param {string} place of the log
   * @param {AbortSignal} signal
   */
  constructor(place, signal) {
    this.place = place;
    this.signal = signal;
    this.state = h("span", { class: "quiet" });
    this.text = h("pre", { class: "block log", tabindex: "0", "aria-label": "Log", role: "log", "aria-live": "off" });
    this.node = h("div", null, h("p", null, this.state), this.text);
    this.begun = false;
  }

  /** The node; the log is read from now on. */
  opened() {
    if (!this.begun) void this.follow();
    this.begun = true;
    return this.node;
  }

  async follow() {
    const { text, state } = this;
    try {
      state.textContent = "waiting for output";
      for await (const piece of lines(this.place, { follow: true }, this.signal)) {
        const low = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
        text.append(plain(piece));
        if ((text.textContent || "").length > MOST) swap(text, (text.textContent || "").slice(-MOST / 2));
        if (low) text.scrollTop = text.scrollHeight;
        state.textContent = "live";
      }
      state.textContent = text.textContent ? "ended" : "It has written nothing.";
    } catch (error) {
      if (!this.signal.aborted) state.textContent = /** @type {Error} */ (error).message;
    }
  }
}
