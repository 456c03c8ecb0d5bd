// @ts-check
/** What the server says of this console. */

import { isStatic } from "./files_api.js";
import { ROOT } from "./api.js";

let known = { trace_url: "" };

/** Ask the server once. A server that has no settings has the defaults. */
export async function loadSettings() {
  if (isStatic) return;
  try {
    const answer = await fetch(new URL("console/settings.json", ROOT), { credentials: "omit" });
    if (answer.ok) known = { ...known, ...(await answer.json()) };
  } catch {
    // the defaults
  }
}

export function settings() {
  return known;
}
