// The page: its head, its addresses, the login, and what is said when the node goes away.

import { get, keepToken, onSessionOver, remove } from "./api.js";
import { byId, h, show, state } from "./dom.js";
import * as live from "./live.js";
import { current } from "./route.js";
import { page as buckets } from "./buckets.js";
import { page as connections } from "./connections.js";
import { page as consumers } from "./consumers.js";
import { page as events } from "./events.js";
import { page as groups } from "./groups.js";
import { page as login } from "./login.js";
import { page as overview } from "./overview.js";
import { page as stream } from "./stream.js";
import { page as streams } from "./streams.js";

const PAGES = [
  ["overview", "Overview", overview],
  ["streams", "Streams", (host, context) => (context.path.length > 2 ? stream : streams)(host, context)],
  ["consumers", "Consumers", consumers],
  ["kv", "Buckets", buckets],
  ["connections", "Connections", connections],
  ["groups", "Raft groups", groups],
  ["events", "Events", events],
];
const GO_ON_MS = 3000;

let session = null;
let over = new AbortController(); // ends what the open page runs

function open() {
  over.abort();
  over = new AbortController();
  const main = byId("main");
  main.replaceChildren();
  if (!session) return;
  if (session.login === "needed") {
    document.title = "Log in – streamd";
    show(byId("nav"));
    login(main, { loggedIn: begin });
    return;
  }
  const { path, query } = current();
  const found = PAGES.find(([name]) => name === path[0]) ?? PAGES[0];
  const things = path.slice(1).join(" / ");
  document.title = `${things ? `${things} – ` : ""}${found[1]} – ${session.server?.name ?? "streamd"}`;
  show(byId("nav"), PAGES.map(([name, title]) => h("a", { href: `#/${name}`, "aria-current": name === found[0] ? "page" : null }, title)));
  found[2](main, { path, query, signal: over.signal, isAdministrator: session.role === "administrator" });
}

/** Ask who we are, and show what that may see. */
async function begin() {
  try {
    session = await get(["session"]);
  } catch (error) {
    byId("main").replaceChildren(h("p", { class: "error", role: "alert" }, error.message), h("button", { type: "button", onclick: begin }, "Try again"));
    return;
  }
  keepToken(session.csrf);
  showUser();
  if (session.login === "needed") live.stop();
  else live.start(session);
  open();
}

function showUser() {
  const isIn = session.login === "user";
  const role = session.role === "administrator" ? "administrator" : "read only";
  show(byId("user"), session.login === "needed" ? "" : `${session.user || "no login"} (${role})`, isIn ? [" ", h("button", { type: "button", id: "logout", onclick: logout }, "Log out")] : "");
}

async function logout() {
  await remove(["session"]).catch(() => null);
  await begin();
}

let goingOn = 0;
let isStaying = false;

function showState(now) {
  const words = { open: ["ok", "live"], opening: ["none", "connecting"], lost: ["bad", "no connection"], closed: ["none", "not live"] }[now];
  const name = session?.server?.name ?? "";
  show(byId("live"), session?.login === "needed" ? "" : state(words[0], name ? `${name}: ${words[1]}` : words[1]));
  if (now === "lost") showLoss([]);
  if (now === "open") {
    clearTimeout(goingOn);
    goingOn = 0;
    isStaying = false;
    show(byId("banner"));
  }
}

/** Say that the node is away, and go on at the first of `nodes`, unless it is away as well. */
function showLoss(nodes) {
  const name = session?.server?.name ?? "This node";
  const next = nodes.find((node) => node.rank);
  const links = nodes.map((node) => [" ", h("a", { href: `${node.ui}${location.hash}` }, node.rank ? `go on at ${node.name}` : `${node.name} (no answer either)`)]);
  const isGoing = next && !isStaying;
  show(
    byId("banner"),
    state("bad", `${name} does not answer. What is shown is as it was last.`),
    isGoing ? ` Going on at ${next.name} in a moment.` : "",
    links,
    isGoing ? [" ", h("button", { type: "button", id: "stay", onclick: stay }, "Stay here")] : "",
  );
  if (isGoing && !goingOn) goingOn = setTimeout(() => location.assign(`${next.ui}${location.hash}`), GO_ON_MS);
}

function stay() {
  isStaying = true;
  clearTimeout(goingOn);
  goingOn = 0;
  showLoss([]);
}

function showTheme() {
  const root = document.documentElement;
  const isDark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = byId("theme");
  button.textContent = isDark ? "☀ Light" : "☾ Dark";
  button.setAttribute("aria-label", isDark ? "Use light colours" : "Use dark colours");
  button.onclick = () => {
    root.dataset.theme = isDark ? "light" : "dark";
    try {
      localStorage.setItem("streamd-theme", root.dataset.theme);
    } catch {
      // A browser that keeps nothing: for this page only.
    }
    showTheme();
  };
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const filter = document.querySelector("main input.filter, main form input[type=text]");
  if (!filter || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  filter.focus();
  filter.select();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the page's address
  byId("main").focus();
});
onSessionOver(async () => {
  const now = await get(["session"]).catch(() => null);
  if (now?.login === "needed" && session?.login !== "needed") begin();
});
live.on("state", showState);
live.on("reachable", showLoss);
live.on("ended", () => begin());
addEventListener("hashchange", () => {
  open();
  byId("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();
begin();
