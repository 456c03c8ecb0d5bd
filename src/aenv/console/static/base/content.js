// @ts-check
/** Results of tools: MCP content blocks, shown without trusting them. */

import { h } from "./dom.js";
import { block } from "./parts.js";
import { plain, pretty } from "./text.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const MOST = 200_000;

/**
 * Nodes for the content of a message or a result.
 * @param {any} content text, or a list of blocks
 * @returns {Node[]}
 */
export function shown(content) {
  if (content === null || content === undefined || content === "") return [];
  if (typeof content === "string") return [text(content)];
  return (Array.isArray(content) ? content : [content]).map(one);
}

/** @param {any} each */
function one(each) {
  if (typeof each === "string") return text(each);
  if (typeof each?.text === "string") return text(each.text);
  const url = /^data:([a-z/]+);base64,([A-Za-z0-9+/=\s]*)$/.exec(each?.image_url?.url || "");
  const [type, data] = url ? [url[1], url[2]] : [each?.mimeType || each?.media_type, each?.data];
  if (IMAGES.has(type) && typeof data === "string" && /^[A-Za-z0-9+/=\s]*$/.test(data)) {
    const image = h("img", { alt: "Image of the result", class: "result" });
    image.src = `data:${type};base64,${data.replace(/\s/g, "")}`;
    return image;
  }
  return text(pretty(each));
}

/** @param {string} raw */
function text(raw) {
  if (raw.length <= MOST) return block(asJson(raw));
  return h("div", null, block(raw.slice(0, MOST)), h("p", { class: "quiet" }, `${(raw.length - MOST).toLocaleString("en")} more characters are not shown.`));
}

/** @param {string} raw */
function asJson(raw) {
  if (!/^\s*[[{]/.test(raw)) return plain(raw);
  try {
    return pretty(JSON.parse(raw));
  } catch {
    return plain(raw);
  }
}
