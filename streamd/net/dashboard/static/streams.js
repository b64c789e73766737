// All streams, fifty at a time.

import { h, state } from "./dom.js";
import { byteRate, bytes, count, rate, time } from "./format.js";
import { serverTable } from "./table.js";
import { to } from "./route.js";

export const streamHref = (account, name) => to(["streams", account, name]);

const KINDS = { equal: ["ok", "equal"], differs: ["bad", "differs"], unknown: ["none", "not compared"], single: ["none", "one copy"] };

/** Agreement of the replicas' digests in one word, the worst first. */
export function agreement(replicas) {
  const found = (replicas ?? []).map((replica) => replica.digest);
  if (found.length < 2) return digestState("single");
  return digestState(["differs", "unknown", "equal"].find((word) => found.includes(word)));
}

export const digestState = (word) => state(...(KINDS[word] ?? KINDS.unknown));

/** Replicas by name, with what each lacks. */
function copies(replicas) {
  return (replicas ?? []).map((replica) => h("span", { class: "copy" }, copyState(replica, replica.name, `${replica.name}: `)));
}

/** A replica's state; `fine` is what is said when nothing is wrong. */
export function copyState(replica, fine, before = "") {
  if (replica.offline) return state("bad", `${before}away`);
  if (replica.current) return state("ok", fine);
  return state("warn", before, replica.lag ? `behind by ${count(replica.lag)}` : "not current");
}

/** Health in words: the server says what is wrong, if anything is. */
export const healthState = (words) => (!words || words === "ok" ? state("ok", "ok") : state("bad", words));

const COLUMNS = [
  { title: "Stream", sort: "name", cell: (one) => h("a", { href: streamHref(one.account, one.name) }, one.name) },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "Messages", sort: "messages", cell: (one) => count(one.messages), numeric: true },
  { title: "Size", sort: "bytes", cell: (one) => bytes(one.bytes), numeric: true },
  { title: "Rate", sort: "rate_msgs", cell: (one) => [rate(one.rate_msgs), " ", h("span", { class: "muted" }, byteRate(one.rate_bytes))], numeric: true },
  { title: "Leader", sort: "leader", cell: (one) => one.leader || state("bad", "none") },
  { title: "Replicas", sort: "replicas", cell: (one) => copies(one.replicas) },
  { title: "Digests", sort: "digests", cell: (one) => agreement(one.replicas) },
  { title: "Consumers", sort: "consumers", cell: (one) => count(one.consumers), numeric: true },
  { title: "Last message", sort: "last_time", cell: (one) => time(one.last_time) },
  { title: "Health", sort: "health", cell: (one) => healthState(one.health) },
];

export function page(host, { signal }) {
  const table = h("section");
  host.append(h("h1", null, "Streams"), table);
  serverTable(table, {
    words: ["streams"],
    caption: "Streams",
    columns: COLUMNS,
    key: (one) => `${one.account} ${one.name}`,
    href: (one) => streamHref(one.account, one.name),
    start: { sort: "name" },
    empty: "There are no streams yet.",
    signal,
  });
}
