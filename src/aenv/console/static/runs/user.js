// @ts-check
/** A person as the user of a rollout: what they want and know, what was said, and what they answer. */

import { get, send } from "../base/api.js";
import { h, say, swap } from "../base/dom.js";
import { button, facts, failure, heading } from "../base/parts.js";
import { plain, short } from "../base/text.js";

/** @type {import("../main.js").Page} */
export default function user({ signal }) {
  const role = h("section", { class: "card", "aria-label": "Your role", hidden: true });
  const list = h("div", { class: "messages", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const entry = h("textarea", { rows: "3", "aria-label": "Your message to the agent", placeholder: "What you say" });
  const state = h("p", { class: "quiet", role: "status" }, "Waiting for an agent.");
  /** @type {any} */
  let now = { turn: 0, waits: false };

  /** @param {any} body */
  async function answer(body) {
    await send("POST", "console/user", { turn: now.turn, ...body }, signal);
    entry.value = "";
  }
  const submit = button("Send", () => entry.value.trim() && answer({ text: entry.value }));
  const leave = button("Leave the conversation", () => answer({ leave: true }), { class: "small" });
  entry.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    submit.click();
  });

  function draw() {
    const { goal, persona, knowledge } = now.profile;
    role.hidden = !now.turn;
    swap(role, h("h2", null, "You are the user"), persona ? h("p", null, plain(persona)) : null, goal ? h("p", null, h("strong", null, plain(goal))) : null,
      facts(Object.entries(knowledge || {}).map(([name, value]) => [plain(name), short(value, 300)])));
    swap(list, ...now.messages.map((/** @type {any} */ each) => h("div", { class: `message ${each.by === "user" ? "user" : "assistant"}` }, h("span", { class: "unseen" }, each.by === "user" ? "You: " : "Agent: "), h("div", { class: "said" }, plain(each.text)))));
    list.scrollTop = list.scrollHeight;
    const text = now.waits ? (now.messages.length ? "The agent waits for your answer." : "You speak first.") : now.turn ? "The agent works. Its next message, or the next episode, appears here." : "Waiting for an agent.";
    if (state.textContent !== text) say(text);
    state.textContent = text;
    submit.disabled = leave.disabled = entry.disabled = !now.waits;
    if (now.waits) entry.focus();
  }

  async function listen() {
    while (!signal.aborted) {
      try {
        const found = await get("console/user", { seen: now.version }, signal);
        if (found.version === now.version) continue;
        now = found;
        draw();
      } catch (error) {
        if (signal.aborted) return;
        const none = /** @type {any} */ (error).status === 404;
        swap(state, none ? "No rollout asks for you here. Run: aenv rollout ENVIRONMENT --user console" : failure(error));
        submit.disabled = leave.disabled = entry.disabled = true;
        if (none) return;
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }
  void listen();
  return h("div", null, heading("User"), role, h("section", { class: "chat", "aria-label": "Conversation with the agent" }, list, entry, h("p", { class: "row" }, submit, leave)), state);
}
