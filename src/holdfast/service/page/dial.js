// The slider: how strong the threat is, and how many hits are proven at each strength.

import { drawCurve } from "./charts.js";
import { by } from "./dom.js";
import { PER, count, floored, sizeText } from "./words.js";

const SCALES = {
  linf: { ends: [[4, 0.05], [8, 0.1], [12, 0.1], [16, 0.1], [24, 0.25], [32, 0.25], [48, 0.5], [64, 0.5], [128, 1], [255, 1]], start: 2 },
  l2: { ends: [[0.1, 0.001], [0.25, 0.0025], [0.5, 0.005], [1, 0.01], [2, 0.02], [4, 0.05], [8, 0.1], [16, 0.1], [64, 0.5]], start: 0.05 },
};

export class Dial {
  constructor() {
    Object.assign(this, { norm: "linf", input: by("size") });
    this.limit(8);
    this.eps = 2 / 255;
  }

  get per() {
    return PER[this.norm];
  }

  get eps() {
    return Number(this.input.value) / this.per;
  }

  set eps(value) {
    const units = value * this.per;
    if (units > Number(this.input.max)) this.fit(value);
    this.input.value = String(units);
  }

  get max() {
    return Number(this.input.max) / this.per;
  }

  use(norm) {
    if (this.norm === norm) return;
    this.norm = norm;
    this.limit(SCALES[norm].ends[1][0]);
    this.input.value = String(SCALES[norm].start);
    by("size-label").textContent = norm === "linf" ? "by up to, in each pixel" : "by less than, in ℓ2";
  }

  limit(end, step = null) {
    this.input.max = String(end);
    this.input.step = String(step ?? SCALES[this.norm].ends.find(([most]) => most >= end)?.[1] ?? 1);
    by("size-max").textContent = sizeText(this.norm, end / this.per);
  }

  // As long as it must be to show where the proofs end, and no longer.
  fit(farthest, most = Infinity) {
    if (most < Infinity) {
      // Boxes of candidates are kept for one eps, and nothing above it is certified: never a hair more than that.
      const end = Math.round(floored(this.norm, most, 1000) * 1000);
      let step = Math.max(1, Math.floor(end / 100));
      while (end % step) step -= 1;
      this.limit(end / 1000, step / 1000);
      return;
    }
    const wanted = Math.max(farthest * 1.08, this.eps) * this.per;
    const [end, step] = SCALES[this.norm].ends.find(([last]) => last >= wanted) ?? SCALES[this.norm].ends.at(-1);
    this.limit(end, step);
  }

  render(columns, threat) {
    const { eps, max } = this;
    by("size-value").textContent = sizeText(this.norm, eps);
    const shown = columns.filter((column) => column.plain && column.answers(threat));
    by("curve").toggleAttribute("hidden", !shown.length || threat.who !== "query");
    const curves = shown.map((column) => column.hits.map((hit) => column.farthest(hit, threat)));
    drawCurve(by("curve"), curves, { most: Math.max(1, ...shown.map((column) => column.hits.length)), max, at: eps });
    const tally = shown
      .filter((column) => column.settled(threat, eps))
      .map((column) => `${column.proven(threat, eps)} of ${count(column.hits.length, "hit")} certified${columns.length > 1 ? ` in ${column.gallery.name}` : ""}`)
      .join(", ");
    by("standing").textContent = tally;
    this.input.setAttribute("aria-valuetext", [sizeText(this.norm, eps), tally].filter(Boolean).join(", "));
  }
}
