// @ts-check
/** Text from agents and environments, made harmless to look at; and numbers and times for people. */

// Escape sequences of terminals: CSI, strings such as OSC and DCS with their end, and two-character ones.
const ESCAPES = /[\u001b\u009b][[\]()#;?]*(?:(?:\d{1,4}(?:[;:]\d{0,4})*)?[\dA-PR-TZcf-nq-uy=><~@`])|\u001b[\]PX^_][^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)?|\u001b./g;
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;

/**
 * Text without terminal escapes. Other control characters, and those that reorder text, become visible.
 * @param {unknown} value
 * @returns {string}
 */
export function plain(value) {
  const text = typeof value === "string" ? value : String(value ?? "");
  if (!ODD.test(text)) return text;
  return text
    .replace(ESCAPES, "")
    .replace(/\r\n/g, "\n")
    .replace(/\r/g, "\n")
    .replace(CONTROLS, (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\ufffd"))
    .replace(DIRECTIONS, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/**
 * One line of at most so many characters.
 * @param {unknown} value
 * @param {number} [most]
 */
export function short(value, most = 160) {
  const raw = typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
  const text = plain((raw ?? "").slice(0, most * 4)).replace(/\s+/g, " ").trim();
  const points = [...text];
  return points.length > most ? `${points.slice(0, most).join("")}…` : text;
}

/** @param {unknown} value */
export function pretty(value) {
  return plain(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
}

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

/**
 * A number with few digits.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(digits)));
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let rank = 0;
  while (value >= 1024 && rank < units.length - 1) [value, rank] = [value / 1024, rank + 1];
  return `${number(value)} ${units[rank]}`;
}

/**
 * A span of time.
 * @param {number | null | undefined} seconds
 */
export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 60) return `${number(seconds)} s`;
  const [m, s] = [Math.floor(seconds / 60), Math.floor(seconds % 60)];
  if (m < 60) return `${m} min ${s} s`;
  return m < 2880 ? `${Math.floor(m / 60)} h ${m % 60} min` : `${Math.floor(m / 1440)} d`;
}

/**
 * Seconds since a time.
 * @param {string | number | null | undefined} when ISO text, or seconds since 1970
 */
export function since(when) {
  if (when === null || when === undefined || when === "") return null;
  const at = typeof when === "number" ? when * 1000 : Date.parse(when);
  return Number.isNaN(at) ? null : (Date.now() - at) / 1000;
}

/** @param {string | number | null | undefined} when */
export function clock(when) {
  const at = typeof when === "number" ? new Date(when * 1000) : new Date(when || NaN);
  return Number.isNaN(at.getTime()) ? "–" : at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
}
