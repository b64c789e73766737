// What happened: advisories, elections, repairs, drift. Newest first.

import { get } from "./api.js";
import { h, show, state } from "./dom.js";
import { count, time } from "./format.js";
import { on } from "./live.js";
import { plainTable } from "./table.js";

const KINDS = [["", "all"], ["advisory", "advisories"], ["election", "elections"], ["repair", "repairs"], ["drift", "drift"], ["server", "server"]];
const SHAPES = { drift: "bad", repair: "warn", election: "none", advisory: "none", server: "none" };
const KEPT = 500;
const SHOWN = 100;

const COLUMNS = [
  { title: "Time", cell: (one) => time(one.time) },
  { title: "Kind", cell: (one) => state(SHAPES[one.kind] ?? "none", one.kind) },
  { title: "Subject", cell: (one) => one.subject },
  { title: "What happened", cell: (one) => one.text },
];

export function page(host, { signal }) {
  const all = [];
  const wrong = h("p", { class: "error", role: "alert" });
  const table = h("section", { id: "events" });
  const kind = h("select", { id: "kind", onchange: () => draw() }, KINDS.map(([value, text]) => h("option", { value }, text)));
  const filter = h("input", { type: "search", id: "filter", class: "filter", placeholder: "press / to filter", oninput: () => draw() });
  const range = h("span", { role: "status", class: "range" });
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    filter.value = "";
    filter.blur();
    draw();
  });
  host.append(h("h1", null, "Events"), h("div", { class: "controls" }, h("label", { for: "kind" }, "Kind"), kind, h("label", { for: "filter" }, "Filter"), filter, range), wrong, table);

  function draw() {
    const words = filter.value.toLowerCase();
    const found = all.filter((one) => (!kind.value || one.kind === kind.value) && (!words || `${one.subject} ${one.text}`.toLowerCase().includes(words)));
    range.textContent = found.length > SHOWN ? `the newest ${count(SHOWN)} of ${count(found.length)}` : `${count(found.length)} events`;
    const items = found.slice(0, SHOWN);
    show(table, items.length ? plainTable("Events", COLUMNS, items, { key: (one) => one.number }) : h("p", { class: "muted" }, "Nothing happened yet."));
  }

  let number = 0;
  const numbered = (one) => ({ ...one, number: (number += 1) });
  on(
    "event",
    (one) => {
      all.unshift(numbered(one));
      all.length = Math.min(all.length, KEPT);
      draw();
    },
    signal,
  );
  get(["events"], { signal })
    .then((found) => {
      // What came by the live stream meanwhile stands in both.
      const known = new Set(all.map((one) => `${one.time} ${one.subject} ${one.text}`));
      all.push(...found.items.filter((one) => !known.has(`${one.time} ${one.subject} ${one.text}`)).map(numbered));
      draw();
    })
    .catch((error) => {
      if (!signal.aborted) wrong.textContent = error.message;
    });
}
