// Server-sent events of this node: an overview each second, and what happens. A node that falls
// silent is noticed within two seconds; the page then goes on at another node that answers.

import { ApiError, get } from "./api.js";

const SILENT_MS = 1700; // an overview comes each second
const CHECK_MS = 150;
const PROBE_MS = 1000;
const REOPEN_MS = 1000; // after a refusal: a node serves so many event streams, and no more
const KEPT = 180; // samples of rates: three minutes
const KEPT_EVENTS = 200;

export const live = {
  overview: null,
  history: [], // {at, in_msgs, out_msgs, in_bytes, out_bytes, fsync}
  events: [], // newest first, since the page was opened
  state: "closed", // closed | opening | open | lost
};

const listeners = new Map();
let source = null;
let heard = 0;
let hasHeard = false; // anything of this source
let checking = 0;
let reopening = 0;
let isProbing = false;
let peers = [];
let server = {};

/** Call `listener` at each `overview`, `event`, `state`, `reachable` or `ended`, until `signal` ends. */
export function on(name, listener, signal) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(listener);
  signal?.addEventListener("abort", () => listeners.get(name).delete(listener));
}

function tell(name, value) {
  for (const listener of [...(listeners.get(name) ?? [])]) listener(value);
}

function enter(state) {
  if (live.state === state) return;
  live.state = state;
  tell("state", state);
}

/** Listen to this node; `session` names it and the nodes that may be asked in its place. */
export function start(session) {
  server = session.server ?? {};
  peers = session.peers ?? [];
  open();
  clearInterval(checking);
  checking = setInterval(check, CHECK_MS);
}

export function stop() {
  clearInterval(checking);
  clearTimeout(reopening);
  source?.close();
  source = null;
  enter("closed");
}

// A browser has six connections to a server, for all tabs together and for pages that it keeps to go
// back to: one that is not seen gives its own away.
document.addEventListener("visibilitychange", () => {
  if (live.state === "closed") return;
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) open();
});

function open() {
  source?.close();
  clearTimeout(reopening);
  heard = performance.now();
  hasHeard = false;
  if (live.state !== "lost") enter("opening");
  source = new EventSource("api/live");
  source.addEventListener("overview", (message) => {
    heard = performance.now();
    hasHeard = true;
    take(JSON.parse(message.data));
  });
  source.addEventListener("event", (message) => {
    heard = performance.now();
    live.events.unshift(JSON.parse(message.data));
    live.events.length = Math.min(live.events.length, KEPT_EVENTS);
    tell("event", live.events[0]);
  });
  source.addEventListener("session_ended", () => {
    stop();
    tell("ended");
  });
  source.onerror = () => {
    // The server may have ended a stream that it still serves: ask before anything is said.
    source?.close();
    source = null;
    probe({ isRefused: !hasHeard });
  };
}

function take(overview) {
  live.overview = overview;
  const rates = overview.rates ?? {};
  live.history.push({ at: Date.now(), ...rates, fsync: overview.fsync?.p99_ns ?? 0 });
  if (live.history.length > KEPT) live.history.shift();
  enter("open");
  tell("overview", overview);
}

function check() {
  if (document.hidden) {
    heard = performance.now(); // nothing is listened to
    return;
  }
  if (performance.now() - heard > SILENT_MS && !isProbing) {
    enter("lost");
    probe();
  }
}

/** Ask this node whether it is there; while it is not, look for another that is. One that is there
 * and refused the stream is asked for it again after a moment. */
async function probe({ isRefused = false } = {}) {
  if (isProbing || live.state === "closed") return;
  isProbing = true;
  let last = null;
  try {
    last = await get(["session"], { signal: AbortSignal.timeout(PROBE_MS) });
  } catch (error) {
    if (error instanceof ApiError) last = {}; // an answer, though not the one that was hoped for
  }
  isProbing = false;
  if (live.state === "closed" || document.hidden) return;
  if (last === null) {
    enter("lost");
    heard = performance.now() - SILENT_MS + PROBE_MS / 2; // ask again in half a second
    tell("reachable", await reachable());
  } else if (last.login === "needed") {
    stop();
    tell("ended");
  } else if (isRefused) {
    reopening = setTimeout(() => live.state !== "closed" && !document.hidden && open(), REOPEN_MS);
  } else open();
}

/** Other nodes, best first: those that answer; those that cannot be asked, and were there a second
 * ago; at last those that are away. */
async function reachable() {
  const others = knownNodes();
  const asked = await Promise.all(others.map((node) => answers(node)));
  const ranks = asked.map((answer, at) => (answer ? 2 : answer === null && !others[at].offline ? 1 : 0));
  return others.map((node, at) => ({ ...node, rank: ranks[at] })).sort((one, other) => other.rank - one.rank);
}

function knownNodes() {
  const nodes = (live.overview?.nodes ?? []).filter((node) => !node.here && node.name !== server.name && safe(node.ui));
  return nodes.map((node) => ({ name: node.name, ui: node.ui, offline: node.offline }));
}

async function answers(node) {
  if (!peers.includes(node.ui)) return null; // not among what this page may connect to
  try {
    await fetch(new URL("static/icon.svg", node.ui), {
      mode: "no-cors",
      cache: "no-store",
      signal: AbortSignal.timeout(PROBE_MS),
    });
    return true;
  } catch {
    return false;
  }
}

/** True for an address that a link may have: another node could send anything. */
export function safe(address) {
  try {
    return ["http:", "https:"].includes(new URL(address).protocol);
  } catch {
    return false;
  }
}
