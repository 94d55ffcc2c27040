// Building elements. Text from the server or the user only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const by = (id) => document.getElementById(id);
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const SHAPES = {
  // A filled shield with a check, a dashed ring with a question mark, a square with a bar: told apart without colour.
  certified: [
    svg("path", { d: "M8 1 14 3.2v4.3C14 11 11.5 13.7 8 15 4.5 13.7 2 11 2 7.5V3.2z", class: "solid" }),
    svg("path", { d: "m5.2 7.8 2 2 3.6-3.9", class: "cut" }),
  ],
  unknown: [
    svg("circle", { cx: 8, cy: 8, r: 6.2, class: "dashed" }),
    svg("path", { d: "M6.2 6.6a1.85 1.85 0 1 1 2.6 1.7c-.6.3-.8.6-.8 1.2M8 11.2v.1", class: "stroke" }),
  ],
  abstain: [
    svg("rect", { x: 2, y: 2, width: 12, height: 12, rx: 1.5, class: "hollow" }),
    svg("path", { d: "M5 8h6", class: "stroke" }),
  ],
  waiting: [svg("circle", { cx: 8, cy: 8, r: 5.5, class: "turning" })],
};

export function shape(kind) {
  const parts = SHAPES[kind].map((part) => part.cloneNode(true));
  return svg("svg", { viewBox: "0 0 16 16", class: "shape", "aria-hidden": "true", focusable: "false" }, parts);
}
