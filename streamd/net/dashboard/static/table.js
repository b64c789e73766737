// Tables whose pages, order and filter are the server's: 50 rows are fetched, however many there are.

import { every, get } from "./api.js";
import { h, show } from "./dom.js";
import { count } from "./format.js";
import * as route from "./route.js";

const SIZES = [25, 50, 100];
const TYPED_MS = 200;

/** A cell, as `columns` make it: a string, an element, or an array of both. */
const filled = (column, item) => h("td", { class: column.numeric ? "number" : null, "data-label": column.title }, h("span", null, column.cell(item)));

/** Bring the rows of `body` to `items`; rows and cells that stay the same are not touched. */
export function fillRows(body, columns, items, { key, href }) {
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const stale = new Set(body.rows); // names that are no UTF-8 may be shown alike: more rows than keys
  const focused = document.activeElement?.closest?.("tr")?.dataset.key;
  const wanted = items.map((item) => {
    const id = String(key(item));
    const row = old.get(id) ?? h("tr", { "data-key": id, tabindex: -1 });
    old.delete(id);
    stale.delete(row);
    if (href) row.dataset.href = href(item);
    columns.forEach((column, at) => {
      const next = filled(column, item);
      const cell = row.cells[at];
      if (!cell) row.append(next);
      else if (!cell.isEqualNode(next) && !cell.contains(document.activeElement)) cell.replaceWith(next);
    });
    return row;
  });
  stale.forEach((row) => row.remove());
  wanted.forEach((row, at) => {
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
  const rows = [...body.rows];
  if (!rows.some((row) => row.tabIndex === 0) && rows.length) rows[0].tabIndex = 0;
  if (focused !== undefined && !body.contains(document.activeElement) && document.activeElement === document.body) rows[0]?.focus();
}

/** Arrow keys move among rows, Enter opens what the row names. */
export function keys(event) {
  const row = event.target.closest("tbody tr");
  if (!row) return;
  const moves = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: row.parentElement.firstElementChild, End: row.parentElement.lastElementChild };
  if (event.key in moves) {
    const next = moves[event.key];
    if (!next) return;
    [...row.parentElement.rows].forEach((one) => {
      one.tabIndex = one === next ? 0 : -1;
    });
    next.focus();
    event.preventDefault();
  } else if (event.key === "Enter" && event.target === row && row.dataset.href) location.hash = row.dataset.href;
}

/** A table of a few rows that are all here: of nodes, replicas, subjects. */
export function plainTable(caption, columns, items, options) {
  const body = h("tbody");
  fillRows(body, columns, items, options);
  const heads = columns.map((column) => h("th", { scope: "col", class: column.numeric ? "number" : null }, column.title));
  return h("div", { class: "scroll" }, h("table", { onkeydown: keys }, h("caption", null, caption), h("thead", null, h("tr", null, heads)), body));
}

/**
 * A table that the server pages, at `host` until `signal` ends. `columns` are {title, sort, cell,
 * numeric}; `start` names the order it has at first. `extra` gives further parameters of a request.
 * Returns a function that asks again now.
 */
export function serverTable(host, { words, caption, columns, key, href, signal, empty, start = {}, periodMs = 3000, extra = () => ({}) }) {
  const { query } = route.current();
  const asked = {
    filter: query.get("filter") ?? "",
    sort: query.get("sort") ?? start.sort ?? "",
    descending: (query.has("sort") ? query.get("descending") : start.descending) ? "1" : "",
    offset: Math.max(0, Number(query.get("offset")) || 0),
    limit: SIZES.includes(Number(query.get("limit"))) ? Number(query.get("limit")) : 50,
  };
  let running = null;
  let total = 0;
  const filter = h("input", { type: "search", class: "filter", id: "filter", value: asked.filter, placeholder: "press / to filter", autocomplete: "off", spellcheck: "false" });
  const size = h("select", { id: "page-size", onchange: () => change({ limit: Number(size.value), offset: 0 }) }, SIZES.map((n) => h("option", { value: n }, n)));
  size.value = String(asked.limit);
  const range = h("span", { role: "status", class: "range" });
  const step = (words_, label, offset) => h("button", { type: "button", "aria-label": label, onclick: () => change({ offset: offset() }) }, words_);
  const last = () => Math.max(0, Math.floor((total - 1) / asked.limit) * asked.limit);
  const first_ = step("|◀", "First page", () => 0);
  const previous = step("◀", "Previous page", () => Math.max(0, asked.offset - asked.limit));
  const next = step("▶", "Next page", () => Math.min(last(), asked.offset + asked.limit));
  const last_ = step("▶|", "Last page", last);
  const heads = columns.map((column) => head(column));
  const body = h("tbody");
  const wrong = h("p", { class: "error", role: "alert" });
  const nothing = h("p", { class: "muted" });

  function head(column) {
    if (!column.sort) return h("th", { scope: "col", class: column.numeric ? "number" : null }, column.title);
    const turn = () => {
      const isSame = asked.sort === column.sort;
      const descending = isSame ? (asked.descending ? "" : "1") : column.numeric ? "1" : "";
      change({ sort: column.sort, descending, offset: 0 });
    };
    return h("th", { scope: "col", class: column.numeric ? "number" : null, "data-sort": column.sort }, h("button", { type: "button", onclick: turn }, column.title, h("span", { class: "arrow", "aria-hidden": "true" })));
  }

  function showOrder() {
    heads.forEach((one) => {
      const isIt = one.dataset.sort === asked.sort && asked.sort;
      one.setAttribute("aria-sort", isIt ? (asked.descending ? "descending" : "ascending") : "none");
      const arrow = one.querySelector(".arrow");
      if (arrow) arrow.textContent = isIt ? (asked.descending ? " ▼" : " ▲") : "";
    });
  }

  function change(what) {
    Object.assign(asked, what);
    route.note({ ...asked, offset: asked.offset || "", limit: asked.limit === 50 ? "" : asked.limit });
    showOrder();
    again();
  }

  async function fetchPage() {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    try {
      const found = await get(words, { query: { ...asked, ...extra() }, signal: AbortSignal.any([signal, mine.signal]) });
      total = found.total;
      if (asked.offset && asked.offset >= total) {
        asked.offset = last();
        return void again();
      }
      fillRows(body, columns, found.items, { key, href });
      const to = Math.min(total, asked.offset + found.items.length);
      range.textContent = total ? `${count(asked.offset + 1)}–${count(to)} of ${count(total)}` : "0 of 0";
      nothing.textContent = total ? "" : asked.filter ? `Nothing matches “${asked.filter}”.` : empty;
      [first_, previous].forEach((one) => (one.disabled = asked.offset === 0));
      [next, last_].forEach((one) => (one.disabled = to >= total));
      wrong.textContent = "";
      body.parentElement.dataset.loaded = "1";
    } catch (error) {
      if (mine.signal.aborted || signal.aborted) return;
      wrong.textContent = `Not up to date: ${error.message}`;
    }
  }

  let typing = 0;
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ filter: filter.value, offset: 0 }), TYPED_MS);
  });
  filter.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    filter.value = "";
    change({ filter: "", offset: 0 });
    filter.blur();
  });
  show(host);
  host.append(
    h(
      "div",
      { class: "controls" },
      h("label", { for: "filter" }, "Filter"),
      filter,
      h("span", { class: "paging" }, first_, previous, range, next, last_, h("label", { for: "page-size" }, "rows"), size),
    ),
    wrong,
    h("div", { class: "scroll" }, h("table", { onkeydown: keys }, h("caption", null, caption), h("thead", null, h("tr", null, heads)), body)),
    nothing,
  );
  showOrder();
  const again = every(periodMs, signal, fetchPage);
  return again;
}
