// Raft groups of this node.

import { h, state } from "./dom.js";
import { bytes, count } from "./format.js";
import { serverTable } from "./table.js";
import { streamHref } from "./streams.js";

const named = (one) => (one.stream ? h("a", { href: streamHref(one.account, one.stream) }, one.stream) : "meta");

function condition(one) {
  const words = [one.state, one.reason].filter(Boolean).join(": ");
  if (one.recovering) return state("warn", words || "recovering");
  return one.reason ? state("warn", words) : state("ok", "ready");
}

const COLUMNS = [
  { title: "Of", sort: "stream", cell: named },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "Group", sort: "group", cell: (one) => one.group },
  { title: "Role here", sort: "role", cell: (one) => one.role },
  { title: "Leader", sort: "leader", cell: (one) => one.leader || state("bad", "none") },
  { title: "Term", sort: "term", cell: (one) => count(one.term), numeric: true },
  { title: "Committed", sort: "commit", cell: (one) => count(one.commit), numeric: true },
  { title: "Applied", sort: "applied", cell: (one) => count(one.applied), numeric: true },
  { title: "Members", cell: (one) => (one.members ?? []).join(", ") },
  { title: "Log since the last snapshot", sort: "log_bytes", cell: (one) => bytes(one.log_bytes), numeric: true },
  { title: "State", cell: condition },
];

export function page(host, { signal }) {
  const table = h("section");
  host.append(h("h1", null, "Raft groups"), h("p", { class: "muted" }, "Groups that this node is a member of."), table);
  serverTable(table, {
    words: ["groups"],
    caption: "Raft groups",
    columns: COLUMNS,
    key: (one) => one.group,
    empty: "This node is a member of no group.",
    signal,
  });
}
