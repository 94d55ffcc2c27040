// Talking to the server: one place for the key, for errors and for pictures that need the key.

const KEY = "holdfast-key";

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    Object.assign(this, { status, title, detail });
  }
}

let askForKey = async () => false;
export const onKeyNeeded = (ask) => { askForKey = ask; };
export const keepKey = (key) => sessionStorage.setItem(KEY, key);
const headers = () => {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
};

// In the page's own words: the title of a problem is the name of its status, which says little to most people.
const TITLES = {
  401: "A key is needed", 403: "This is not allowed", 404: "It is not there", 413: "This is too large",
  422: "This cannot be searched", 503: "The server is busy", 504: "It took too long",
};
const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}`;

async function problemOf(response) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    // An answer that is no JSON comes from something between here and the server.
  }
  const wait = response.headers.get("Retry-After");
  const detail = sentence(told.detail ?? `the server answered ${response.status} ${response.statusText}`);
  return new Problem(response.status, TITLES[response.status] ?? told.title ?? "The server did not answer", wait ? `${detail} Try again in ${wait} s.` : detail);
}

async function ask(path, options = {}) {
  for (;;) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: headers() });
    } catch (cause) {
      if (cause.name === "AbortError") throw cause;
      throw new Problem(0, "The server cannot be reached", "Is it still running? Start it with 'holdfast serve' and try again.");
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401 || !(await askForKey(problem.detail))) throw problem;
  }
}

const json = async (path, options) => (await ask(path, options)).json();

export const status = () => json("api/v1/status");
export const items = (gallery, limit) =>
  json(`api/v1/items?${new URLSearchParams({ gallery, limit })}`);

function form(query, fields) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "") body.append(name, value);
  }
  if (query.digest) body.append("query", query.digest);
  else if (query.id) body.append("id", query.id);
  else body.append("image", query.file, query.file.name || "picture.png");
  return body;
}

async function post(path, query, fields, signal) {
  try {
    return await json(path, { method: "POST", body: form(query, fields), signal });
  } catch (problem) {
    // The server keeps uploads for a while only; the picture itself may still be here.
    if (problem.status === 404 && query.digest && query.file) {
      return json(path, { method: "POST", body: form({ file: query.file }, fields), signal });
    }
    throw problem;
  }
}

export const search = (query, fields, signal) => post("api/v1/search", query, fields, signal);
export const certified = (query, fields, signal) => post("api/v1/search/certified", query, fields, signal);
export const attack = (query, fields, signal) => post("api/v1/attack", query, fields, signal);

const fetched = new Map();

// An <img> cannot send a key, so where there is one its bytes are fetched.
export async function show(image, url) {
  if (!url) return;
  if (!url.startsWith("data:") && !url.startsWith("blob:") && sessionStorage.getItem(KEY)) {
    if (!fetched.has(url)) fetched.set(url, ask(url).then((r) => r.blob()).then((b) => URL.createObjectURL(b)));
    try {
      url = await fetched.get(url);
    } catch {
      fetched.delete(url);
      return;
    }
  }
  image.setAttribute(image.namespaceURI.endsWith("svg") ? "href" : "src", url);
}
