// @ts-check
/** A small subset of Markdown, built as nodes: headings, paragraphs, lists, tables as text, code. HTML in it stays text. */

import { h } from "./dom.js";
import { block } from "./parts.js";
import { plain } from "./text.js";

/** @param {string} source */
export function markdown(source) {
  const out = h("div", null);
  const lines = plain(source.slice(0, 200_000)).split("\n");
  for (let i = 0; i < lines.length; i++) {
    const text = lines[i];
    const fence = /^\s*(```+|~~~+)/.exec(text);
    const title = /^(#{1,6})\s+(.*)$/.exec(text);
    if (fence) {
      const code = [];
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) code.push(lines[i]);
      out.append(block(code.join("\n")));
    } else if (title) out.append(h(`h${Math.min(6, title[1].length + 2)}`, null, ...inline(title[2])));
    else if (/^\s*[-*+]\s+/.test(text) || /^\s*\d+[.)]\s+/.test(text)) {
      const items = [];
      for (; i < lines.length && /^\s*([-*+]|\d+[.)])\s+/.test(lines[i]); i++) items.push(h("li", null, ...inline(lines[i].replace(/^\s*([-*+]|\d+[.)])\s+/, ""))));
      i--;
      out.append(h("ul", null, ...items));
    } else if (/^\s*\|/.test(text)) {
      const rows = [];
      for (; i < lines.length && /^\s*\|/.test(lines[i]); i++) if (!/^[\s|:-]+$/.test(lines[i])) rows.push(lines[i].trim().replace(/^\||\|$/g, "").split("|"));
      i--;
      out.append(h("div", { class: "scroll" }, h("table", null, h("tbody", null, ...rows.map((cells) => h("tr", null, ...cells.map((cell) => h("td", null, ...inline(cell.trim())))))))));
    } else if (text.trim()) {
      const words = [text];
      while (i + 1 < lines.length && lines[i + 1].trim() && !/^\s*(```|~~~|#{1,6}\s|[-*+]\s|\||\d+[.)]\s)/.test(lines[i + 1])) words.push(lines[++i]);
      out.append(h("p", null, ...inline(words.join(" "))));
    }
  }
  return out;
}

/**
 * Code, bold and slanted text, and links. A link shows where it leads, and asks for no password of ours.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
function inline(text) {
  const out = [];
  let last = 0;
  for (const found of text.matchAll(/`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|\*(\S(?:[^*]*\S)?)\*/g)) {
    out.push(text.slice(last, found.index));
    if (found[1]) out.push(h("code", null, found[1]));
    else if (found[2]) out.push(h("strong", null, found[2]));
    else if (found[5]) out.push(h("em", null, found[5]));
    else out.push(h("a", { href: found[4], rel: "noopener noreferrer nofollow", target: "_blank", title: found[4] }, found[3]));
    last = found.index + found[0].length;
  }
  out.push(text.slice(last));
  return out;
}
