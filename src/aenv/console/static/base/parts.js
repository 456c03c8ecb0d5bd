// @ts-check
/** Parts that several pages show: badges, tables, cards, errors, charts. */

import { h, fill, svg, swap } from "./dom.js";
import { plain, number } from "./text.js";

const TONES = /** @type {Record<string, string>} */ ({
  Running: "good", ok: "good", done: "good", Released: "good", Ready: "good", better: "good",
  Pending: "wait", Creating: "wait", running: "wait", timeout: "wait", unfinished: "wait", Updating: "wait",
  Failed: "bad", env: "bad", infra: "bad", failed: "bad", error: "bad", user: "bad", worse: "bad", different: "bad", same: "good",
});

/** @param {unknown} word a state, an outcome or a fault */
export function badge(word) {
  const text = plain(word || "–");
  return h("span", { class: `badge ${TONES[text] || "none"}` }, text);
}

/**
 * The head of a page.
 * @param {string} title
 * @param {...any} more
 */
export function heading(title, ...more) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, title), ...more);
}

/**
 * A table, which scrolls sideways where it is too wide.
 * @param {string} caption for screen readers
 * @param {(string | [string, string])[]} columns titles, with a class
 * @param {any[][]} rows cells
 * @param {string} [empty]
 */
export function table(caption, columns, rows, empty = "Nothing here.") {
  const named = columns.map((each) => (Array.isArray(each) ? each : [each, ""]));
  const body = rows.map((cells) => h("tr", null, ...cells.map((cell, i) => h("td", { class: named[i]?.[1] }, cell))));
  const none = h("tr", null, h("td", { colspan: columns.length, class: "quiet" }, empty));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, ...named.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", null, ...(body.length ? body : [none]))));
}

