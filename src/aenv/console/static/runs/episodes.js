// @ts-check
/** Episodes of a run, and what they add up to. A reward that is absent counts nowhere; it is not 0. */

import { get } from "../base/api.js";

const MOST = 10_000;

/**
 * All episodes of a run or task, up to `MOST`.
 * @param {Record<string, any>} where
 * @param {AbortSignal} signal
 * @returns {Promise<{items: any[], more: boolean}>}
 */
export async function episodesOf(where, signal) {
  /** @type {any[]} */
  const items = [];
  let after = null;
  do {
    const page = await get("trajectories", { ...where, limit: 1000, after }, signal);
    items.push(...page.items);
    after = page.next;
  } while (after && items.length < MOST);
  return { items, more: Boolean(after) };
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
