// @ts-check
/** A chat with a model that may call the tools of an instance. The server of the console keeps the model's key. */

import { get, send } from "../base/api.js";
import { shown } from "../base/content.js";
import { h, swap } from "../base/dom.js";
import { block, button, failure } from "../base/parts.js";
import { plain, pretty, short } from "../base/text.js";

const ROUNDS = 20; // answers of the model for one message of the user

/**
 * The model of this console; null where none is configured.
 * @param {AbortSignal} signal
 * @returns {Promise<string | null>}
 */
export async function model(signal) {
  try {
    return (await get("console/model", {}, signal)).model;
  } catch {
    return null;
  }
}

/**
 * @typedef {{tools: any[], call: (name: string, given: any) => Promise<any>, system?: string, messages?: any[], changed?: (messages: any[]) => any, before?: () => string, signal: AbortSignal}} ChatOptions
 * @param {ChatOptions} options `before`: text to add to the user's next message, such as errors of a page
 */
export function chat({ tools, call, system, messages = [], changed, before, signal }) {
  const list = h("div", { class: "messages", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const entry = h("textarea", { rows: "2", "aria-label": "Message to the model", placeholder: "Message" });
  const state = h("span", { class: "quiet", role: "status" });
  const offered = tools.map((each) => ({ type: "function", function: { name: each.name, description: each.description || "", parameters: each.inputSchema || { type: "object", properties: {} } } }));

  /** @param {any} message */
  function add(message) {
    messages.push(message);
    draw(message);
  }

  /** @param {any} message */
  function draw(message) {
    if (message.role === "system") return;
    const calls = (Array.isArray(message.tool_calls) ? message.tool_calls : []).map((/** @type {any} */ each) => h("details", { class: "calls" }, h("summary", null, h("span", { class: "kind" }, "calls"), h("code", null, plain(each.function?.name)), " ", short(each.function?.arguments || "", 80)), block(pretty(each.function?.arguments || ""))));
    const body = message.role === "tool" ? [h("details", null, h("summary", null, h("span", { class: "kind" }, "result"), " ", short(message.content, 100)), ...shown(message.content))] : [message.content ? h("div", { class: "said" }, plain(String(message.content))) : null, ...calls];
    list.append(h("div", { class: `message ${["user", "assistant", "tool"].includes(message.role) ? message.role : ""}` }, ...body));
    list.scrollTop = list.scrollHeight;
  }

  /** @param {any} wanted a tool call */
  async function done(wanted) {
    let given;
    try {
      given = JSON.parse(wanted.function?.arguments || "{}");
    } catch {
      return "The arguments are not JSON.";
    }
    try {
      const result = await call(String(wanted.function?.name), given);
      const texts = (result.content || []).map((/** @type {any} */ each) => each.text ?? `[${each.type}]`);
      return texts.join("\n") || "done";
    } catch (error) {
      return `Error: ${/** @type {Error} */ (error).message}`;
    }
  }

  const ask = button("Send", async () => {
    const text = entry.value.trim();
    if (!text) return;
    entry.value = "";
    const more = before?.();
    if (system && !messages.length) messages.push({ role: "system", content: system });
    add({ role: "user", content: more ? `${text}\n\n${more}` : text });
    try {
      for (let round = 0; round < ROUNDS; round++) {
        state.textContent = "The model writes…";
        const { message } = await send("POST", "console/model", { messages, tools: offered }, signal);
        add(message);
        if (!message.tool_calls?.length) break;
        for (const wanted of message.tool_calls) {
          state.textContent = `Calling ${short(wanted.function?.name, 60)}…`;
          add({ role: "tool", tool_call_id: wanted.id, content: await done(wanted) });
        }
      }
    } catch (error) {
      if (!signal.aborted) list.append(failure(error));
    } finally {
      state.textContent = "";
      await changed?.(messages);
    }
  });
  entry.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    ask.click();
  });
  const clear = button("Forget", async () => {
    messages.length = 0;
    swap(list);
    await changed?.(messages);
  }, { class: "plain" });
  messages.forEach(draw);
  return h("section", { class: "chat", "aria-label": "Chat" }, list, entry, h("p", { class: "row" }, ask, clear, state));
}
