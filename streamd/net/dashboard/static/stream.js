// One stream: blocks, replicas, subjects, messages, a live tail, its configuration.

import { every, get, url } from "./api.js";
import { facts, h, show, state } from "./dom.js";
import { blockFacts, blockMap, legend, sparkline } from "./charts.js";
import { confirmed } from "./dialog.js";
import { byteRate, bytes, count, rate, time } from "./format.js";
import { messageView } from "./payload.js";
import { plainTable } from "./table.js";
import { tabs } from "./tabs.js";
import { to } from "./route.js";
import { copyState, digestState, healthState } from "./streams.js";

const TAIL_KEPT = 200;
const TAIL_AGAIN_MS = 2000;
const BATCH = 25;

const REPLICAS = [
  { title: "Node", cell: (one) => one.name },
  { title: "State", cell: (one) => copyState(one, "current") },
  { title: "Lag", cell: (one) => count(one.lag ?? NaN), numeric: true },
  { title: "Digest", cell: (one) => digestState(one.digest) },
];

const SUBJECTS = [
  { title: "Subject", cell: (one) => one.subject },
  { title: "Messages", cell: (one) => count(one.count), numeric: true },
];

const origin = (source) => (source?.name ? h("span", null, source.name, source.filter_subject ? ` (${source.filter_subject})` : "", Number.isFinite(source.lag) ? `, behind by ${count(source.lag)}` : "") : null);

export function page(host, { path, signal, isAdministrator }) {
  const [, account, name] = path;
  const words = ["streams", account, name];
  const rates = [];
  const listeners = new Set();
  let now = null;
  const top = h("div");
  const wrong = h("p", { class: "error", role: "alert" });
  const actions = h("p", { class: "buttons" });
  host.append(h("p", { class: "crumbs" }, h("a", { href: "#/streams" }, "Streams"), " / ", account), h("h1", null, name), wrong, top, actions);

  if (isAdministrator) {
    const act = (verb, title, text) =>
      h("button", { type: "button", class: verb === "purge" ? "danger" : null, "data-action": verb, onclick: async () => (await confirmed({ title: `${title}: ${name}`, text, name, words: [...words, verb], verb: title })) && again() }, title);
    actions.append(
      act("step_down", "Step down", `The leader of stream ${name} gives up its leadership; another replica is elected. Nothing that was acknowledged is lost.`),
      act("scrub", "Scrub now", `The nodes that hold stream ${name} read and check all their files now; what is damaged is repaired from a whole copy, where there is one.`),
      act("purge", "Purge", `All messages of stream ${name} are removed for good. This cannot be undone.`),
    );
  }

  function draw() {
    rates.push(now.rate_msgs ?? 0);
    if (rates.length > 120) rates.shift();
    const group = now.group ?? {};
    const stored = now.state ?? {};
    const list = facts(
      ["Health", healthState(now.health)],
      ["Subjects", (now.subjects ?? []).join(", ")],
      ["Messages", `${count(stored.messages ?? now.messages)} (${count(stored.first_seq)} to ${count(stored.last_seq)})`],
      ["Size", bytes(now.bytes)],
      ["Rate", [rate(now.rate_msgs), " ", byteRate(now.rate_bytes), " ", sparkline(rates, `Rate since the page was opened, now ${rate(now.rate_msgs)}`)]],
      ["Last message", time(now.last_time)],
      ["Leader", now.leader || state("bad", "none")],
      ["Raft group", group.term !== undefined ? `term ${count(group.term)}, committed ${count(group.commit)}, applied ${count(group.applied)}` : ""],
      ["Consumers", h("a", { href: to(["consumers"], { filter: name }) }, count(now.consumers))],
      ["Mirror of", origin(now.mirror)],
      ["Sources", now.sources?.length ? now.sources.map((source) => h("span", { class: "copy" }, origin(source))) : null],
      ["Description", now.config?.description],
    );
    list.classList.add("wide");
    show(top, list);
  }

  const again = every(3000, signal, async () => {
    try {
      now = await get(words, { signal });
      wrong.textContent = "";
      draw();
      listeners.forEach((listener) => listener(now));
    } catch (error) {
      if (!signal.aborted) wrong.textContent = `Not up to date: ${error.message}`;
    }
  });

  /** Call `draw` with each new document while the tab is open. */
  const watch = (draw_) => (panel, over) => {
    const listener = (found) => draw_(panel, found);
    listeners.add(listener);
    over.addEventListener("abort", () => listeners.delete(listener));
    if (now) listener(now);
  };

  let picked = null;
  function storage(panel, found) {
    const blocks = found.blocks ?? [];
    const map = h("section", { class: "card", id: "blocks" });
    const chosen = (block) => {
      picked = block.index;
      storage(panel, now);
    };
    const one = blocks.find((block) => block.index === picked);
    const damaged = blocks.filter((block) => block.damage);
    map.append(
      h("h2", null, found.stored_on ? `Blocks at ${found.stored_on}` : "Blocks"),
      h("p", null, damaged.length ? state("bad", `${count(damaged.length)} damaged: `, damaged.map((block) => block.index).join(", ")) : state("ok", "no damage known"), blocks.length < (found.blocks_total ?? 0) ? ` The newest ${count(blocks.length)} of ${count(found.blocks_total)} are shown.` : ""),
      blocks.length ? blockMap(blocks, picked, chosen) : h("p", { class: "muted" }, "No blocks: the stream is kept in memory, is empty, or has its copies at other nodes."),
      legend(),
    );
    if (one) map.append(facts(...blockFacts(one)));
    show(
      panel,
      map,
      h("section", { id: "replicas" }, plainTable("Replicas", REPLICAS, found.replicas ?? [], { key: (replica) => replica.name })),
      h("section", { id: "subjects" }, plainTable("Most frequent subjects", SUBJECTS, found.top_subjects ?? [], { key: (subject) => subject.subject })),
    );
  }

  const configuration = (panel, found) => show(panel, h("pre", { tabindex: 0, id: "config" }, JSON.stringify(found.config ?? {}, null, 2)));

  tabs(
    host,
    "Parts of the stream",
    [
      ["storage", "Storage", watch(storage)],
      ["messages", "Messages", (panel, over) => browser(panel, words, over)],
      ["tail", "Live tail", (panel, over) => tail(panel, words, over)],
      ["config", "Configuration", watch(configuration)],
    ],
    signal,
    { inAddress: true },
  );
}

