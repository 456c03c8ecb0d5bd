// @ts-check
/** A list of any length of which only the rows in sight exist. */

import { h, swap } from "./dom.js";

const ROW = 30; // pixels, as in console.css
const TALLEST = 8_000_000; // browsers lose precision beyond some 16 million pixels

export class WindowedList {
  /**
   * @param {string} name for screen readers
   * @param {(index: number) => Node[]} render the cells of a row
   * @param {(index: number) => void} chosen a row was chosen
   */
  constructor(name, render, chosen) {
    this.render = render;
    this.chosen = chosen;
    this.length = 0;
    this.current = -1;
    this.rows = h("div", { class: "rows" });
    this.space = h("div", { class: "space" }, this.rows);
    this.node = h("div", { class: "windowed", role: "listbox", tabindex: "0", "aria-label": name }, this.space);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    this.node.addEventListener("click", (/** @type {any} */ event) => {
      const row = event.target.closest("[data-index]");
      if (row) this.choose(Number(row.dataset.index));
    });
    this.node.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const jump = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
      if (jump) this.choose(this.current + jump);
      else if (event.key === "Home") this.choose(0);
      else if (event.key === "End") this.choose(this.length - 1);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** @param {number} length */
  resize(length) {
    this.length = length;
    this.height = Math.min(length * ROW, TALLEST);
    this.space.style.height = `${this.height}px`;
    this.draw();
  }

  /** Pixels of the list to pixels of all rows: above `TALLEST`, one pixel stands for more. */
  get scale() {
    const seen = this.node.clientHeight;
    return this.length * ROW <= TALLEST ? 1 : (this.length * ROW - seen) / Math.max(1, TALLEST - seen);
  }

  draw() {
    const seen = this.node.clientHeight || 400;
    const top = this.node.scrollTop * this.scale;
    const first = Math.max(0, Math.floor(top / ROW) - 5);
    const last = Math.min(this.length, Math.ceil((top + seen) / ROW) + 5);
    this.rows.style.transform = `translateY(${this.node.scrollTop + first * ROW - top}px)`;
    const made = [];
    for (let i = first; i < last; i++) {
      made.push(h("div", { class: "windowed-row", role: "option", id: `row-${i}`, "data-index": i, "aria-selected": i === this.current ? "true" : "false", "aria-posinset": i + 1, "aria-setsize": this.length }, ...this.render(i)));
    }
    swap(this.rows, ...made);
  }

  /** @param {number} index */
  choose(index) {
    if (!this.length) return;
    this.current = Math.max(0, Math.min(this.length - 1, index));
    const [top, seen] = [this.node.scrollTop * this.scale, this.node.clientHeight];
    if (this.current * ROW < top) this.node.scrollTop = (this.current * ROW) / this.scale;
    else if ((this.current + 1) * ROW > top + seen) this.node.scrollTop = ((this.current + 1) * ROW - seen) / this.scale;
    this.node.setAttribute("aria-activedescendant", `row-${this.current}`);
    this.draw();
    this.chosen(this.current);
  }
}
