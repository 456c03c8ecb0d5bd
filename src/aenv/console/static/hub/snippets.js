// @ts-check
/** Code that does what was done in the playground. */

/** @param {any} value JSON */
function python(value) {
  /** @type {(each: any) => string} */
  const write = (each) => {
    if (each === null) return "None";
    if (each === true || each === false) return each ? "True" : "False";
    if (Array.isArray(each)) return `[${each.map(write).join(", ")}]`;
    if (typeof each === "object") return `{${Object.entries(each).map(([k, v]) => `${JSON.stringify(k)}: ${write(v)}`).join(", ")}}`;
    return JSON.stringify(each);
  };
  return write(value);
}

/** @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", `'"'"'`)}'`;
}

/**
 * @param {string} env
 * @param {"tool" | "function" | "reward"} kind
 * @param {string} name
 * @param {any} given arguments
 */
export function pythonCode(env, kind, name, given) {
  const call = {
    tool: `(await env.call_tool(${JSON.stringify(name)}, ${python(given)})).data`,
    function: `await env.call_function(${JSON.stringify(name)}, ${python(given)})`,
    reward: `await env.call_reward(${python(given)})`,
  }[kind];
  return `import asyncio\n\nfrom aenv import Environment\n\n\nasync def main():\n    async with Environment(${JSON.stringify(env)}) as env:\n        print(${call})\n\n\nasyncio.run(main())\n`;
}

/**
 * @param {string} instance
 * @param {string} place path in the instance
 * @param {any} given arguments
 */
export function curlCode(instance, place, given) {
  return `curl -s -X POST "$AENV_SYSTEM_URL/instance/${encodeURIComponent(instance)}/${place}" \\\n  -H "Authorization: Bearer $AENV_API_KEY" \\\n  -d ${quoted(JSON.stringify(given))}\n`;
}