/** Messages by sequence, subject or time, in both directions. */
function browser(panel, words, signal) {
  const by = h("select", { id: "by" }, [["seq", "sequence"], ["time", "time"]].map(([value, text]) => h("option", { value }, text)));
  const from = h("input", { id: "from", type: "text", placeholder: "first", autocomplete: "off" });
  const subject = h("input", { id: "subject", type: "text", placeholder: "all subjects, e.g. orders.*", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { id: "messages" });
  const said = h("p", { role: "status" });
  const wrong = h("p", { class: "error", role: "alert" });
  let older = null; // where to go on in either direction; null: nowhere
  let newer = null;

  by.addEventListener("change", () => {
    from.type = by.value === "time" ? "datetime-local" : "text";
    from.step = "1";
    from.placeholder = by.value === "time" ? "" : "first";
  });

  const start = () => {
    if (!from.value) return { seq: 1 };
    if (by.value === "time") return { time: new Date(from.value).toISOString() };
    return { seq: from.value.trim() };
  };

  async function load(query, direction) {
    wrong.textContent = "";
    said.textContent = "Reading…";
    try {
      const found = await get([...words, "messages"], { query: { subject: subject.value.trim(), direction, limit: BATCH, ...query }, signal });
      const items = [...found.items].sort((one, other) => one.seq - other.seq);
      const isForth = direction === "next";
      // Where nothing is found the other way leads back to where this one began. A search ends after
      // so many messages that do not match; the answer says where it came to.
      const end = found.last_seq;
      if (isForth) {
        older = (items[0]?.seq ?? Number(query.seq ?? end + 1)) - 1;
        newer = found.next ?? (items.at(-1)?.seq ?? end) + 1;
      } else {
        older = found.next ?? (items[0]?.seq ?? 1) - 1;
        newer = (items.at(-1)?.seq ?? Math.min(query.seq ?? end, end)) + 1;
      }
      list.replaceChildren(...items.map(messageView));
      const range = items.length ? `${count(items.length)} messages, ${count(items[0].seq)} to ${count(items.at(-1).seq)}` : "No messages there";
      said.textContent = items.length || !found.next ? `${range}.` : `${range} up to ${count(found.next)}; the search can go on from there.`;
    } catch (error) {
      if (signal.aborted) return;
      said.textContent = "";
      wrong.textContent = error.message;
    }
  }

  const newest = () => load({}, "previous");
  const form = h(
    "form",
    { class: "controls" },
    h("label", { for: "by" }, "From"),
    by,
    h("label", { for: "from", class: "hidden" }, "Sequence or time"),
    from,
    h("label", { for: "subject" }, "Subject"),
    subject,
    h("button", { type: "submit" }, "Read"),
    h("button", { type: "button", id: "newest", onclick: newest }, "Newest"),
    h("button", { type: "button", id: "older", onclick: () => load({ seq: Math.max(1, older ?? 1) }, "previous") }, "◀ Older"),
    h("button", { type: "button", id: "newer", onclick: () => load({ seq: newer ?? 1 }, "next") }, "Newer ▶"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    load(start(), "next");
  });
  panel.append(form, wrong, said, list);
  load({ seq: 1 }, "next");
}

/** New messages as they are stored. */
function tail(panel, words, signal) {
  const subject = h("input", { id: "tail-subject", type: "text", placeholder: "all subjects, e.g. orders.*", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { id: "tail" });
  const said = h("p", { role: "status" });
  const pause = h("button", { type: "button", "aria-pressed": "false", id: "tail-pause" }, "Pause");
  const wrong = h("p", { class: "error", role: "alert" });
  let source = null;
  let again = 0;
  let seen = 0;
  let skipped = 0;
  let isUncounted = false; // of a filter the server does not count what it leaves out
  let isPaused = false;

  const say = (words_) => {
    const left = skipped ? count(skipped) : isUncounted ? "some" : "";
    said.textContent = `${words_} ${count(seen)} shown${left ? `, ${left} left out: more came than can be read` : ""}.`;
  };

  function open() {
    source?.close();
    clearTimeout(again);
    if (signal.aborted) return;
    source = new EventSource(url([...words, "tail"], { filter: subject.value.trim() }));
    source.onopen = () => {
      wrong.textContent = "";
      say("Listening.");
    };
    source.onerror = () => {
      say("No connection; trying again.");
      // Browsers themselves ask again after a connection that broke, never after a refusal.
      if (source.readyState === EventSource.CLOSED) again = setTimeout(open, TAIL_AGAIN_MS);
    };
    source.addEventListener("failed", (message) => {
      wrong.textContent = JSON.parse(message.data).message;
    });
    source.addEventListener("message", (message) => {
      if (isPaused) return;
      seen += 1;
      list.prepend(messageView(JSON.parse(message.data)));
      while (list.children.length > TAIL_KEPT) list.lastElementChild.remove();
      say("Listening.");
    });
    source.addEventListener("skipped", (message) => {
      const left = JSON.parse(message.data).count;
      if (left === null) isUncounted = true;
      else skipped += left;
      say("Listening.");
    });
  }

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
  const form = h("form", { class: "controls" }, h("label", { for: "tail-subject" }, "Subject"), subject, h("button", { type: "submit" }, "Listen"), pause);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.replaceChildren();
    seen = 0;
    skipped = 0;
    isUncounted = false;
    open();
  });
  const close = () => {
    source?.close();
    clearTimeout(again);
  };
  signal.addEventListener("abort", close);
  // A page that the browser keeps to go back to gives its connection away.
  addEventListener("pagehide", close, { signal });
  addEventListener("pageshow", (event) => event.persisted && open(), { signal });
  panel.append(form, wrong, said, list);
  say("Connecting.");
  open();
}
