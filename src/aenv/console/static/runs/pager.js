// @ts-check
/** Events of an episode by their number, fetched page by page; only the last few pages are kept. */

import { get, path } from "../base/api.js";

const SIZE = 200;
const KEPT = 30;

export class EventPager {
  /**
   * @param {string} id
   * @param {AbortSignal} signal
   * @param {() => void} arrived a page has come
   */
  constructor(id, signal, arrived) {
    this.place = `${path("trajectories", id)}/events`;
    this.signal = signal;
    this.arrived = arrived;
    /** @type {Map<number, any[] | null>} pages by number; null while one is fetched */
    this.pages = new Map();
  }

  /**
   * An event, or null while its page is fetched.
   * @param {number} index
   * @returns {any}
   */
  at(index) {
    const number = Math.floor(index / SIZE);
    const page = this.pages.get(number);
    if (page === undefined) void this.fetch(number);
    return page?.[index % SIZE] ?? null;
  }

  /**
   * An event, fetched if need be.
   * @param {number} index
   */
  async wait(index) {
    const number = Math.floor(index / SIZE);
    return ((this.pages.get(number) ?? (await this.fetch(number))) || [])[index % SIZE] ?? null;
  }

  /** @param {number} number */
  async fetch(number) {
    this.pages.set(number, null);
    try {
      const items = await this.read(number * SIZE, SIZE);
      this.pages.set(number, items);
      for (const old of this.pages.keys()) if (this.pages.size > KEPT && old !== number) this.pages.delete(old);
      this.arrived();
      return items;
    } catch (error) {
      this.pages.delete(number);
      if (!this.signal.aborted) throw error;
      return null;
    }
  }

  /**
   * Read so many events, in several answers where one would be too large.
   * @param {number} start
   * @param {number} most
   */
  async read(start, most) {
    const items = [];
    /** @type {number | null} */
    let next = start;
    while (next !== null && items.length < most) {
      const page = await get(this.place, { start: next, limit: most - items.length }, this.signal);
      items.push(...page.items);
      if (!page.items.length) break;
      next = page.next;
    }
    return items;
  }

  /**
   * Go through all events from a number on.
   * @param {number} start
   */
  async *all(start = 0) {
    for (;;) {
      const items = await this.read(start, 1000);
      yield* items;
      if (items.length < 1000) return;
      start += items.length;
    }
  }

  /** Forget the pages from an event on: a running episode has got more. */
  forgetFrom(/** @type {number} */ index) {
    for (const number of this.pages.keys()) if (number >= Math.floor(index / SIZE)) this.pages.delete(number);
  }
}
