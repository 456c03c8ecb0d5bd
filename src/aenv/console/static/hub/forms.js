// @ts-check
/** A form for a JSON Schema. Whatever it has no field for is written as JSON. */

import { h } from "../base/dom.js";
import { plain, short } from "../base/text.js";

/**
 * @typedef {{node: HTMLElement, read: () => Record<string, any>}} ArgumentForm
 * @param {any} schema of an object
 * @returns {ArgumentForm}
 */
export function formOf(schema) {
  const properties = schema?.properties && typeof schema.properties === "object" ? schema.properties : {};
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const fields = Object.entries(properties).map(([name, each]) => fieldOf(name, resolved(each, schema), required.has(name)));
  const raw = h("textarea", { rows: "6", "aria-label": "Arguments as JSON", spellcheck: "false", class: "code" });
  const whole = h("details", { class: "raw" }, h("summary", null, "As JSON"), raw);
  const own = h("div", { class: "fields" }, ...fields.map((each) => each.node), fields.length ? null : h("p", { class: "quiet" }, "It takes no arguments."));
  const read = () => {
    if (whole.open && raw.value.trim()) return parsed("arguments", raw.value);
    const pairs = fields.map((each) => [each.name, each.read()]).filter(([, value]) => value !== undefined);
    return Object.fromEntries(pairs);
  };
  whole.addEventListener("toggle", () => {
    if (!whole.open) return void own.removeAttribute("hidden");
    try {
      raw.value = JSON.stringify(Object.fromEntries(fields.map((each) => [each.name, each.read()]).filter(([, value]) => value !== undefined)), null, 2);
    } catch {
      raw.value = "{}";
    }
    own.setAttribute("hidden", "");
  });
  return { node: h("div", null, own, whole), read };
}

/**
 * @param {any} schema
 * @param {any} root
 * @returns {any}
 */
function resolved(schema, root) {
  const name = /^#\/\$defs\/([^/]+)$/.exec(schema?.$ref || "")?.[1];
  const found = name ? root.$defs?.[name] : schema;
  const options = (found?.anyOf || found?.oneOf || []).filter((/** @type {any} */ each) => each?.type !== "null");
  return options.length === 1 ? { ...found, ...resolved(options[0], root), anyOf: undefined } : found || {};
}

let number = 0;

/**
 * @param {string} name
 * @param {any} schema
 * @param {boolean} required
 */
function fieldOf(name, schema, required) {
  const id = `field-${number++}`;
  const [entry, read] = entryOf(name, schema, id, required);
  if (schema.default !== undefined && schema.default !== null && "placeholder" in entry) entry.placeholder = short(schema.default, 60);
  const kind = Array.isArray(schema.type) ? schema.type.join(" or ") : schema.enum ? "choice" : schema.type || "JSON";
  const node = h("div", { class: "field" },
    h("label", { for: id }, h("code", null, plain(name)), h("span", { class: "quiet" }, ` ${plain(kind)}${required ? "" : ", optional"}`)), entry,
    schema.description ? h("p", { class: "quiet" }, plain(schema.description)) : null);
  return { name, node, read };
}

/**
 * @param {string} name
 * @param {any} schema
 * @param {string} id
 * @param {boolean} required
 * @returns {[any, () => any]} the entry and how to read it
 */
function entryOf(name, schema, id, required) {
  if (Array.isArray(schema.enum)) {
    const entry = h("select", { id }, required ? null : h("option", { value: "" }, "–"), ...schema.enum.map((/** @type {any} */ each, /** @type {number} */ i) => h("option", { value: String(i) }, short(each, 80))));
    return [entry, () => (entry.value === "" ? undefined : schema.enum[Number(entry.value)])];
  }
  if (schema.type === "boolean") {
    const entry = h("select", { id }, required ? null : h("option", { value: "" }, "–"), h("option", { value: "false" }, "false"), h("option", { value: "true" }, "true"));
    return [entry, () => (entry.value === "" ? undefined : entry.value === "true")];
  }
  if (schema.type === "integer" || schema.type === "number") {
    const entry = h("input", { id, type: "number", step: schema.type === "integer" ? "1" : "any" });
    return [entry, () => (entry.value === "" ? undefined : Number(entry.value))];
  }
  if (schema.type === "string") {
    const entry = h("textarea", { id, rows: "1", spellcheck: "false" });
    entry.addEventListener("input", () => (entry.rows = Math.min(12, entry.value.split("\n").length)));
    return [entry, () => (entry.value === "" && !required ? undefined : entry.value)];
  }
  const entry = h("textarea", { id, rows: "3", spellcheck: "false", class: "code" });
  entry.placeholder = schema.type === "array" ? "[…]" : "JSON";
  return [entry, () => (entry.value.trim() === "" ? undefined : parsed(name, entry.value))];
}

/**
 * @param {string} name
 * @param {string} text
 */
function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}
