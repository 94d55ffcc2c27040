// The hits of a column as an ordered list of cards; moving the slider rewrites their words, not their pictures.

import { show } from "./api.js";
import { drawInterval } from "./charts.js";
import { el, shape } from "./dom.js";
import { VERDICT, because, count, nothingPromised, provenText, threatSentence } from "./words.js";

export function picture(url, alt, attributes = {}) {
  if (!url) return el("div", { class: "no-picture", role: "img", "aria-label": `${alt} (no picture)` }, "no picture");
  const image = el("img", { alt, ...attributes });
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 64));
  image.addEventListener("error", () => image.replaceWith(picture(null, alt)));
  show(image, url);
  return image;
}

export const chip = (kind) => el("span", { class: `chip ${kind}` }, shape(kind), VERDICT[kind]);

function skeleton(n) {
  const bones = () => [el("div", { class: "frame" }), el("div", { class: "body" }, el("div", { class: "bone" }), el("div", { class: "bone short" }))];
  return el("ol", { class: "hits", "aria-hidden": "true" }, Array.from({ length: n }, () => el("li", { class: "card skeleton" }, bones())));
}

function reachBar(reach, eps, max) {
  const part = (value) => `${(100 * Math.min(Math.max(value, 0), max)) / max}%`;
  return el("div", { class: "reach", "aria-hidden": "true", "--to": part(reach), "--at": part(eps) }, el("i"), el("b"));
}

// A list of terms may hold nothing but terms: a drawing stands below it.
const fact = (name, value, drawing = null, kind = "") =>
  el("div", { class: `fact ${kind}` }, el("dl", null, el("dt", null, name), el("dd", null, value)), drawing);

function facts(hit, { kind, reach, exact }, column, { threat, eps, max }) {
  const list = [fact("distance", hit.distance.toFixed(4) + (hit.tied ? " (tie)" : ""))];
  if (hit.share !== null) list.push(fact("votes", `${(100 * hit.share).toFixed(1)} %`));
  if (kind === "none") return list;
  if (!column.smoothed) {
    const sure = kind === "certified";
    const ranks = exact ? (exact.best === exact.worst ? `${exact.best}` : `${exact.best}–${exact.worst.toLocaleString("en")}`) : sure ? `within 1–${column.k}` : "…";
    const drawn = drawInterval(hit.rank, exact?.best ?? (sure ? 1 : hit.rank), exact?.worst ?? (sure ? column.k : hit.rank), column.k);
    list.push(fact("ranks", ranks, drawn, exact ? "" : "stale"));
  }
  if (reach !== null && threat.who === "query") {
    const name = column.smoothed && threat.norm === "l2" ? "radius" : "proven to";
    list.push(fact(name, reach < 0 ? "none" : provenText(threat.norm, reach), reachBar(reach, eps, max)));
  }
  return list;
}

function mark(hit, other) {
  if (!other?.plain) return null;
  const there = other.hits.find((entry) => entry.id === hit.id);
  if (!there) return el("span", { class: "mark differs" }, "only here");
  return el("span", { class: "mark" }, there.rank === hit.rank ? "same rank there" : `rank ${there.rank} there`);
}

function describe(item, hit, column, asked, other) {
  const standing = column.standing(hit, asked.threat, asked.eps);
  item.className = `card ${standing.kind}`;
  item.dataset.verdict = standing.kind;
  item.lastChild.replaceChildren(
    el("div", { class: "line" }, standing.kind === "none" ? null : chip(standing.kind), mark(hit, other)),
    el("p", { class: "title" }, hit.label ?? hit.id),
    hit.label ? el("p", { class: "id soft", title: hit.id }, el("bdi", null, hit.id)) : "",
    el("div", { class: "facts" }, facts(hit, standing, column, asked)),
    el("p", { class: "reason" }, because(hit, column, asked, standing)),
  );
}

function card(hit) {
  const alt = `Hit ${hit.rank}: ${hit.label ? `${hit.label}, ` : ""}${hit.id}`;
  const rank = el("span", { class: "rank" }, el("span", { class: "unseen" }, "rank "), String(hit.rank));
  return el("li", { class: "card", "data-id": hit.id }, el("div", { class: "frame" }, picture(hit.image, alt), rank), el("div", { class: "body" }));
}

export function summary(column, { threat, eps }) {
  const n = column.hits.length;
  if (!n) return "This gallery has no images yet.";
  if (!column.answers(threat)) return `${count(n, "hit")}. What is asked cannot be certified for this gallery.`;
  if (!column.settled(threat, eps)) return `${count(n, "hit")}. Asking how far they hold …`;
  const held = column.proven(threat, eps);
  if (!held) return `None of the ${count(n, "hit")} is certified: nothing is promised ${nothingPromised(threat, eps, column.gallery.picture)}.`;
  const which = held === n ? `All ${count(n, "hit")} certified` : `${held} of ${count(n, "hit")} certified`;
  return `${which}: ${held === 1 ? "it stays" : "they stay"} in the top ${column.k}, ${threatSentence(threat, eps, column.gallery.picture)}.`;
}

function how(column) {
  const answer = column.proof ?? column.plain;
  const parts = [];
  if (answer.samples) parts.push(`${count(answer.samples, "noisy copy", "noisy copies")}; wrong with probability at most ${answer.alpha}; seed ${answer.seed}`);
  else if (answer.examined) parts.push(`${count(answer.examined, "candidate")} of ${answer.candidates.toLocaleString("en")} needed the exact test`);
  else parts.push(`nearest of ${count(answer.candidates, "candidate")}`);
  if (answer.sharpened === false) parts.push("too many candidates are near for the tighter proof");
  parts.push(`${answer.seconds.toFixed(2)} s`);
  return parts.join(" · ");
}

// The column's own element, made once for its hits and brought up to date afterwards.
export function renderColumn(column, asked, other) {
  const root = (column.view ??= el("section", { class: "column", "data-gallery": column.gallery.name, "aria-label": `Hits in ${column.gallery.name}` }));
  root.setAttribute("aria-busy", String(column.busy));
  const head = other ? [el("h3", null, column.gallery.name, el("span", { class: "soft" }, ` ${column.gallery.architecture ?? ""}`))] : [];
  if (column.problem) {
    root.replaceChildren(...head, el("p", { class: "notice bad" }, column.problem.message));
    return root;
  }
  if (!column.plain) {
    root.replaceChildren(...head, skeleton(column.k));
    return root;
  }
  const shown = column.hits.map((hit) => `${hit.rank} ${hit.id}`).join("\n");
  if (column.shown !== shown) {
    column.shown = shown;
    column.list = el("ol", { class: "hits" }, column.hits.map(card));
  }
  column.hits.forEach((hit, place) => describe(column.list.children[place], hit, column, asked, other));
  const told = [el("p", { class: "summary" }, summary(column, asked)), el("p", { class: "soft small" }, how(column))];
  if (column.list.parentNode === root) {
    while (root.firstChild !== column.list) root.firstChild.remove();
    root.prepend(...head, ...told);
  } else root.replaceChildren(...head, ...told, column.list);
  return root;
}
