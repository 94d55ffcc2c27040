// What the page says: sizes, threats and verdicts in plain words.

// How many units of the slider make an eps of 1: steps of an 8-bit pixel, or lengths as they are.
export const PER = { linf: 255, l2: 1 };

// The largest decimal of so many parts, in units, that is no larger than eps when it is read again.
export function floored(norm, eps, parts) {
  let steps = Math.round(eps * PER[norm] * parts);
  while (steps / parts / PER[norm] > eps) steps -= 1;
  return steps / parts;
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// What the slider says, and what is asked of the server: as fine as any of its steps.
export const sizeText = (norm, eps) => (norm === "linf" ? `${floored(norm, eps, 1000)}/255` : String(floored(norm, eps, 10000)));

// What is proven is never rounded up.
export function provenText(norm, eps) {
  const parts = norm === "linf" ? (eps < 10 / 255 ? 100 : 10) : 1000;
  const floor = floored(norm, eps, parts);
  const text = floor === 0 && eps > 0 ? `<${1 / parts}` : String(floor);
  return norm === "linf" ? `${text}/255` : text;
}

export function threatText({ who, norm, most }, eps) {
  const limit = who === "candidates" && most ? `:m=${most}` : "";
  return `${who === "query" && norm === "l2" ? "" : `${who}:`}${norm}:${sizeText(norm, eps)}${limit}`;
}

// `picture`: whose pixels are altered, those of the file or those that the network is given.
export function threatSentence({ who, norm, most }, eps, picture) {
  const [file, seen] = picture === "file" ? [" file", ""] : ["", ", as the network sees it,"];
  if (norm === "l2") return `however the query${file}${seen} is altered by less than ${sizeText(norm, eps)} in ℓ2`;
  const whose = {
    query: `of the query${file}`,
    candidates: most ? `of at most ${count(Number(most), `candidate${file}`)}` : `of the candidate${file}s`,
    both: `of the query${file} and the candidate${file}s`,
  }[who];
  return `however each pixel ${whose}${seen} is altered by up to ${sizeText(norm, eps)}`;
}

export const WHO = { query: "the query", candidates: "the candidates", both: "both" };
export const METHOD = { interval: "fast (interval)", "last-layer": "tighter (last layer)", crown: "tightest (crown)" };
export const VERDICT = { certified: "Certified", unknown: "Unknown", abstain: "Abstain", waiting: "Checking" };

export const nothingPromised = (threat, eps, picture) => threatSentence(threat, eps, picture).replace(/^however/, "if");

// Why a hit stands as it does at the slider's size.
export function because(hit, column, { threat, eps }, { kind, reach, exact }) {
  const asked = sizeText(threat.norm, eps);
  const proven = reach === null || reach < 0 ? "" : provenText(threat.norm, reach);
  switch (kind) {
    case "none": return "What is asked cannot be certified for this gallery.";
    case "waiting": return "Asking how far it holds …";
    case "abstain": return hit.reason;
    case "certified":
      if (column.smoothed) return `Stays in the top ${column.k} for every change shorter than its radius.`;
      return exact ? `Cannot be pushed below rank ${exact.worst}, whatever is done within ${asked}.` : `Stays in the top ${column.k} for every change within ${asked}.`;
    default:
      if (column.smoothed) return proven ? `Proven to ${proven} only, and ${asked} is asked.` : hit.reason;
      if (!proven) return exact ? `Could fall to rank ${exact.worst.toLocaleString("en")} for all that is proven; that is no attack.` : "No size is proven: another candidate is too close.";
      if (reach === 0) return exact ? `Proven only as it is; at ${asked} it could fall to rank ${exact.worst.toLocaleString("en")}.` : "Proven only as it is, unaltered.";
      return `Proven to ${proven} only${exact ? `; at ${asked} it could fall to rank ${exact.worst.toLocaleString("en")}` : `, and ${asked} is asked`}.`;
  }
}
