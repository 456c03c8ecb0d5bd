// @ts-check
/** Episodes of a run, and what they add up to. A reward that is absent counts nowhere; it is not 0. */

import { get } from "../base/api.js";

const MOST = 10_000;

/**
 * The episodes of a run or task: `MOST` of them, or all after a place in the list.
 * @param {Record<string, any>} where
 * @param {AbortSignal} signal
 * @param {{after?: string | null, most?: number, read?: (count: number) => void}} [options]
 * @returns {Promise<{items: any[], next: string | null}>} `next`: where the list goes on; null: that was all
 */
export async function episodesOf(where, signal, { after = null, most = MOST, read } = {}) {
  /** @type {any[]} */
  const items = [];
  let next = after;
  do {
    const page = await get("trajectories", { ...where, limit: 1000, after: next }, signal);
    for (const each of page.items) items.push(each);
    next = page.next;
    read?.(items.length);
  } while (next && items.length < most);
  return { items, next };
}

/**
 * @param {any[]} episodes
 * @returns {number[]}
 */
export function scores(episodes) {
  return episodes.map((each) => each.score).filter((score) => typeof score === "number");
}

/** @param {number[]} values */
export function mean(values) {
  return values.length ? values.reduce((all, each) => all + each, 0) / values.length : null;
}

/**
 * How far a score is from the mean of its group, in standard deviations; as `aenv trajectory stats` has it.
 * @param {number | null} score
 * @param {number[]} group
 */
export function advantage(score, group) {
  const middle = mean(group);
  if (score === null || score === undefined || middle === null) return null;
  const spread = group.length > 1 ? Math.sqrt(group.reduce((all, each) => all + (each - middle) ** 2, 0) / (group.length - 1)) : 0;
  return spread ? (score - middle) / spread : 0;
}

/**
 * Episodes by task.
 * @param {any[]} items
 * @returns {Map<string, any[]>}
 */
export function byTask(items) {
  const found = new Map();
  for (const each of items) found.get(each.task)?.push(each) ?? found.set(each.task, [each]);
  return found;
}
