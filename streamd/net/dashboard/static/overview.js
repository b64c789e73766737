// The first page: health in words, rates, nodes.

import { h, show, state, tile, facts } from "./dom.js";
import { brief, byteRate, bytes, count, duration, rate, seconds } from "./format.js";
import { bar, sparkline } from "./charts.js";
import { confirmed } from "./dialog.js";
import { live, on, safe } from "./live.js";
import { plainTable } from "./table.js";

const latency = (histogram) => [["p50", duration(histogram?.p50_ns)], ["p99", duration(histogram?.p99_ns)]];

function nodeState(node) {
  if (node.offline) return state("bad", "away");
  if (!node.current) return state("warn", `behind by ${count(node.lag)}`);
  return state("ok", node.here ? "this node" : "up to date");
}

function nodeName(node, meta) {
  const words = [h("strong", null, node.name)];
  if (node.name === meta) words.push(" ", h("span", { class: "tag" }, "meta leader"));
  return words;
}

const COLUMNS = (meta) => [
  { title: "Node", cell: (node) => nodeName(node, meta) },
  { title: "State", cell: nodeState },
  { title: "Leads", cell: (node) => count(node.leader_of), numeric: true },
  { title: "Last heard", cell: (node) => (node.here ? "now" : node.seen_ns ? `${duration(node.seen_ns)} ago` : "not yet") },
  { title: "Version", cell: (node) => node.version ?? "" },
  { title: "Up for", cell: (node) => (Number.isFinite(node.uptime_s) && !node.offline ? seconds(node.uptime_s) : "–") },
  { title: "Memory", cell: (node) => bytes(node.memory), numeric: true },
  { title: "Storage", cell: (node) => (node.storage_limit > 0 ? bar(node.storage / node.storage_limit, `${bytes(node.storage)} of ${bytes(node.storage_limit)}`) : bytes(node.storage)) },
  { title: "Connections", cell: (node) => count(node.connections), numeric: true },
  { title: "Page", cell: (node) => (!node.here && safe(node.ui) ? h("a", { href: `${node.ui}#/overview` }, "open") : "") },
];

function verdict(isOk, remarks) {
  if (!isOk) return state("bad", "Not healthy");
  return remarks ? state("warn", "Serving, with remarks") : state("ok", "Healthy");
}

export function page(host, { signal, isAdministrator }) {
  const health = h("section", { class: "card", id: "health", "aria-label": "Health" });
  const tiles = h("div", { class: "tiles" });
  const nodes = h("section", { id: "nodes" });
  const actions = h("p", { class: "buttons" });
  host.append(h("h1", null, "Overview"), health, tiles, nodes, actions);

  function draw(now) {
    const series = (field) => live.history.map((sample) => sample[field] ?? 0);
    const rates = now.rates ?? {};
    const reasons = now.health?.reasons ?? [];
    show(
      health,
      verdict(now.health?.ok, reasons.length),
      reasons.length ? h("ul", null, reasons.map((reason) => h("li", null, reason))) : null,
    );
    const own = (now.nodes ?? []).find((node) => node.here)?.name ?? "this node";
    const flow = (title, messages, size) =>
      tile(`${title} at ${own}`, rate(rates[messages] ?? 0), h("p", { class: "muted" }, byteRate(rates[size] ?? 0)), sparkline(series(messages), `${title}, the last ${count(live.history.length)} seconds, now ${rate(rates[messages] ?? 0)}`));
    const disk = now.disk ?? {};
    show(
      tiles,
      flow("Messages in", "in_msgs", "in_bytes"),
      flow("Messages out", "out_msgs", "out_bytes"),
      tile("Log fsync, p99", duration(now.fsync?.p99_ns), facts(...latency(now.fsync).slice(0, 1), ["syncs", count(now.fsync?.count)]), sparkline(series("fsync"), `p99 of fsync, now ${duration(now.fsync?.p99_ns)}`)),
      tile("Apply, p99", duration(now.apply?.p99_ns), facts(...latency(now.apply).slice(0, 1))),
      tile("Memory", bytes(now.memory)),
      tile("Disk", bytes(disk.used), bar(disk.used / (disk.used + disk.free), `${bytes(disk.free)} free`)),
      tile("Streams", h("a", { href: "#/streams" }, brief(now.streams)), h("p", { class: "muted" }, h("a", { href: "#/consumers" }, now.consumers === 1 ? "1 consumer" : `${count(now.consumers)} consumers`))),
      tile("Connections", h("a", { href: "#/connections" }, count(now.connections))),
    );
    show(nodes, plainTable("Nodes", COLUMNS(now.meta_leader), now.nodes ?? [], { key: (node) => node.name }));
    const canMove = isAdministrator && now.meta_leader && (now.nodes ?? []).length > 1;
    show(actions, canMove ? h("button", { type: "button", "data-action": "meta-step-down", onclick: () => stepDown() }, "Meta leader: step down") : null);
  }

  function stepDown() {
    const name = live.overview.meta_leader;
    confirmed({
      title: "Meta leader: step down",
      text: `Node ${name} gives up the leadership of the meta group; another node is elected. Streams go on meanwhile; nothing can be created for a moment.`,
      name,
      words: ["meta", "step_down"],
      verb: "Step down",
    });
  }

  on("overview", draw, signal);
  if (live.overview) draw(live.overview);
}
