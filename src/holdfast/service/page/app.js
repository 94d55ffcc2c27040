// The page: what the reader sets on the left is asked of the server, and the answers are kept in columns.

import * as api from "./api.js";
import { outcome, renderAttack } from "./attack.js";
import { picture, renderColumn, summary } from "./cards.js";
import { Column } from "./column.js";
import { Dial } from "./dial.js";
import { by, el } from "./dom.js";
import * as link from "./link.js";
import { METHOD, WHO, count, threatText } from "./words.js";

const FEW = 12;
const SETTLE = 250;

const state = { status: null, gallery: null, other: null, query: null, threat: { who: "query", norm: "linf", most: "" }, columns: [] };
const dial = new Dial();
let running = null;
let attacking = null;
let settling = 0;
let owed = false;
let ready = null;

const asked = () => ({ threat: { ...state.threat }, eps: dial.eps, max: dial.max, method: by("method").value });
const named = (name) => state.status.galleries.find((gallery) => gallery.name === name) ?? null;
const say = (text) => { by("live").textContent = text; };

// ---- asking

async function run({ keepLink = false } = {}) {
  clearTimeout(settling);
  owed = true;
  running?.abort();
  attacking?.abort();
  const { signal } = (running = new AbortController());
  const k = wantedK();
  state.columns = [state.gallery, state.other].filter(Boolean).map((gallery) => new Column(gallery));
  for (const column of state.columns) Object.assign(column, { k, busy: true });
  by("problem").hidden = by("empty").hidden = true;
  by("found").hidden = false;
  by("attack").hidden = true;
  by("attacked").replaceChildren();
  refresh();
  say("Searching");
  try {
    await first(state.columns[0], k, signal);
    if (!keepLink) remember(true);
    await Promise.all(state.columns.slice(1).map((column) => guarded(column, () => column.search(state.query, k, signal))));
    refresh();
    await prove(signal);
    offerAttack();
  } catch (problem) {
    if (!signal.aborted) fail(problem);
  }
}

// The first answer also says under which name the server keeps the picture.
async function first(column, k, signal) {
  await column.search(state.query, k, signal);
  if (column.smoothed) await column.certify(state.query, asked(), signal);
  const { digest, id, image, name } = column.plain.query;
  Object.assign(state.query, { digest: digest ?? state.query.digest, id: id ?? state.query.id, image: image ?? state.query.image });
  if (!state.query.name) state.query.name = id ?? name;
  refresh();
  showQuery();
}

async function guarded(column, work) {
  try {
    await work();
  } catch (problem) {
    if (problem.name === "AbortError" || column === state.columns[0]) throw problem;
    column.problem = problem;
  }
}

async function prove(signal) {
  for (const column of state.columns) {
    if (!column.plain) await guarded(column, () => column.search(state.query, column.k, signal));
    if (!column.proof) await guarded(column, () => column.certify(state.query, asked(), signal));
  }
  owed = false;
  scale();
  refresh();
  await measure(signal);
}

async function measure(signal) {
  for (const column of state.columns) {
    await guarded(column, () => column.measure(state.query, asked(), signal));
    column.busy = false;
    refresh();
  }
  remember(false);
  say(state.columns.map((column) => (column.plain ? `${column.gallery.name}: ${summary(column, asked())}` : "")).join(" "));
}

// After the slider, who is altered or the method has changed: the hits stay, the proofs are asked again.
function settle({ again = false } = {}) {
  clearTimeout(settling);
  const searched = () => state.query && state.columns[0]?.plain;
  // At once: what is proven of another threat, or is still on its way, is not shown for this one.
  if (again && searched()) {
    running?.abort();
    for (const column of state.columns) column.forget();
    owed = true;
  }
  settling = setTimeout(async () => {
    if (!searched()) return;
    running?.abort();
    const { signal } = (running = new AbortController());
    refresh();
    try {
      await (owed ? prove(signal) : measure(signal));
      offerAttack();
    } catch (problem) {
      if (!signal.aborted) fail(problem);
    }
  }, again ? 0 : SETTLE);
}

// ---- showing

