// @ts-check
/** The platform's public HTTP API. */

import { answered, isStatic } from "./files_api.js";
import { token } from "./session.js";

/** Where the API is: the folder above the console, whatever prefix a proxy has put before it. */
export const ROOT = new URL("../", location.href.split("#")[0]);

export class ApiError extends Error {
  /**
   * @param {number} status 0: no answer
   * @param {any} body
   */
  constructor(status, body) {
    super(body?.message || body?.error || (status ? `the platform answered with ${status}` : "the platform does not answer"));
    this.status = status;
    this.code = body?.error_code || (typeof body?.code === "string" ? body.code : "");
    this.fault = body?.fault || "";
    this.hint = body?.details?.hint || "";
  }
}

/**
 * Send a request.
 * @param {string} method
 * @param {string} path without a leading slash; parts of it are encoded already, see `path`
 * @param {{query?: Record<string, any>, body?: any, raw?: Blob, signal?: AbortSignal}} [options] `body` is sent as JSON, `raw` as it is
 * @returns {Promise<Response>}
 */
export async function request(method, path, { query, body, raw, signal } = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query || {}))
    if (value !== undefined && value !== null && value !== "") url.searchParams.append(name, String(value));
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json" };
  const held = token();
  if (held) headers.authorization = `Bearer ${held}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (raw !== undefined) headers["content-type"] = "application/octet-stream";
  let answer;
  try {
    answer = await fetch(url, {
      method, headers, signal, credentials: "omit", redirect: "error", cache: "no-store",
      body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, null);
  }
  if (answer.ok) return answer;
  const refusal = new ApiError(answer.status, await answer.json().catch(() => null));
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("unauthorized", { detail: refusal }));
  throw refusal;
}

/**
 * @param {string} path
 * @param {Record<string, any>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the data of the answer
 */
export async function get(path, query, signal) {
  if (isStatic) {
    const found = await answered(path, query || {});
    if (found === undefined) throw new ApiError(404, { message: "These are static pages of one run; there is no platform behind them." });
    return found;
  }
  return (await (await request("GET", path, { query, signal })).json()).data;
}

/**
 * @param {string} method
 * @param {string} path
 * @param {any} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the data of the answer
 */
export async function send(method, path, body, signal) {
  return (await (await request(method, path, { body, signal })).json()).data;
}

/**
 * @param {string} place
 * @param {Record<string, any>} query
 * @param {AbortSignal} [signal]
 */
export async function bytesOf(place, query, signal) {
  return new Uint8Array(await (await request("GET", place, { query, signal })).arrayBuffer());
}

/**
 * A path with its parts encoded.
 * @param {...string} parts
 */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/**
 * Yield the pieces of a text answer while they come.
 * @param {string} place
 * @param {Record<string, any>} query
 * @param {AbortSignal} signal
 */
export async function* lines(place, query, signal) {
  const answer = await request("GET", place, { query, signal });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}

/**
 * Run something now and then again, while the page is shown; pause in the background.
 * @param {number} seconds
 * @param {AbortSignal} signal
 * @param {() => Promise<void>} work
 */
export async function every(seconds, signal, work) {
  while (!signal.aborted) {
    if (!document.hidden) await work();
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      signal.addEventListener("abort", () => (clearTimeout(timer), resolve(null)), { once: true });
    });
  }
}

/** @param {string} text metrics in the format of Prometheus */
export function parseMetrics(text) {
  /** @type {Map<string, {labels: Record<string, string>, value: number}[]>} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    /** @type {Record<string, string>} */
    const labels = {};
    for (const [, name, value] of (parts[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    const rows = found.get(parts[1]) || [];
    rows.push({ labels, value: Number(parts[3]) });
    found.set(parts[1], rows);
  }
  return found;
}
