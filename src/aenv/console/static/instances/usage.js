// @ts-check
/** What an instance uses, over the time that its page is open. */

import { h, swap } from "../base/dom.js";
import { figure, line } from "../base/parts.js";
import { bytes, count, number } from "../base/text.js";

const POINTS = 300;

export class Usage {
  constructor() {
    this.node = h("div", { class: "grid" });
    /** @type {Record<"memory" | "cpu" | "processes" | "calls", (number | null)[]>} */
    this.history = { memory: [], cpu: [], processes: [], calls: [] };
    /** @type {{at: number, cpu: number, calls: number} | null} */
    this.before = null;
  }

  /** @param {any} usage of an instance */
  add(usage) {
    if (!usage) return;
    const now = { at: performance.now() / 1000, cpu: (usage.cpu_nanoseconds ?? 0) / 1e9, calls: usage.calls ?? 0 };
    const passed = this.before ? now.at - this.before.at : 0;
    const rate = (/** @type {"cpu" | "calls"} */ name) => (this.before && passed > 0 ? Math.max(0, (now[name] - this.before[name]) / passed) : null);
    const values = { memory: usage.memory_bytes ?? null, cpu: rate("cpu"), processes: usage.processes ?? null, calls: rate("calls") };
    for (const name of /** @type {(keyof typeof values)[]} */ (Object.keys(values))) {
      this.history[name].push(values[name]);
      if (this.history[name].length > POINTS) this.history[name].shift();
    }
    this.before = now;
    const { memory, cpu, processes, calls } = this.history;
    swap(this.node, figure("Memory", bytes(values.memory), line(memory, "Memory over time")),
      figure("CPU", values.cpu === null ? "–" : `${number(100 * values.cpu)} %`, line(cpu, "CPU over time")),
      figure("Processes", count(values.processes), line(processes, "Processes over time")),
      figure("Calls per second", number(values.calls), [line(calls, "Calls per second over time"), `${count(usage.calls ?? null)} in all`]));
  }
}
