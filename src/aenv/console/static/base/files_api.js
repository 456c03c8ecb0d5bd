// @ts-check
/** The part of the API that a static site has: a run and its episodes, as files beside the console. */

const mark = document.querySelector('meta[name="aenv-static"]')?.getAttribute("content");
const SIZE = 200; // events in a file

/** Whether this is a static site and not the console of a platform. */
export const isStatic = mark !== undefined && mark !== null;

/** @type {Map<string, Promise<any>>} */
const read = new Map();

/** @param {string} name */
function file(name) {
  if (!read.has(name)) {
    const url = new URL(`../${mark}${name}`, location.href.split("#")[0]);
    read.set(name, fetch(url, { credentials: "omit" }).then((answer) => (answer.ok ? answer.json() : null)));
    for (const old of read.keys()) if (read.size > 40 && !["runs.json", "episodes.json", name].includes(old)) read.delete(old);
  }
  return /** @type {Promise<any>} */ (read.get(name));
}

/**
 * Answer as the API does; undefined where a static site has nothing.
 * @param {string} path
 * @param {Record<string, any>} query
 */
export async function answered(path, query) {
  if (path === "trajectory-runs") return { items: await file("runs.json"), next: null };
  const parts = path.split("/").map(decodeURIComponent);
  if (parts[0] !== "trajectories") return undefined;
  const all = await file("episodes.json");
  if (parts.length === 1) return { items: all.filter((/** @type {any} */ each) => ["run", "task", "outcome"].every((name) => !query[name] || each[name] === query[name])), next: null };
  const number = all.findIndex((/** @type {any} */ each) => each.id === parts[1]);
  if (number < 0) return undefined;
  if (parts.length === 2) return all[number];
  const [start, limit] = [Number(query.start || 0), Number(query.limit || 100)];
  const items = ((await file(`episodes/${number}/${Math.floor(start / SIZE)}.json`)) || []).slice(start % SIZE, (start % SIZE) + limit);
  const next = start + items.length;
  return { items, next: items.length && next < (all[number].events ?? 0) ? next : null };
}
