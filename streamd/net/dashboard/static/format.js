// Numbers, times and bytes as people read them. Pure functions.

const whole = new Intl.NumberFormat("en-US");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (n) => (Number.isFinite(n) ? whole.format(n) : "–");

const short = (n) => (n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2));

export function bytes(n) {
  if (!Number.isFinite(n)) return "–";
  let at = 0;
  while (Math.abs(n) >= 1024 && at < UNITS.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${short(n)}\u00a0${UNITS[at]}`; // the unit stays on the line of its number
}

/** 12,300,000 as 12.3 M. */
export function brief(n) {
  if (!Number.isFinite(n)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (n >= size) return `${short(n / (size === 1e4 ? 1e3 : size))} ${unit}`;
  }
  return n >= 100 || Number.isInteger(n) ? whole.format(Math.round(n)) : short(n);
}

export const rate = (n) => `${brief(n)}/s`;
export const byteRate = (n) => `${bytes(n)}/s`;

/** Nanoseconds with the unit that fits. */
export function duration(ns) {
  if (!Number.isFinite(ns)) return "–";
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${short(ns / 1e3)} µs`;
  if (ns < 1e9) return `${short(ns / 1e6)} ms`;
  const seconds = ns / 1e9;
  if (seconds < 60) return `${short(seconds)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const words = [];
  let left = Math.floor(seconds);
  for (const [size, unit] of parts) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n || words.length) words.push(`${n}${unit}`);
  }
  return words.slice(0, 2).join(" ");
}

export const seconds = (n) => duration(n * 1e9);

/** A time of the server, in this browser's zone; "never" for none. */
export function time(text) {
  if (!text || text.startsWith("0001-")) return "never";
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${clock}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export const percent = (share) => (Number.isFinite(share) ? `${short(share * 100)} %` : "–");

export function decode(base64) {
  const text = atob(base64 ?? "");
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

/** The text of bytes that are UTF-8 without control characters, else null. */
export function textOf(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** Indented JSON, or null where the bytes are none. Digits stay as they were sent. */
export function jsonOf(data) {
  const text = textOf(data);
  if (text === null || !/^\s*[[{"]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indent(text);
}

/** JSON text with line breaks, token by token: no number goes through a double. */
function indent(text) {
  const out = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, 60))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, at) => {
    if (token === "{" || token === "[") {
      depth += 1;
      const isEmpty = tokens[at + 1] === "}" || tokens[at + 1] === "]";
      out.push(token, isEmpty ? "" : line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      out.push(isEmpty ? "" : line(), token);
    } else if (token === ",") out.push(token, line());
    else if (token === ":") out.push(": ");
    else out.push(token);
  });
  return out.join("");
}

/** Offset, sixteen bytes in hex, the printable ones of them. */
export function hexOf(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = digits.slice(0, 8).join(" ").padEnd(23);
    const right = digits.slice(8).join(" ").padEnd(23);
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${letters}`);
  }
  return lines.join("\n");
}