function refresh() {
  const [one, two] = state.columns;
  const shown = state.columns.map((column) => renderColumn(column, asked(), two ? (column === one ? two : one) : null));
  const holder = by("columns");
  holder.classList.toggle("two", shown.length > 1);
  if (shown.some((view, place) => holder.children[place] !== view) || holder.children.length !== shown.length) {
    holder.replaceChildren(...shown);
  }
  dial.render(state.columns, state.threat);
  if (!by("strength").dataset.own) by("strength").value = String(Number((dial.eps * dial.per).toFixed(4)));
}

function showQuery() {
  const { name, image, file } = state.query;
  by("query-picture").hidden = by("query-name").hidden = false;
  by("query-picture").alt = `The query: ${name}`;
  by("query-name").textContent = name;
  by("drop").classList.add("filled");
  if (file) state.query.local ??= URL.createObjectURL(file);
  api.show(by("query-picture"), state.query.local ?? image);
  by("share").disabled = !(state.query.digest || state.query.id);
}

function fail(problem) {
  const box = by("problem");
  const whose = problem.status === 422 && state.query?.file && !state.columns[0]?.plain ? `${state.query.name}: ` : "";
  const again = el("button", { type: "button", onclick: () => (state.query ? run() : (ready = start())) }, "Try again");
  box.replaceChildren(el("h2", null, problem.title ?? "Something went wrong"), el("p", null, whose, problem.detail ?? problem.message), again);
  box.hidden = false;
  for (const column of state.columns) column.busy = false;
  if (!state.columns.some((column) => column.plain)) {
    state.columns = [];
    by("found").hidden = true;
    refresh();
  }
  say("");
}

function scale() {
  const { threat } = state;
  if (threat.who !== "query") {
    dial.fit(0, Math.min(...state.columns.filter((c) => c.offers(threat.who)).map((c) => c.gallery.boxes.at(-1)), 1));
    return;
  }
  const reaches = state.columns.flatMap((column) => column.hits.map((hit) => column.farthest(hit, threat) ?? 0));
  dial.fit(Math.max(0, ...reaches));
}

// ---- settings

function choices(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  select.disabled = options.length === 0;
}

function settings() {
  const { gallery, other, status } = state;
  const names = status.galleries.map(({ name }) => name);
  choices(by("gallery"), names.map((name) => [name, name]), gallery.name);
  choices(by("other"), [["", "nothing"], ...names.filter((name) => name !== gallery.name).map((name) => [name, name])], other?.name ?? "");
  by("other").disabled = names.length < 2;
  by("size").disabled = gallery.threats.length === 0;
  const sides = [...new Set(gallery.threats.map((threat) => threat.split(":")[0]))];
  const norm = gallery.threats[0]?.split(":")[1] ?? "linf";
  if (!sides.includes(state.threat.who)) state.threat.who = sides[0] ?? "query";
  state.threat.norm = norm;
  dial.use(norm);
  const who = by("who");
  who.replaceChildren(el("legend", null, "The attacker alters"), ...Object.keys(WHO).map((side) => {
    const able = sides.includes(side);
    const input = el("input", { type: "radio", name: "who", value: side, checked: side === state.threat.who, disabled: !able });
    return el("label", null, input, el("span", null, WHO[side]));
  }));
  const all = sides.length === Object.keys(WHO).length;
  by("who-note").hidden = all;
  by("who-note").textContent = !sides.length ? "This embedder cannot be certified."
    : gallery.smoothed ? "A smoothed gallery is certified for altered queries." : "Altered candidates: index with --boxes to certify them.";
  by("most-field").hidden = state.threat.who !== "candidates";
  by("most").value = state.threat.most;
  const method = by("method").value;
  choices(by("method"), gallery.methods.map((name) => [name, METHOD[name] ?? name]), gallery.methods.includes(method) ? method : gallery.methods[0]);
  by("method-field").hidden = gallery.methods.length < 2 || state.threat.who !== "query";
  by("k").max = String(status.limits.k);
  by("strength-unit").textContent = norm === "linf" ? "/255" : "ℓ2";
  const { channels, height, width } = gallery.image;
  const megabytes = status.limits.bytes / 2 ** 20;
  by("file-note").textContent = `Up to ${megabytes < 1 ? megabytes.toFixed(1) : Math.round(megabytes)} MB. The network sees ${width} × ${height} pixels${channels === 1 ? ", grey" : ""}.`;
  by("facts").textContent = [
    `${gallery.name}: ${count(gallery.images, "image")}, state ${gallery.generation}`,
    gallery.architecture && `network ${gallery.architecture}, ${gallery.dim} numbers, fingerprint ${gallery.fingerprint.slice(0, 12)}`,
    gallery.smoothed && `smoothed with σ ${gallery.smoothed.sigma}${gallery.smoothed.rule === "votes" ? ", by votes" : ""}`,
    gallery.says,
    `Holdfast ${status.version}`,
  ].filter(Boolean).join(" · ");
  dial.render(state.columns, state.threat);
}

