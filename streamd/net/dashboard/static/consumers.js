// All consumers, and one of them.

import { every, get } from "./api.js";
import { facts, h, show, state } from "./dom.js";
import { confirmed } from "./dialog.js";
import { count, duration, time } from "./format.js";
import { serverTable } from "./table.js";
import { to } from "./route.js";
import { streamHref } from "./streams.js";

const href = (one) => to(["consumers", one.account, one.stream, one.name]);
const paused = (one) => (one.paused ? state("warn", "paused") : state("ok", "running"));

const COLUMNS = [
  { title: "Consumer", sort: "name", cell: (one) => h("a", { href: href(one) }, one.name) },
  { title: "Stream", sort: "stream", cell: (one) => h("a", { href: streamHref(one.account, one.stream) }, one.stream) },
  { title: "Account", sort: "account", cell: (one) => one.account },
  { title: "Pending", sort: "pending", cell: (one) => count(one.pending), numeric: true },
  { title: "In flight", sort: "ack_pending", cell: (one) => count(one.ack_pending), numeric: true },
  { title: "Redelivered", sort: "redelivered", cell: (one) => count(one.redelivered), numeric: true },
  { title: "Lag", sort: "lag_ns", cell: (one) => duration(one.lag_ns), numeric: true },
  { title: "Oldest in flight", sort: "oldest_ns", cell: (one) => duration(one.oldest_ns), numeric: true },
  { title: "Last delivery", sort: "last_delivery", cell: (one) => time(one.last_delivery) },
  { title: "Leader", sort: "leader", cell: (one) => one.leader || state("bad", "none") },
  { title: "State", sort: "paused", cell: paused },
];

export function page(host, context) {
  if (context.path.length > 3) return one(host, context);
  const table = h("section");
  host.append(h("h1", null, "Consumers"), table);
  serverTable(table, {
    words: ["consumers"],
    caption: "Consumers",
    columns: COLUMNS,
    key: (each) => `${each.account} ${each.stream} ${each.name}`,
    href,
    start: { descending: "1" },
    empty: "There are no consumers yet.",
    signal: context.signal,
  });
}

const inAnHour = () => {
  const at = new Date(Date.now() + 3600_000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

function one(host, { path, signal, isAdministrator }) {
  const [, account, stream, name] = path;
  const words = ["consumers", account, stream, name];
  const wrong = h("p", { class: "error", role: "alert" });
  const top = h("div");
  const config = h("pre", { tabindex: 0, id: "config" });
  const actions = h("p", { class: "buttons" });
  host.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/consumers" }, "Consumers"), " / ", account, " / ", h("a", { href: streamHref(account, stream) }, stream)),
    h("h1", null, name),
    wrong,
    top,
    actions,
    h("h2", null, "Configuration"),
    config,
  );

  const act = (verb, title, text, fields) =>
    h("button", { type: "button", "data-action": verb, onclick: async () => (await confirmed({ title: `${title}: ${name}`, text, name, words: [...words, verb], verb: title, fields })) && again() }, title);
  const pause = act("pause", "Pause", `Consumer ${name} of stream ${stream} delivers nothing until the time below. Messages are kept.`, [["until", "Until", "datetime-local", inAnHour(), (value) => new Date(value).toISOString()]]);
  const resume = act("resume", "Resume", `Consumer ${name} of stream ${stream} delivers again at once.`);
  const down = act("step_down", "Step down", `The leader of consumer ${name} gives up its leadership; another replica of stream ${stream} is elected.`);

  const again = every(2000, signal, async () => {
    try {
      const now = await get(words, { signal });
      const at = now.state ?? now;
      const position = (place) => (place ? `message ${count(place.stream_seq)} of the stream, delivery ${count(place.consumer_seq)}` : "");
      show(
        top,
        facts(
          ["State", paused(now)],
          ["Paused until", now.paused_until ? time(now.paused_until) : ""],
          ["Leader", now.leader || state("bad", "none")],
          ["Pending", `${count(now.pending)} messages not delivered yet`],
          ["In flight", `${count(now.ack_pending)} delivered, not acknowledged yet`],
          ["Redelivered", count(now.redelivered)],
          ["Lag", duration(now.lag_ns)],
          ["Oldest in flight", duration(now.oldest_ns)],
          ["Delivered", position(at.delivered)],
          ["Acknowledged", position(at.ack_floor)],
          ["Waiting requests", Number.isFinite(at.num_waiting) ? count(at.num_waiting) : ""],
          ["Last delivery", time(now.last_delivery)],
        ),
      );
      config.textContent = JSON.stringify(now.config ?? {}, null, 2);
      if (isAdministrator) show(actions, now.paused ? resume : pause, down);
      wrong.textContent = "";
    } catch (error) {
      if (!signal.aborted) wrong.textContent = `Not up to date: ${error.message}`;
    }
  });
}
