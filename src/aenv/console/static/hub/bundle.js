// @ts-check
/** The files of a published version, read from the hub. */

import { bytesOf, path } from "../base/api.js";

const MOST = 512 * 1024; // bytes of a file that is shown

/**
 * @typedef {{path: string, size: number, blobs: string[]}} BundleFile
 * @param {string} digest of a version
 * @param {AbortSignal} signal
 * @returns {Promise<Map<string, BundleFile>>} files by path
 */
export async function bundle(digest, signal) {
  if (!digest) return new Map(); // a version that was registered without its files
  const manifest = JSON.parse(new TextDecoder().decode(await blob(digest, signal)));
  return new Map((manifest.files || []).map((/** @type {BundleFile} */ each) => [each.path, each]));
}

/**
 * The text of a file; null where it is none, or too long.
 * @param {BundleFile | undefined} file
 * @param {AbortSignal} signal
 */
export async function textOf(file, signal) {
  if (!file) return "";
  if (file.size > MOST) return null;
  const parts = await Promise.all(file.blobs.map((each) => blob(each, signal)));
  const data = new Uint8Array(await new Blob(/** @type {any} */ (parts)).arrayBuffer());
  if (data.includes(0)) return null;
  return new TextDecoder().decode(data);
}

/**
 * @param {string} digest
 * @param {AbortSignal} signal
 */
function blob(digest, signal) {
  return bytesOf(path("api", "v1", "blobs", digest), {}, signal);
}