const wantedK = () => Math.min(Math.max(Math.trunc(Number(by("k").value)) || 10, 1), state.status.limits.k);

function remember(fresh) {
  const { query, gallery, other, threat } = state;
  if (!query.digest && !query.id) return;
  const where = link.write({
    gallery: gallery.name, query: query.digest, id: query.digest ? null : query.id, k: wantedK(),
    threat: threatText(threat, dial.eps), method: by("method").value, with: other?.name,
  });
  if (where !== location.hash) history[fresh && location.hash ? "pushState" : "replaceState"](null, "", where);
}

function restore() {
  const found = link.read(location.hash);
  state.gallery = named(found.gallery) ?? state.status.galleries[0];
  state.other = found.with && found.with !== state.gallery.name ? named(found.with) : null;
  if (found.k) by("k").value = String(found.k);
  if (found.threat) Object.assign(state.threat, found.threat);
  settings();
  if (state.gallery.methods.includes(found.method)) by("method").value = found.method;
  if (found.threat && found.threat.norm === dial.norm) dial.eps = found.eps;
  if (found.query || found.id) {
    if (!state.query || (state.query.digest ?? state.query.id) !== (found.query ?? found.id)) {
      state.query = { digest: found.query, id: found.query ? undefined : found.id };
    }
    run({ keepLink: true });
  }
}

// A picture may be dropped before the server has said what it serves.
async function ask(query) {
  await ready;
  if (!state.status) return;
  state.query = query;
  run();
}

async function takeFile(file) {
  if (!file) return;
  await ready;
  if (!state.status) return;
  const { bytes } = state.status.limits;
  if (file.size > bytes) {
    fail({ title: "This picture is too large", detail: `${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MB; this server takes ${(bytes / 2 ** 20).toFixed(1)} MB.` });
    return;
  }
  ask({ file, name: file.name || "pasted picture" });
}

async function examples() {
  let found = [];
  try {
    found = (await api.items(state.gallery.name, FEW)).items;
  } catch {
    // Examples are a courtesy: without them a picture can still be dropped.
  }
  const pick = (item) => el("button", { type: "button", class: "pick", onclick: () => ask({ id: item.id }) }, picture(item.image, `Search for ${item.label ? `${item.label}, ` : ""}${item.id}`));
  by("picks").replaceChildren(...found.map(pick));
  by("large-picks").replaceChildren(...found.map(pick));
  by("ids").replaceChildren(...found.map(({ id }) => el("option", { value: id })));
}

// ---- attacking

function offerAttack() {
  const able = state.status.roles.includes("attack") && state.columns.some((column) => column.gallery.attackable && column.plain?.hits.length);
  by("attack").hidden = !able;
  if (!able) return;
  const goal = by("goal").value;
  const labelled = state.columns.every((column) => column.hits[0]?.label);
  const goals = state.status.goals.filter(({ labels }) => !labels || labelled);
  choices(by("goal"), goals.map(({ name, words }) => [name, words]), goal || goals[0].name);
  by("targets").replaceChildren(...state.columns[0].hits.map((hit) => el("option", { value: hit.id }, `rank ${hit.rank}`)));
  by("steps").max = String(state.status.limits.attack_steps);
  aim();
}

function aim() {
  const { about } = state.status.goals.find(({ name }) => name === by("goal").value);
  by("target-field").hidden = about !== "hit" && about !== "item";
  by("target").required = about === "item";
  by("target").placeholder = about === "item" ? "id of a candidate" : "the first hit";
}

