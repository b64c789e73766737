// Key-value buckets and object stores, the keys of one, a value.

import { every, get } from "./api.js";
import { facts, h, show, state } from "./dom.js";
import { bytes, count, decode, duration, textOf, time } from "./format.js";
import { headersView, messageView, payloadView } from "./payload.js";
import { serverTable } from "./table.js";
import { to } from "./route.js";
import { streamHref } from "./streams.js";

const href = (one) => to(["kv", one.account, one.name], { kind: one.kind === "objects" ? one.kind : "" });
const OPERATIONS = { put: "put", delete: "deleted", purge: "purged" };
const operation = (one) => state(one.operation === "put" ? "ok" : "none", OPERATIONS[one.operation] ?? one.operation);

const HISTORY = 64; // what clients let a bucket keep of a key

const BUCKETS = [
  { title: "Bucket", sort: "name", cell: (one) => h("a", { href: href(one) }, one.name) },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "Kind", sort: "kind", cell: (one) => (one.kind === "objects" ? "object store" : one.kind) },
  { title: "Messages", sort: "messages", cell: (one) => count(one.messages), numeric: true },
  { title: "Size", sort: "bytes", cell: (one) => bytes(one.bytes), numeric: true },
  { title: "History", sort: "history", cell: (one) => (one.history > 0 ? count(one.history) : "all"), numeric: true },
  { title: "Kept for", sort: "ttl_ns", cell: (one) => (one.ttl_ns ? duration(one.ttl_ns) : "ever") },
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

/** Whether the page is of an object store, and the stream of the bucket. */
function described(bucket, query) {
  const kind = query.get("kind") === "objects" ? "objects" : "";
  return { kind, stream: `${kind ? "OBJ" : "KV"}_${bucket}` };
}

function keys(host, { path, query, signal }) {
  const [, account, bucket] = path;
  const { kind, stream } = described(bucket, query);
  const table = h("section");
  const address = (one) => to(["kv", account, bucket], { kind, key: one.key });
  host.append(crumbs(account), h("h1", null, bucket), h("p", { class: "muted" }, "Stored in ", h("a", { href: streamHref(account, stream) }, stream)), table);
  serverTable(table, {
    words: ["buckets", account, bucket, "keys"],
    extra: () => ({ kind }),
    caption: `${kind ? "Objects" : "Keys"} of ${bucket}`,
    columns: [
      { title: kind ? "Object" : "Key", sort: "key", cell: (one) => h("a", { href: address(one) }, one.key) },
      { title: "Revision", sort: "revision", cell: (one) => count(one.revision), numeric: true },
      { title: "Operation", cell: operation },
      { title: "Size", cell: (one) => bytes(one.size), numeric: true },
      { title: "Time", cell: (one) => time(one.time) },
    ],
    key: (one) => one.key,
    href: address,
    start: { sort: "key" },
    empty: `This bucket has no ${kind ? "objects" : "keys"} yet.`,
    signal,
  });
}

/** Facts of an object, as the client that stored it tells them. */
function objectFacts(item) {
  const { chunks, digest, description } = parsed(item.payload) ?? {};
  return [
    ["Chunks", Number.isFinite(chunks) ? count(chunks) : ""],
    ["Digest", String(digest ?? "")],
    ["Description", String(description ?? "")],
  ];
}

function parsed(payload) {
  try {
    return JSON.parse(textOf(decode(payload)));
  } catch {
    return null; // no client's, or cut
  }
}

function value(host, { path, query, signal }, key) {
  const [, account, bucket] = path;
  const { kind, stream } = described(bucket, query);
  const wrong = h("p", { class: "error", role: "alert" });
  const top = h("div");
  const body = h("div");
  const history = h("section", { id: "history" });
  let shown = 0;
  host.append(crumbs(account, " / ", h("a", { href: to(["kv", account, bucket], { kind }) }, bucket)), h("h1", null, key), wrong, top, body, history);

  /** What the key held, newest first: its subject has a message for each revision. */
  async function showHistory(subject, seq = 0) {
    const found = await get(["streams", account, stream, "messages"], { query: { subject, direction: "previous", limit: HISTORY, seq }, signal });
    const older = h("button", { type: "button", id: "older", onclick: () => showHistory(subject, found.next).catch(showError) }, "Older revisions");
    if (!seq) history.replaceChildren(h("h2", null, "History"));
    history.querySelector("#older")?.remove();
    history.append(...found.items.map(messageView), ...(found.next ? [older] : []));
  }

  function showError(error) {
    if (!signal.aborted) wrong.textContent = `Not up to date: ${error.message}`;
  }

  every(2000, signal, async () => {
    try {
      const now = await get(["buckets", account, bucket, "keys", key], { query: { kind }, signal });
      const known = [["Revision", count(now.revision)], ["Operation", operation(now)], ["Size", bytes(now.size)], ["Time", time(now.time)]];
      show(top, facts(...known, ...(kind ? objectFacts(now) : [])));
      if (shown !== now.revision) {
        body.replaceChildren(...[headersView(now.headers), payloadView(now)].filter(Boolean));
        if (!kind) await showHistory(now.subject);
      }
      shown = now.revision;
      wrong.textContent = "";
    } catch (error) {
      showError(error);
    }
  });
}
