// @ts-check
/** A shell in an instance: xterm.js, which is loaded when a terminal is first opened, on a WebSocket of the platform. */

import { path, ROOT } from "../base/api.js";
import { h, swap } from "../base/dom.js";
import { button } from "../base/parts.js";
import { token } from "../base/session.js";

const THEMES = {
  light: { background: "#ffffff", foreground: "#1b2030", cursor: "#3b4fc4", cursorAccent: "#ffffff", selectionBackground: "#cdd5ff" },
  dark: { background: "#11131a", foreground: "#e6e8ee", cursor: "#9db0ff", cursorAccent: "#11131a", selectionBackground: "#3a4680" },
};
const PING_MS = 60_000;

/** xterm.js writes its rules into `<style>` elements, which the console's policy refuses: these are style sheets instead. */
function adoptStyles() {
  const create = document.createElement.bind(document);
  if ("aenvStyles" in document) return;
  Object.defineProperty(document, "aenvStyles", { value: true });
  document.createElement = /** @type {any} */ ((/** @type {string} */ tag, /** @type {any} */ options) => {
    if (tag !== "style") return create(tag, options);
    const node = create("aenv-style");
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    Object.defineProperty(node, "textContent", { set: (text) => sheet.replaceSync(text), get: () => "" });
    const remove = node.remove.bind(node);
    node.remove = () => (document.adoptedStyleSheets.splice(document.adoptedStyleSheets.indexOf(sheet), 1), remove());
    return node;
  });
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Where a WebSocket of an instance is, and the subprotocols that carry the token: a script can set no header.
 * @param {string} id
 */
function socketOf(id) {
  const url = new URL(`${path("instance", id)}/exec`, ROOT);
  url.protocol = url.protocol.replace("http", "ws");
  const held = token();
  return new WebSocket(url, held ? ["aenv", `bearer.${btoa(held).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`] : ["aenv"]);
}

/**
 * @param {string} id of an instance
 * @param {AbortSignal} signal
 */
export async function terminal(id, signal) {
  adoptStyles();
  const vendored = (/** @type {string} */ name) => import(new URL(`../vendor/xterm/${name}`, import.meta.url).href);
  const [{ Terminal }, { FitAddon }] = await Promise.all([vendored("xterm.mjs"), vendored("addon-fit.mjs")]);
  if (!document.querySelector('link[href$="xterm.css"]')) document.head.append(h("link", { rel: "stylesheet", href: new URL("console/vendor/xterm/xterm.css", ROOT).href }));
  const screen = h("div", null); // without a padding of its own: rows and columns are counted by its size
  const state = h("span", { class: "quiet", role: "status" });
  const again = h("span", null);
  const shown = new Terminal({ cursorBlink: true, fontSize: 13, scrollback: 5000, screenReaderMode: true, theme: THEMES[dark() ? "dark" : "light"],
    linkHandler: { activate: () => {} } });
  const fit = new FitAddon();
  shown.loadAddon(fit);
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {any} */
  let pinging;

  function connect() {
    swap(again);
    shown.reset();
    state.textContent = "connecting";
    const own = (socket = socketOf(id));
    own.binaryType = "arraybuffer";
    own.onopen = () => {
      own.send(JSON.stringify({ command: "if command -v bash >/dev/null; then exec bash; else exec sh; fi", tty: true, rows: shown.rows, columns: shown.cols, env: { TERM: "xterm-256color" } }));
      state.textContent = "connected";
      pinging = setInterval(() => own.send(JSON.stringify({ type: "resize", rows: shown.rows, columns: shown.cols })), PING_MS);
      shown.focus();
    };
    own.onmessage = ({ data }) => {
      if (typeof data !== "string") return shown.write(new Uint8Array(data, 1));
      const said = JSON.parse(data);
      if (said.type === "exit") state.textContent = `ended with exit code ${Number(said.exit_code)}`;
      if (said.type === "error") state.textContent = String(said.error || said.message || "refused");
    };
    own.onclose = () => {
      clearInterval(pinging);
      if (state.textContent === "connected" || state.textContent === "connecting") state.textContent = "disconnected";
      if (!signal.aborted) swap(again, button("Open it again", connect, { class: "small" }));
    };
  }

  shown.onData((/** @type {string} */ text) => socket?.readyState === WebSocket.OPEN && socket.send(new TextEncoder().encode(text)));
  shown.onResize((/** @type {any} */ { rows, cols }) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify({ type: "resize", rows, columns: cols })));
  const sizes = new ResizeObserver(() => screen.clientWidth && fit.fit());
  signal.addEventListener("abort", () => {
    socket?.close();
    sizes.disconnect();
    shown.dispose();
  });
  const node = h("div", null, h("p", { class: "row" }, state, again, h("span", { class: "quiet" }, "The shell ends when you leave this page. Tab is the terminal's; Escape, then Tab, leaves it.")), h("div", { class: "shell" }, screen));
  let escaped = false;
  shown.attachCustomKeyEventHandler((/** @type {KeyboardEvent} */ event) => {
    if (event.type !== "keydown") return true;
    const leaves = escaped && event.key === "Tab";
    escaped = event.key === "Escape";
    return !leaves;
  });
  requestAnimationFrame(() => {
    shown.open(screen);
    fit.fit();
    sizes.observe(screen);
    connect();
  });
  return node;
}
