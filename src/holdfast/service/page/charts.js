// Small drawings: how many hits stay proven, where a hit can stand, and how a ranking moved.

import { show } from "./api.js";
import { svg } from "./dom.js";

const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });

// Steps from left to right: how many of the hits are proven at each size. `inset` is half the slider's thumb.
export function drawCurve(canvas, curves, { most, max, at, inset = 9, width = 300, height = 54 }) {
  canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const x = (size) => inset + (Math.min(size, max) / max) * (width - 2 * inset);
  const y = (n) => height - 3 - (n / Math.max(most, 1)) * (height - 8);
  const parts = [line(inset, y(0), width - inset, y(0), "axis")];
  curves.forEach((reaches, number) => {
    const sorted = reaches.filter((r) => r !== null && r >= 0).sort((a, b) => a - b);
    let path = `M${x(0)} ${y(sorted.length)}`;
    sorted.forEach((reach, i) => {
      path += `H${x(reach)}`;
      if (reach < max) path += `V${y(sorted.length - i - 1)}`;
    });
    if (!sorted.length || sorted[sorted.length - 1] < max) path += `H${x(max)}`;
    if (!number) parts.push(svg("path", { d: `${path}V${y(0)}H${x(0)}Z`, class: "area" }));
    parts.push(svg("path", { d: path, class: `steps steps-${number + 1}` }));
  });
  parts.push(line(x(at), 2, x(at), y(0), "at"));
  canvas.replaceChildren(...parts);
}

// The ranks at which a hit can stand, its rank now, and the last rank that was asked for.
export function drawInterval(rank, best, worst, k) {
  const width = 120;
  const last = Math.max(Math.ceil(k * 1.5), k + 2);
  const x = (r) => 4 + ((Math.min(r, last) - 1) / (last - 1)) * (width - 12);
  const open = worst > last;
  const end = x(worst);
  const parts = [
    line(4, 7, width - 4, 7, "track"),
    line(x(k + 0.5), 1, x(k + 0.5), 13, "cut"),
    line(x(best), 7, Math.max(end, x(best) + 0.1), 7, worst <= k ? "span good" : "span"),
    svg("circle", { cx: x(rank), cy: 7, r: 3.2, class: worst <= k ? "dot good" : "dot" }),
  ];
  if (open) parts.push(svg("path", { d: `m${end} 3 5 4-5 4`, class: "span more" }));
  return svg("svg", { viewBox: `0 0 ${width} 14`, class: "interval", "aria-hidden": "true", focusable: "false" }, parts);
}

// Ranks before on the left, after on the right, a line for each candidate; beyond the last rank is one row below.
export function drawSlope(moves, k, pictureOf, certified) {
  const row = 30;
  const side = 24;
  const width = 300;
  const left = 62;
  const right = width - left;
  const height = row * (k + 1) + 26;
  const y = (rank) => 22 + row * ((rank === null || rank > k ? k + 1 : rank) - 0.5);
  const parts = [
    svg("text", { x: left - 34, y: 12, class: "head" }, "before"),
    svg("text", { x: right, y: 12, class: "head" }, "after"),
    line(0, y(k) + row / 2 + 2, width, y(k) + row / 2 + 2, "cut"),
    ];
  for (let rank = 1; rank <= k; rank += 1) {
    parts.push(svg("text", { x: 14, y: y(rank) + 4, class: "rank" }, String(rank)));
    parts.push(svg("text", { x: width - 14, y: y(rank) + 4, class: "rank" }, String(rank)));
  }
  const picture = (id, x, rank) => {
    const image = svg("image", { x, y: y(rank) - side / 2, width: side, height: side, preserveAspectRatio: "xMidYMid slice" });
    show(image, pictureOf(id));
    return image;
  };
  for (const { id, before, after } of moves) {
    const inside = before !== null && before <= k;
    const stays = after !== null && after <= k;
    if (!inside && !stays) continue;
    const kind = certified.has(id) ? "kept" : stays && inside ? "moved" : inside ? "lost" : "new";
    const from = inside ? y(before) : y(k + 1);
    const to = stays ? y(after) : y(k + 1);
    parts.push(svg("path", { d: `M${left} ${from}C${left + 60} ${from} ${right - 60} ${to} ${right} ${to}`, class: `slope ${kind}` }));
    if (inside) parts.push(picture(id, left - side - 6, before));
    if (stays) parts.push(picture(id, right + 6, after));
  }
  parts.push(svg("text", { x: width / 2, y: y(k + 1) + 8, class: "below" }, `beyond rank ${k}`));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "slopes", "aria-hidden": "true", focusable: "false" }, parts);
}