/**
 * A list of facts.
 * @param {[string, any][]} pairs
 */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h("dl", { class: "facts" }, ...shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** @param {any} error */
export function failure(error) {
  const text = error instanceof Error ? error.message : String(error);
  return h("div", { class: "failure", role: "alert" }, h("strong", null, plain(text)),
    error?.fault ? h("span", null, " ", badge(error.fault)) : null, error?.hint ? h("p", null, plain(error.hint)) : null);
}

/**
 * A card with a figure.
 * @param {string} name
 * @param {any} value
 * @param {any} [more]
 */
export function figure(name, value, more) {
  return h("div", { class: "card figure" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value),
    more ? h("div", { class: "quiet" }, more) : null);
}

/**
 * Text from outside, as it is.
 * @param {unknown} text
 * @param {string} [kind]
 */
export function block(text, kind = "") {
  return h("pre", { class: `block ${kind}`, tabindex: "0" }, plain(text));
}

/**
 * A button.
 * @param {string} text
 * @param {() => any} action what it raises is shown beside it
 * @param {Record<string, any>} [props]
 */
export function button(text, action, props) {
  const node = h("button", { type: "button", ...props }, text);
  node.addEventListener("click", async () => {
    node.disabled = true;
    node.parentElement?.querySelector(":scope > .failure")?.remove();
    try {
      await action();
    } catch (error) {
      node.after(failure(error));
    } finally {
      node.disabled = false;
    }
  });
  return node;
}

/**
 * A button that asks once more before it acts.
 * @param {string} text
 * @param {string} question
 * @param {() => any} action
 */
export function asking(text, question, action) {
  let asked = 0;
  const node = button(text, async () => {
    if (Date.now() - asked > 4000) {
      asked = Date.now();
      node.textContent = question;
      setTimeout(() => (node.textContent = text), 4000);
      return;
    }
    asked = 0;
    node.textContent = text;
    await action();
  }, { class: "danger" });
  return node;
}

/**
 * Values over time, as a small line.
 * @param {(number | null)[]} values
 * @param {string} label
 */
export function line(values, label) {
  const [width, height] = [220, 40];
  const known = values.filter((each) => each !== null);
  const [low, high] = [Math.min(0, ...known), Math.max(...known, 1e-9)];
  const points = values
    .map((value, i) => (value === null ? null : `${(i / Math.max(1, values.length - 1)) * width},${height - 2 - ((value - low) / (high - low)) * (height - 4)}`))
    .filter(Boolean).join(" ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "line", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("polyline", { points }));
}

/**
 * How often values are in ranges.
 * @param {number[]} values
 * @param {string} label
 */
export function histogram(values, label) {
  if (!values.length) return h("p", { class: "quiet" }, "No rewards yet.");
  const [low, high] = values.reduce(([least, most], each) => [Math.min(least, each), Math.max(most, each)], [Infinity, -Infinity]);
  const bins = new Array(low === high ? 1 : 12).fill(0);
  for (const value of values) bins[low === high ? 0 : Math.min(11, Math.floor(((value - low) / (high - low)) * 12))] += 1;
  const most = Math.max(...bins);
  const width = 240 / bins.length;
  const bars = bins.map((n, i) => svg("rect", { x: i * width + 1, y: 58 - (n / most) * 54, width: width - 2, height: (n / most) * 54 + 1 },
    svg("title", {}, `${n} of ${values.length}`)));
  const axis = h("div", { class: "axis" }, h("span", null, number(low)), h("span", null, number(high)));
  return h("div", null, svg("svg", { viewBox: "0 0 240 60", class: "histogram", role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...bars), axis);
}

/**
 * Numbers by outcome, as a bar with its legend.
 * @param {Record<string, number>} counts
 */
export function outcomes(counts) {
  const all = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const bar = h("span", { class: "stack", "aria-hidden": "true" });
  const legend = [];
  for (const [word, n] of Object.entries(counts)) {
    const piece = h("i", { class: TONES[word] || "none" });
    piece.style.width = `${(100 * n) / Math.max(1, all)}%`;
    bar.append(piece);
    legend.push(`${n} ${plain(word)}`);
  }
  return h("span", { class: "outcomes" }, bar, h("span", { class: "quiet" }, legend.join(", ") || "none yet"));
}

/**
 * A button that copies text.
 * @param {() => string} text
 */
export function copier(text) {
  const node = button("Copy", async () => {
    await navigator.clipboard.writeText(text());
    node.textContent = "Copied";
    setTimeout(() => (node.textContent = "Copy"), 1500);
  }, { class: "small" });
  return node;
}

/**
 * A form of choices, which calls back with all of them when one changes.
 * @param {any[]} fields
 * @param {(values: Record<string, string>) => void} changed
 */
export function choices(fields, changed) {
  const form = h("form", { class: "choices", role: "search" }, ...fields);
  const read = () => changed(Object.fromEntries(/** @type {any} */ (new FormData(form))));
  form.addEventListener("submit", (/** @type {Event} */ event) => (event.preventDefault(), read()));
  form.addEventListener("change", read);
  return form;
}

/**
 * @param {string} label
 * @param {string} name
 * @param {string[]} options
 * @param {string} value
 */
export function select(label, name, options, value) {
  const node = h("select", { name }, ...options.map((each) => h("option", { value: each, selected: each === value }, each || "all")));
  return h("label", null, `${label} `, node);
}

/**
 * @param {string} label
 * @param {string} name
 * @param {string} value
 * @param {Record<string, any>} [props]
 */
export function field(label, name, value, props) {
  return h("label", null, `${label} `, h("input", { name, value, autocomplete: "off", spellcheck: "false", ...props }));
}

/**
 * Views of one thing, of which one is shown. A view is made when it is first chosen.
 * @param {string} name for screen readers
 * @param {Record<string, () => any>} views by their titles
 * @param {string} chosen
 * @param {(title: string) => void} changed
 */
export function tabs(name, views, chosen, changed) {
  const titles = Object.keys(views);
  const panel = h("div", { role: "tabpanel", class: "panel", tabindex: "-1" });
  /** @type {Record<string, any>} */
  const made = {};
  const list = h("div", { role: "tablist", class: "tabs", "aria-label": name }, ...titles.map((title) => h("button", { type: "button", role: "tab", on: { click: () => choose(title) } }, title)));
  list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = [...list.children].findIndex((each) => each === document.activeElement);
    if (step && at >= 0) /** @type {HTMLElement} */ (list.children[(at + step + titles.length) % titles.length]).click();
  });

  /**
   * @param {string} title
   * @param {boolean} [quietly]
   */
  async function choose(title, quietly) {
    for (const each of list.children) {
      const own = each.textContent === title;
      each.setAttribute("aria-selected", String(own));
      each.setAttribute("tabindex", own ? "0" : "-1");
      if (own && !quietly) each.focus();
    }
    panel.setAttribute("aria-label", title);
    if (!quietly) changed(title);
    try {
      made[title] ??= await views[title]();
      swap(panel, made[title]);
    } catch (error) {
      swap(panel, failure(error));
    }
  }
  void choose(titles.includes(chosen) ? chosen : titles[0], true);
  return h("div", null, list, panel);
}

export { fill, swap };
