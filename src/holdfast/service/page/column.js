// What is known of one gallery's answer: its hits, how far each is proven, and its ranks at the sizes asked.

import * as api from "./api.js";
import { threatText } from "./words.js";

const key = (threat, eps) => threatText(threat, eps);

export class Column {
  constructor(gallery) {
    Object.assign(this, { gallery, hits: [], plain: null, proof: null, k: 0, busy: false, problem: null });
    this.forget();
  }

  get smoothed() {
    return Boolean(this.gallery.smoothed);
  }

  offers(who) {
    return this.gallery.threats.some((threat) => threat.startsWith(`${who}:`));
  }

  // Whether a threat can be certified here at all.
  answers(threat) {
    return this.smoothed ? threat.who === "query" : this.offers(threat.who);
  }

  forget() {
    this.reach = new Map();
    this.exact = new Map();
    this.proof = null;
  }

  async search(query, k, signal) {
    this.k = k;
    this.forget();
    if (!this.smoothed) this.take(await api.search(query, { gallery: this.gallery.name, k }, signal));
  }

  // The largest size of each hit. A smoothed search draws once: all sizes are read off that one answer.
  async certify(query, { threat, method }, signal) {
    if (!this.offers("query") || (threat.who !== "query" && !this.smoothed)) return;
    const fields = { gallery: this.gallery.name, k: this.k, threat: this.smoothed ? "l2:auto" : "linf:auto" };
    if (!this.smoothed) fields.method = this.method(method);
    const answer = await api.certified(query, fields, signal);
    this.take(answer);
    this.proof = answer;
    for (const hit of answer.hits) this.reach.set(hit.id, hit);
  }

  // Rank intervals at one size, where this gallery has intervals.
  async measure(query, { threat, method, eps }, signal) {
    if (this.smoothed || threat.norm !== "linf" || !this.answers(threat)) return;
    if (this.exact.has(key(threat, eps))) return;
    const fields = { gallery: this.gallery.name, k: this.k, threat: threatText(threat, eps) };
    if (threat.who === "query") fields.method = this.method(method);
    const answer = await api.certified(query, fields, signal);
    this.take(answer);
    this.proof ??= answer;
    this.exact.set(key(threat, eps), new Map(answer.hits.map((hit) => [hit.id, hit])));
    for (const hit of answer.hits) {
      if (hit.verdict !== "CERTIFIED") continue;
      const before = this.reach.get(hit.id);
      if (!before || (before.eps ?? -1) < eps) this.reach.set(hit.id, { ...hit, eps });
    }
  }

  method(wanted) {
    return this.gallery.methods.includes(wanted) ? wanted : this.gallery.methods[0];
  }

  take(answer) {
    // The gallery may have been written to or replaced in between: what was proven of its earlier state is dropped.
    const before = this.plain;
    if (before && (before.uid !== answer.uid || before.generation !== answer.generation)) this.forget();
    this.plain = answer;
    this.hits = answer.hits;
  }

  // How far a hit is proven, in the norm of the slider; null if nobody has asked.
  // A change of ℓ2 length r alters no pixel by more than r, so a proof per pixel serves for ℓ2 too.
  farthest(hit, threat) {
    const found = this.reach.get(hit.id);
    if (this.smoothed) {
      if (!found || threat.who !== "query") return null;
      return (threat.norm === "linf" ? found.pixel : found.radius) ?? -1;
    }
    if (found) return found.eps ?? -1;
    return threat.who === "query" || !this.proof ? null : -1;
  }

  standing(hit, threat, eps) {
    const reach = this.farthest(hit, threat);
    const exact = this.exact.get(key(threat, eps))?.get(hit.id) ?? null;
    let kind = "waiting";
    if (!this.answers(threat)) kind = "none";
    else if (hit.verdict === "ABSTAIN") kind = "abstain";
    else if (exact) kind = exact.verdict === "CERTIFIED" ? "certified" : "unknown";
    else if (reach !== null && (this.smoothed ? eps < reach : eps <= reach)) kind = "certified";
    else if (reach !== null && threat.who === "query") kind = "unknown";
    return { kind, reach, exact };
  }

  proven(threat, eps) {
    return this.hits.filter((hit) => this.standing(hit, threat, eps).kind === "certified").length;
  }

  settled(threat, eps) {
    return this.hits.every((hit) => this.standing(hit, threat, eps).kind !== "waiting");
  }
}