async function attack(event) {
  event.preventDefault();
  if (attacking) {
    attacking.abort();
    return;
  }
  const { signal } = (attacking = new AbortController());
  const eps = Number(by("strength").value) / dial.per;
  const go = by("attack-go");
  go.textContent = "Stop";
  by("attacked").setAttribute("aria-busy", "true");
  const able = state.columns.filter((column) => column.gallery.attackable && column.plain);
  const started = performance.now();
  const waiting = el("p", { class: "soft waiting" });
  by("attacked").replaceChildren(waiting);
  by("attacked").classList.toggle("two", able.length > 1);
  const clock = setInterval(() => { waiting.textContent = `Attacking … ${Math.round((performance.now() - started) / 1000)} s`; }, 200);
  const told = [];
  try {
    for (const column of able) {
      const { norm } = dial;
      const fields = {
        gallery: column.gallery.name, k: column.k, goal: by("goal").value, steps: by("steps").value,
        target: by("target-field").hidden ? null : by("target").value, threat: threatText({ who: "query", norm }, eps),
      };
      const answer = await api.attack(state.query, fields, signal);
      waiting.before(renderAttack(answer, { name: column.gallery.name, norm, eps, named: able.length > 1 }));
      told.push(`${able.length > 1 ? `${column.gallery.name}: ` : ""}${outcome(answer).text}`);
    }
    say(`The attack is over. ${told.join(" ")}`);
  } catch (problem) {
    if (!signal.aborted) {
      waiting.before(el("p", { class: "notice bad", role: "alert" }, problem.message));
    }
  } finally {
    clearInterval(clock);
    waiting.remove();
    attacking = null;
    go.textContent = "Attack this query";
    by("attacked").removeAttribute("aria-busy");
  }
}

// ---- what the reader does

function askForKey(detail) {
  const dialog = by("key-dialog");
  by("key-note").textContent = `${detail} The key is kept until this tab is closed and sent to this server alone.`;
  by("key").value = "";
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      const key = by("key").value;
      if (dialog.returnValue === "ok" && key) api.keepKey(key);
      done(dialog.returnValue === "ok" && Boolean(key));
    }, { once: true });
  });
}

async function copyLink() {
  const button = by("share");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
    say("The link is in the clipboard");
  } catch {
    // No clipboard outside https and localhost: the address bar holds the same link.
    button.textContent = "Copy the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 2000);
}

function listen() {
  by("file").addEventListener("change", (event) => takeFile(event.target.files[0]));
  document.addEventListener("paste", (event) => takeFile([...event.clipboardData.files].find((file) => file.type.startsWith("image/"))));
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      by("drop").classList.toggle("over", name === "dragenter" || name === "dragover");
      if (name === "drop") takeFile(event.dataTransfer.files[0]);
    });
  }
  by("by-id").addEventListener("submit", (event) => {
    event.preventDefault();
    ask({ id: by("item").value });
  });
  by("size").addEventListener("input", refresh);
  by("size").addEventListener("change", () => settle());
  const changed = () => { settings(); scale(); settle({ again: true }); };
  by("who").addEventListener("change", (event) => { state.threat.who = event.target.value; changed(); });
  by("most").addEventListener("change", (event) => { state.threat.most = event.target.value; changed(); });
  by("method").addEventListener("change", () => settle({ again: true }));
  by("k").addEventListener("change", () => state.query && run());
  by("gallery").addEventListener("change", (event) => {
    state.gallery = named(event.target.value);
    if (state.other === state.gallery) state.other = null;
    settings();
    examples();
    if (state.query) run();
  });
  by("other").addEventListener("change", (event) => {
    state.other = named(event.target.value);
    if (state.query) run();
  });
  by("share").addEventListener("click", copyLink);
  by("goal").addEventListener("change", aim);
  by("strength").addEventListener("input", (event) => { event.target.dataset.own = "yes"; });
  by("attack-form").addEventListener("submit", attack);
  by("key-cancel").addEventListener("click", () => by("key-dialog").close(""));
  window.addEventListener("popstate", restore);
}

async function start() {
  by("problem").hidden = true;
  try {
    state.status = await api.status();
    if (!state.status.galleries.length) throw new api.Problem(0, "No gallery is served", "Start the server with at least one: holdfast serve shop.gallery");
    restore();
    examples();
  } catch (problem) {
    fail(problem);
  }
}

api.onKeyNeeded(askForKey);
listen();
ready = start();
