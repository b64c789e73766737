// Connections of clients to this node.

import { h, state } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { serverTable } from "./table.js";

/** Messages, and what they weigh: from the client, or to it. */
const traffic = (messages, size) => [count(messages), " ", h("span", { class: "muted" }, bytes(size))];

const COLUMNS = [
  { title: "Id", sort: "cid", cell: (one) => String(one.cid), numeric: true },
  { title: "Name", sort: "name", cell: (one) => one.name || h("span", { class: "muted" }, "no name") },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "User", sort: "user", cell: (one) => one.user ?? "" },
  { title: "Address", sort: "address", cell: (one) => one.address },
  { title: "Client", sort: "client", cell: (one) => [one.language, " ", one.version] },
  { title: "Subscriptions", sort: "subscriptions", cell: (one) => count(one.subscriptions), numeric: true },
  { title: "Pending", sort: "pending", cell: (one) => bytes(one.pending), numeric: true },
  { title: "Speed", cell: (one) => (one.slow ? state("warn", "slow") : state("ok", "keeps up")) },
  { title: "Received", sort: "in_msgs", cell: (one) => traffic(one.in_msgs, one.in_bytes), numeric: true },
  { title: "Sent", sort: "out_msgs", cell: (one) => traffic(one.out_msgs, one.out_bytes), numeric: true },
  { title: "Round trip", sort: "rtt", cell: (one) => (one.rtt ? duration(one.rtt) : "–"), numeric: true },
  { title: "Idle", sort: "idle", cell: (one) => duration(one.idle), numeric: true },
];

export function page(host, { signal }) {
  const table = h("section");
  host.append(h("h1", null, "Connections"), h("p", { class: "muted" }, "Clients of this node; each node shows its own."), table);
  serverTable(table, {
    words: ["connections"],
    caption: "Connections",
    columns: COLUMNS,
    key: (one) => one.cid,
    start: { sort: "pending", descending: "1" },
    empty: "Nobody is connected.",
    signal,
  });
}
