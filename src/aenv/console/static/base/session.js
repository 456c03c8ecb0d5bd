// @ts-check
/**
 * The token of this tab. It lives in sessionStorage and travels in a header, never in a cookie or an address: what an
 * environment serves at this origin carries no rights when a browser opens it. Tabs of one origin hand it on.
 */

const KEY = "aenv-token";
const channel = new BroadcastChannel("aenv-console");
/** @type {() => void} */
let onEnd = () => {};

channel.onmessage = (/** @type {MessageEvent<any>} */ { data }) => {
  const held = token();
  if (data?.ask && held) channel.postMessage({ token: held });
  if (data?.end) {
    sessionStorage.removeItem(KEY);
    onEnd();
  }
};

export function token() {
  return sessionStorage.getItem(KEY);
}

/** @param {string} text */
export function begin(text) {
  sessionStorage.setItem(KEY, text);
}

/** Forget the token in every tab. */
export function end() {
  sessionStorage.removeItem(KEY);
  channel.postMessage({ end: true });
  onEnd();
}

/** @param {() => void} listener */
export function whenEnded(listener) {
  onEnd = listener;
}

/**
 * The token that another tab has, or null after a moment without an answer.
 * @returns {Promise<string | null>}
 */
export function fromOtherTab() {
  return new Promise((resolve) => {
    const asking = new BroadcastChannel("aenv-console");
    const done = (/** @type {string | null} */ found) => {
      clearTimeout(timer);
      asking.close();
      resolve(found);
    };
    const timer = setTimeout(() => done(null), 100);
    asking.onmessage = ({ data }) => typeof data?.token === "string" && done(data.token);
    asking.postMessage({ ask: true });
  });
}
