// What an attack did to a query: the pictures, and how the ranking moved.

import { picture } from "./cards.js";
import { drawSlope } from "./charts.js";
import { el, shape } from "./dom.js";
import { count, sizeText } from "./words.js";

const inTop = (rank, k) => rank !== null && rank <= k;

// What the attack shows about the promise, in one sentence or two.
export function outcome(answer) {
  const { k } = answer.before;
  const certified = answer.before.hits.filter((hit) => hit.verdict === "CERTIFIED");
  const after = new Map(answer.moves.map((move) => [move.id, move.after]));
  const others = answer.before.hits.filter((hit) => hit.verdict !== "CERTIFIED");
  const lost = others.filter((hit) => !inTop(after.get(hit.id), k));
  const fell = certified.filter((hit) => !inTop(after.get(hit.id), k));
  const rest = (name) => lost.length ? `${lost.length} of ${count(others.length, name)} left the top ${k}` : `${others.length === 1 ? `the one ${name}` : `the ${count(others.length, name)}`} stayed too`;
  if (!answer.held) {
    const why = answer.before.alpha
      ? `A smoothed search is wrong with probability at most ${answer.before.alpha}: try again, and report it if it stays so.`
      : "That contradicts the proof: please report it with this link.";
    return { kind: "bad", text: `${count(answer.contradicted.length, "hit")} went where the proof says that none can. ${why}` };
  }
  if (!certified.length) {
    const who = lost.length === others.length ? `all ${count(others.length, "hit")}` : `${lost.length} of ${count(others.length, "hit")}`;
    const told = lost.length ? `${who} left the top ${k}` : `this time all ${count(others.length, "hit")} stayed in the top ${k}`;
    return { kind: lost.length ? "lost" : "calm", text: `No hit is certified against this, so nothing was promised: ${told}.` };
  }
  if (fell.length) return { kind: "lost", text: `${count(fell.length, "certified hit")} left the top ${k}, and the search says that it is not sure (ABSTAIN): that is no wrong answer.` };
  const held = certified.length === 1 ? "The certified hit held" : certified.length === 2 ? "Both certified hits held" : `All ${certified.length} certified hits held`;
  return { kind: "good", text: others.length ? `${held}; ${rest("other hit")}.` : `${held}.` };
}

// The server tells of the hits that were there; those that came in were beyond the last rank before.
const allMoves = (answer) => {
  const told = new Set(answer.moves.map(({ id }) => id));
  return [...answer.moves, ...answer.after.hits.filter(({ id }) => !told.has(id)).map(({ id, rank }) => ({ id, before: null, after: rank }))];
};

function firstHit({ before, after }) {
  const [was, is] = [before.hits[0], after.hits[0]];
  if (!was || !is) return "";
  if (was.id === is.id) return "The first hit is the same.";
  const rank = before.hits.find(({ id }) => id === is.id)?.rank;
  const labels = was.label !== is.label ? `, a ${is.label ?? "picture without a label"} instead of a ${was.label ?? "picture without one"}` : "";
  return `The first hit is another now${labels}; it was ${rank ? `at rank ${rank}` : `beyond rank ${before.k}`} before.`;
}

function table(answer, certified, open) {
  const { k } = answer.before;
  const place = (rank) => (rank === null ? `beyond ${k}` : rank.toLocaleString("en"));
  const rows = allMoves(answer)
    .filter(({ before, after }) => inTop(before, k) || inTop(after, k))
    .map(({ id, before, after }) => el("tr", null, el("th", { scope: "row", title: id }, el("bdi", null, id)), el("td", null, place(before)), el("td", null, place(after)), el("td", null, certified.has(id) ? "yes" : "–")));
  const head = ["candidate", "before", "after", "certified"].map((name) => el("th", { scope: "col" }, name));
  return el("details", { open },
    el("summary", null, "The ranks as a table"),
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Ranks before and after the attack" },
      el("table", null, el("thead", null, el("tr", null, head)), el("tbody", null, rows))),
  );
}

const shown = (url, alt, ...caption) => el("figure", null, picture(url, alt), el("figcaption", null, caption));

export function renderAttack(answer, { name, norm, eps, named }) {
  const { k } = answer.before;
  const certified = new Set(answer.before.hits.filter((hit) => hit.verdict === "CERTIFIED").map((hit) => hit.id));
  const pictures = new Map([...answer.before.hits, ...answer.after.hits].map((hit) => [hit.id, hit.image]));
  const { kind, text } = outcome(answer);
  return el("section", { class: `attack-result ${kind}`, "aria-label": `Attack on ${name}` },
    named ? el("h3", null, name) : null,
    el("p", { class: `outcome ${kind}` }, shape(kind === "good" ? "certified" : "unknown"), el("span", null, text)),
    el("p", { class: "soft small" }, `${answer.reached === null ? "" : `The goal was ${answer.reached ? "" : "not "}reached. `}${firstHit(answer)} Strength ${sizeText(norm, eps)}, ${count(answer.steps, "step")}, ${answer.seconds.toFixed(1)} s.`),
    el("div", { class: "attack-show" },
      el("div", { class: "seen" }, el("div", { class: "trio" },
        shown(answer.clean ?? answer.before.query.image, "The query before the attack", "query"),
        shown(answer.altered, "The query after the attack", "altered"),
        shown(answer.difference, `What the attack changed, amplified ${Math.round(answer.amplify)} times`, `difference × ${Math.round(answer.amplify)}`)),
        table(answer, certified, !named && matchMedia("(min-width: 40rem)").matches)),
      el("figure", { class: "slope-figure" },
        drawSlope(allMoves(answer), k, (id) => pictures.get(id), certified),
        el("figcaption", { class: "legend" },
          el("span", { class: "kept" }, "certified"), el("span", { class: "moved" }, "not certified"), el("span", { class: "lost" }, "left"), el("span", { class: "new" }, "came in"))),
    ),
  );
}
