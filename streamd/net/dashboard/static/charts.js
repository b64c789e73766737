// Drawings in SVG: lines of rates, bars, and the blocks of a stream.

import { h, s } from "./dom.js";
import { bytes, count, duration, percent, time } from "./format.js";

/** The last values as a line; `words` say the same to those who do not see it. */
export function sparkline(values, words) {
  const width = 240;
  const height = 44;
  const top = Math.max(1e-9, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 2 - (value / top) * (height - 6)).toFixed(1)}`);
  const drawn = values.length > 1 ? points : [`0,${height - 2}`, `${width},${height - 2}`];
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
    s("polygon", { class: "under", points: `0,${height} ${drawn.join(" ")} ${width},${height}` }),
    s("polyline", { class: "line", points: drawn.join(" ") }),
  );
}

/** A share of a whole as a bar; the words beside it say it too. */
export function bar(share, words) {
  const part = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
  return h(
    "span",
    { class: "measure" },
    s(
      "svg",
      { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { class: "track", width: 100, height: 8 }),
      s("rect", { class: part > 0.9 ? "part full" : "part", width: (part * 100).toFixed(1), height: 8 }),
    ),
    h("span", null, words),
  );
}

const wordsOf = (block) =>
  [
    `Block ${block.index}: sequences ${count(block.first_seq)} to ${count(block.last_seq)}`,
    `${count(block.messages)} messages, ${bytes(block.bytes)}`,
    `${percent(block.fill)} full, ${percent(block.dead)} dead`,
    block.scrubbed ? `last scrub ${time(block.scrubbed)}` : "not scrubbed yet",
    block.damage ? `DAMAGED: ${block.damage}` : "whole",
  ].join("; ");

/** One block: filled from below as far as it is full, hatched where it is dead, crossed when damaged. */
function cell(block) {
  const size = 26;
  const fill = Math.max(0, Math.min(1, block.fill || 0)) * (size - 4);
  const dead = Math.max(0, Math.min(1, block.dead || 0)) * fill;
  const hatch = [];
  for (let y = 0; y < dead; y += 4) hatch.push(s("line", { class: "dead", x1: 2, x2: size - 2, y1: size - 2 - fill + y, y2: size - 2 - fill + Math.min(dead, y + 3) }));
  return s(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" },
    s("rect", { class: block.scrubbed ? "frame" : "frame unscrubbed", x: 1, y: 1, width: size - 2, height: size - 2, rx: 3 }),
    s("rect", { class: "fill", x: 2, y: size - 2 - fill, width: size - 4, height: fill }),
    hatch,
    block.damage ? s("path", { class: "damage", d: `M4 4L${size - 4} ${size - 4}M${size - 4} 4L4 ${size - 4}` }) : null,
  );
}

/** The blocks of a stream, oldest first. `chosen` is called with the block that somebody picks. */
export function blockMap(blocks, picked, chosen) {
  const buttons = blocks.map((block, at) =>
    h(
      "button",
      {
        type: "button",
        class: block.damage ? "block damaged" : "block",
        "aria-label": wordsOf(block),
        "aria-pressed": block.index === picked ? "true" : "false",
        title: wordsOf(block),
        tabindex: block.index === picked || (picked === null && at === 0) ? 0 : -1,
        onclick: () => chosen(block),
      },
      cell(block),
    ),
  );
  return h("div", { class: "blocks", role: "group", "aria-label": `${count(blocks.length)} blocks`, onkeydown: (event) => step(event) }, buttons);
}

function step(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
  if (!move) return;
  const all = [...event.currentTarget.querySelectorAll("button")];
  const at = all.indexOf(document.activeElement);
  const next = all[Math.max(0, Math.min(all.length - 1, at + move))];
  all.forEach((one) => one.setAttribute("tabindex", one === next ? "0" : "-1"));
  next?.focus();
  event.preventDefault();
}

/** What the signs of the map mean. */
export function legend() {
  const sample = (block, words) => h("li", null, cell({ fill: 0, dead: 0, scrubbed: "x", damage: "", ...block }), " ", words);
  return h(
    "ul",
    { class: "legend" },
    sample({ fill: 0.7 }, "filled as far as it is full"),
    sample({ fill: 0.8, dead: 0.5 }, "hatched: messages that were removed"),
    sample({ fill: 0.5, scrubbed: "" }, "dashed: not scrubbed yet"),
    sample({ fill: 0.6, damage: "x" }, "crossed: damaged"),
  );
}

export const blockFacts = (block) => [
  ["Block", count(block.index)],
  ["Sequences", `${count(block.first_seq)} to ${count(block.last_seq)}`],
  ["Messages", count(block.messages)],
  ["Size", `${bytes(block.bytes)} (${percent(block.fill)} of a full block)`],
  ["Dead", percent(block.dead)],
  ["Newest message", Number.isFinite(block.age_ns) ? `${duration(block.age_ns)} ago` : ""],
  ["Last scrub", block.scrubbed ? time(block.scrubbed) : "not yet"],
  ["Damage", block.damage || "none"],
];
