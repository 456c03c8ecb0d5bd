// @ts-check
/** The shell of the console: pages by address, login, theme, keys. */

import { get, ROOT } from "./base/api.js";
import { h, say, swap } from "./base/dom.js";
import { isStatic } from "./base/files_api.js";
import { begin, end, fromOtherTab, token, whenEnded } from "./base/session.js";
import { button, failure } from "./base/parts.js";

/**
 * @typedef {{parts: string[], query: Record<string, string>, signal: AbortSignal, put: (query: Record<string, any>) => void}} Place
 * @typedef {(place: Place) => Promise<Node> | Node} Page
 */

/** @type {[string, string, () => Promise<{default: Page}>][]} name in the address, title, module */
const PAGES = [
  ["", "Overview", () => import("./platform/overview.js")],
  ["instances", "Instances", () => import("./instances/instances.js")],
  ["services", "Services", () => import("./instances/services.js")],
  ["hub", "Hub", () => import("./hub/hub.js")],
  ["playground", "Playground", () => import("./hub/playground.js")],
  ["runs", "Runs", () => import("./runs/runs.js")],
  ["metrics", "Metrics", () => import("./platform/metrics.js")],
];
/** @type {Record<string, () => Promise<{default: Page}>>} */
const DEEPER = {
  "instances/": () => import("./instances/instance.js"),
  "services/": () => import("./instances/service.js"),
  "hub/": () => import("./hub/environment.js"),
  "runs/": () => import("./runs/run.js"),
  "group/": () => import("./runs/group.js"),
  "episode/": () => import("./runs/episode.js"),
  "ide/": () => import("./ide/ide.js"),
};

/** @type {Record<string, () => Promise<{default: Page}>>} pages that no other leads to */
const ALONE = { user: () => import("./runs/user.js") };

/** @type {Record<string, string>} pages that have no entry of their own, and the one that they are shown under */
const UNDER = { group: "runs", episode: "runs", ide: "playground" };

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
let leaving = new AbortController();
let first = true;

/** @returns {{parts: string[], query: Record<string, string>}} */
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function show() {
  leaving.abort();
  const signal = (leaving = new AbortController()).signal;
  const { parts, query } = address();
  const name = parts[0] || "";
  for (const link of document.querySelectorAll("#pages a")) {
    const own = link.getAttribute("href") === `#/${UNDER[name] ?? name}`;
    own ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    if (own) link.scrollIntoView({ block: "nearest", inline: "center" });
  }
  const load = parts.length > 1 ? DEEPER[`${name}/`] : PAGES.find(([each]) => each === name)?.[2] ?? (Object.hasOwn(ALONE, name) ? ALONE[name] : undefined);
  const put = (/** @type {Record<string, any>} */ changed) => {
    const merged = Object.entries({ ...address().query, ...changed }).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const text = new URLSearchParams(merged.map(([k, v]) => [k, String(v)])).toString();
    history.replaceState(null, "", `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
  };
  try {
    if (!load) throw new Error("There is no such page.");
    const page = await load();
    const node = await page.default({ parts, query, signal, put });
    if (signal.aborted) return;
    swap(main, node);
  } catch (error) {
    if (signal.aborted) return;
    swap(main, h("h1", { tabindex: "-1" }, "This page cannot be shown"), failure(error));
  }
  const title = main.querySelector("h1");
  document.title = `${title?.textContent || "console"} · aenv`;
  if (!first) title?.focus();
  first = false;
  say(title?.textContent || "");
}

/** @param {any} [reason] */
function login(reason) {
  leaving.abort();
  leaving = new AbortController();
  const entry = h("input", { id: "token", type: "password", autocomplete: "current-password", spellcheck: "false", required: true });
  const place = h("div", null, reason ? failure(reason) : null);
  const form = h("form", { class: "card login" },
    h("h1", { tabindex: "-1" }, "Log in"),
    h("p", null, "Paste a token of this platform. It stays in this tab until you close it."),
    h("label", { for: "token" }, "Token"), entry, h("button", { type: "submit" }, "Log in"), place,
    h("p", { class: "quiet" }, "On the machine of the platform: ", h("code", null, "aenv serve token create"), ". Or run ",
      h("code", null, "aenv console"), ", which prints a link that logs you in."));
  form.addEventListener("submit", async (/** @type {Event} */ event) => {
    event.preventDefault();
    begin(entry.value.trim());
    try {
      await get("env-instance/list", { limit: 1 });
      entry.value = "";
      await open();
    } catch (error) {
      sessionStorage.clear();
      swap(place, failure(error));
      entry.focus();
    }
  });
  document.body.classList.add("outside");
  document.title = "Log in · aenv";
  swap(main, form);
  entry.focus();
}

/** Exchange the code of a one-time link, and take it out of the address. */
async function takeCode() {
  const [, code, user] = /^#code=([\w-]+)(&user)?$/.exec(location.hash) || [];
  if (!code) return;
  history.replaceState(null, "", user ? `${location.pathname}#/user` : location.pathname);
  const answer = await fetch(new URL("console/session", ROOT), {
    method: "POST", credentials: "omit", headers: { "content-type": "application/json" }, body: JSON.stringify({ code }),
  });
  if (!answer.ok && token()) return; // a link that this tab has used before
  if (!answer.ok) throw new Error("This link was used already, or is too old. Run aenv console again.");
  begin((await answer.json()).token);
}

async function open() {
  document.body.classList.remove("outside");
  const links = PAGES.filter(([name]) => !isStatic || name === "runs").map(([name, title]) => h("a", { href: `#/${name}` }, title));
  swap(/** @type {HTMLElement} */ (document.getElementById("pages")), ...links);
  const theme = button("◐", () => {
    const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("aenv-theme", dark ? "light" : "dark");
  }, { "aria-label": "Dark or light", title: "Dark or light", class: "plain" });
  const leave = token() ? button("Log out", () => end(), { class: "plain" }) : null;
  swap(/** @type {HTMLElement} */ (document.getElementById("tools")), theme, leave);
  await show();
}

async function start() {
  const theme = localStorage.getItem("aenv-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  document.body.classList.add("outside");
  whenEnded(() => login());
  document.addEventListener("unauthorized", (event) => {
    if (document.body.classList.contains("outside")) return;
    const had = token();
    sessionStorage.clear();
    login(had ? /** @type {any} */ (event).detail : null);
  });
  addEventListener("hashchange", () => {
    if (location.hash === "#main") return main.focus();
    if (location.hash.startsWith("#code=")) return void takeCode().then(open, login);
    if (!document.body.classList.contains("outside")) void show();
  });
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault();
    (main.querySelector("h1") || main).focus();
  });
  if (isStatic) {
    if (!location.hash) location.hash = "#/runs";
    return open();
  }
  try {
    await takeCode();
  } catch (error) {
    return login(error);
  }
  if (!token()) {
    const shared = await fromOtherTab();
    if (shared) begin(shared);
    else {
      try {
        await get("env-instance/list", { limit: 1 }); // a platform for this machine alone needs no token
      } catch (error) {
        const wanted = /** @type {any} */ (error).status === 401;
        return login(wanted ? null : error);
      }
    }
  }
  await open();
}

void start();
