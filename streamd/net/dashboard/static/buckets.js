// Key-value buckets and object stores, the keys of one, a value.

import { every, get } from "./api.js";
import { facts, h, show, state } from "./dom.js";
import { bytes, count, duration, time } from "./format.js";
import { headersView, messageView, payloadView } from "./payload.js";
import { serverTable } from "./table.js";
import { to } from "./route.js";
import { streamHref } from "./streams.js";

const href = (one) => (one.kind === "objects" ? streamHref(one.account, one.stream) : to(["kv", one.account, one.name]));
const OPERATIONS = { put: "put", delete: "deleted", purge: "purged" };
const operation = (one) => state(one.operation === "put" ? "ok" : "none", OPERATIONS[one.operation] ?? one.operation);

const HISTORY = 64; // what a bucket may keep of a key

const BUCKETS = [
  { title: "Bucket", sort: "name", cell: (one) => h("a", { href: href(one) }, one.name) },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "Kind", cell: (one) => (one.kind === "objects" ? "object store" : one.kind) },
  { title: "Messages", sort: "messages", cell: (one) => count(one.messages), numeric: true },
  { title: "Size", sort: "bytes", cell: (one) => bytes(one.bytes), numeric: true },
  { title: "History", cell: (one) => (one.history > 0 ? count(one.history) : "all"), numeric: true },
  { title: "Kept for", cell: (one) => (one.ttl_ns ? duration(one.ttl_ns) : "ever") },
];

export function page(host, context) {
  const { path, query } = context;
  if (path.length > 2 && query.has("key")) return value(host, context, query.get("key"));
  if (path.length > 2) return keys(host, context);
  const table = h("section");
  host.append(h("h1", null, "Buckets"), table);
  serverTable(table, {
    words: ["buckets"],
    caption: "Key-value buckets and object stores",
    columns: BUCKETS,
    key: (one) => `${one.account} ${one.stream}`,
    href,
    start: { sort: "name" },
    empty: "There are no buckets yet.",
    signal: context.signal,
  });
}

const crumbs = (account, ...more) => h("p", { class: "crumbs" }, h("a", { href: "#/kv" }, "Buckets"), " / ", account, more);

function keys(host, { path, signal }) {
  const [, account, bucket] = path;
  const table = h("section");
  const address = (one) => to(["kv", account, bucket], { key: one.key });
  host.append(crumbs(account), h("h1", null, bucket), table);
  serverTable(table, {
    words: ["buckets", account, bucket, "keys"],
    caption: `Keys of ${bucket}`,
    columns: [
      { title: "Key", sort: "key", cell: (one) => h("a", { href: address(one) }, one.key) },
      { title: "Revision", sort: "revision", cell: (one) => count(one.revision), numeric: true },
      { title: "Operation", cell: operation },
      { title: "Size", cell: (one) => bytes(one.size), numeric: true },
      { title: "Time", cell: (one) => time(one.time) },
    ],
    key: (one) => one.key,
    href: address,
    start: { sort: "key" },
    empty: "This bucket has no keys yet.",
    signal,
  });
}

function value(host, { path, signal }, key) {
  const [, account, bucket] = path;
  const wrong = h("p", { class: "error", role: "alert" });
  const top = h("div");
  const body = h("div");
  const history = h("section", { id: "history" });
  let shown = 0;
  host.append(crumbs(account, " / ", h("a", { href: to(["kv", account, bucket]) }, bucket)), h("h1", null, key), wrong, top, body, history);

  /** What the key held, newest first: its subject has a message for each revision. */
  async function showHistory(subject) {
    const words = ["streams", account, `KV_${bucket}`, "messages"];
    const found = await get(words, { query: { subject, direction: "previous", limit: HISTORY }, signal });
    history.replaceChildren(h("h2", null, "History"), ...found.items.map(messageView));
  }

  every(2000, signal, async () => {
    try {
      const now = await get(["buckets", account, bucket, "keys", key], { signal });
      show(top, facts(["Revision", count(now.revision)], ["Operation", operation(now)], ["Size", bytes(now.size)], ["Time", time(now.time)]));
      if (shown !== now.revision) {
        body.replaceChildren(...[headersView(now.headers), payloadView(now)].filter(Boolean));
        await showHistory(now.subject);
      }
      shown = now.revision;
      wrong.textContent = "";
    } catch (error) {
      if (!signal.aborted) wrong.textContent = `Not up to date: ${error.message}`;
    }
  });
}
