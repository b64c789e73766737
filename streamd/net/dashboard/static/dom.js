// Elements from JavaScript. All text becomes text nodes: nothing here, and nothing that uses it,
// parses markup, so a name that a client chose is shown as it is.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element with attributes (`onclick` and its like are listeners) and children. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Replace what `element` holds, unless it holds the same already: focus and selection stay. */
export function show(element, ...children) {
  const next = element.cloneNode(false);
  add(next, children);
  if (element.isEqualNode(next)) return;
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && focused !== element ? [...element.querySelectorAll("a,button,input,[tabindex]")].indexOf(focused) : -1;
  element.replaceChildren(...next.childNodes);
  if (place >= 0) element.querySelectorAll("a,button,input,[tabindex]")[place]?.focus();
}

/** A word with a shape before it: the state is read without its colour. */
export function state(kind, ...words) {
  const shape = { ok: "●", warn: "▲", bad: "■", none: "○" }[kind] ?? "○";
  return h("span", { class: `state ${kind}` }, h("span", { "aria-hidden": "true" }, shape), "\u00a0", words);
}

/** A list of names and values. Pairs without a value are left out. */
export function facts(...pairs) {
  const rows = pairs.filter((pair) => pair && pair[1] !== undefined && pair[1] !== null && pair[1] !== "");
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** A number in a box, with a title and something below it. */
export function tile(title, value, ...below) {
  return h("section", { class: "tile" }, h("h3", null, title), h("p", { class: "value" }, value), below);
}

/** A short notice that assistive technology reads; it goes away by itself. */
export function note(text, kind = "ok") {
  const box = h("p", { class: "note" }, state(kind, text));
  byId("notes").append(box);
  setTimeout(() => box.remove(), 8000);
}
