// Requests to this node. Addresses are relative: a base path before /ui needs nothing here.

export class ApiError extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

const listeners = new Set();
let csrf = "";

/** Call `listener` when a request finds that the session is over. */
export const onSessionOver = (listener) => listeners.add(listener);

export const keepToken = (token) => {
  csrf = token ?? "";
};

const encode = (words) => words.map((word) => encodeURIComponent(word)).join("/");

/** The address of a document: segments and query. */
export function url(words, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs).toString();
  return `api/${encode(words)}${text ? `?${text}` : ""}`;
}

async function answer(response, isLogin) {
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 401 && !isLogin) listeners.forEach((listener) => listener());
  throw new ApiError(response.status, body?.error?.message ?? `The server answered ${response.status}.`);
}

export async function get(words, { query = {}, signal } = {}) {
  return answer(await fetch(url(words, query), { signal, cache: "no-store" }));
}

async function send(method, words, body) {
  const response = await fetch(url(words), {
    method,
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(body ?? {}),
  });
  return answer(response, words[0] === "session");
}

export const post = (words, body) => send("POST", words, body);
export const remove = (words) => send("DELETE", words);

/**
 * Run `work` now and again until `signal` ends: after `periodMs`, or after twenty times what the
 * last run took, lest an open page load a busy server; ten seconds at most. Nothing runs while the
 * page is hidden.
 */
export function every(periodMs, signal, work) {
  let timer = 0;
  const turn = async () => {
    clearTimeout(timer);
    const began = performance.now();
    if (!document.hidden) await work();
    if (signal.aborted) return;
    clearTimeout(timer); // of a turn that was asked for meanwhile
    const pause = Math.min(10_000, Math.max(periodMs, 20 * (performance.now() - began)));
    timer = setTimeout(turn, pause);
  };
  const seen = () => document.hidden || turn();
  document.addEventListener("visibilitychange", seen, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
  return turn;
}
