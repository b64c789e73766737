// Messages as they are stored: headers, and the payload as JSON, text or hex. All of it is text.

import { h } from "./dom.js";
import { bytes, count, decode, hexOf, jsonOf, textOf, time } from "./format.js";
import { tabs } from "./tabs.js";

const PREVIEW = 120;
const forever = new AbortController().signal;

/** The payload in the form that suits it best, and in the others. */
export function payloadView(item) {
  const data = decode(item.payload);
  const host = h("div", { class: "payload" });
  if (!data.length) return h("p", { class: "muted" }, item.size ? "The payload was not sent." : "No payload.");
  const json = jsonOf(data);
  const text = textOf(data);
  const pre = (words) => (panel) => panel.append(h("pre", { tabindex: 0 }, words));
  const forms = [];
  if (json !== null) forms.push(["json", "JSON", pre(json)]);
  if (text !== null) forms.push(["text", "Text", pre(text)]);
  forms.push(["hex", "Hex", pre(hexOf(data))]);
  tabs(host, "Forms of the payload", forms, forever);
  if (item.cut) host.append(h("p", { class: "muted" }, `The first ${bytes(data.length)} of ${bytes(item.size)} are shown.`));
  return host;
}

/** Headers as a table; nothing when there are none. */
export function headersView(headers) {
  if (!headers?.length) return null;
  return h("table", { class: "headers" }, h("caption", null, "Headers"), h("tbody", null, headers.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)))));
}

function preview(item) {
  const data = decode((item.payload ?? "").slice(0, PREVIEW * 4));
  // The end may be in the middle of a letter of up to four bytes.
  const ends = [0, 1, 2, 3].map((less) => textOf(data.subarray(0, Math.max(0, data.length - less))));
  const text = ends.find((found) => found !== null) ?? null;
  const words = text === null ? hexOf(data.subarray(0, 16)).slice(10, 58) : text;
  return words.length > PREVIEW ? `${words.slice(0, PREVIEW)}…` : words;
}

/** One message that opens: its facts in a line, headers and payload below. */
export function messageView(item) {
  const details = h(
    "details",
    { class: "message", "data-seq": item.seq },
    h("summary", null, h("span", { class: "seq" }, count(item.seq)), h("span", { class: "when" }, time(item.time)), h("span", { class: "subject" }, item.subject), h("span", { class: "size" }, bytes(item.size)), h("span", { class: "preview" }, preview(item))),
  );
  details.addEventListener(
    "toggle",
    () => details.append(h("div", { class: "opened" }, headersView(item.headers), payloadView(item))),
    { once: true },
  );
  return details;
}
