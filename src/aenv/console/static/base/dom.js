// @ts-check
/** Builds DOM nodes. Text is only ever inserted as text: nothing in the console parses HTML. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Create an element.
 * @param {string} tag
 * @param {Record<string, any> | null} [props] attributes; `class`, `on` (listeners by event) and `value` are special
 * @param {...(Child | Child[])} children strings become text nodes
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, /** @type {any} */ (listener));
    else if (name === "value") /** @type {any} */ (node).value = value;
    else if (name === "href") node.setAttribute(name, safeLink(String(value)));
    else if (/^(on|src|style|srcdoc|action|formaction)/.test(name)) throw new Error(`h() does not set ${name}`);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return fill(node, ...children);
}

/**
 * Append children to a node.
 * @template {Node} T
 * @param {T} node
 * @param {...(Child | Child[])} children
 * @returns {T}
 */
export function fill(node, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/**
 * Replace the children of a node.
 * @template {Element} T
 * @param {T} node
 * @param {...(Child | Child[])} children
 * @returns {T}
 */
export function swap(node, ...children) {
  node.replaceChildren();
  return fill(node, ...children);
}

/**
 * Create an SVG element of a chart.
 * @param {string} tag
 * @param {Record<string, string | number>} props
 * @param {...Child} children
 */
export function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, String(value));
  return fill(node, ...children);
}

/**
 * A link of the console, or to the web; anything else, such as `javascript:`, leads nowhere.
 * @param {string} target
 */
function safeLink(target) {
  return target.startsWith("#") || /^https?:\/\//i.test(target) ? target : "#/";
}

/**
 * The address of a page of the console.
 * @param {string[]} parts
 * @param {Record<string, any>} [query]
 */
export function to(parts, query) {
  const path = parts.map(encodeURIComponent).join("/");
  const pairs = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#/${path}${pairs.length ? `?${new URLSearchParams(pairs.map(([k, v]) => [k, String(v)]))}` : ""}`;
}

/**
 * Tell screen readers what has happened.
 * @param {string} text
 */
export function say(text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
}
