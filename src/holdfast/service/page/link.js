// A result as a link: everything after the # says what was asked, and opening it asks again.

const NAMES = ["gallery", "query", "id", "k", "threat", "method", "with"];

export function read(fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const found = {};
  for (const name of NAMES) if (given.get(name)) found[name] = given.get(name);
  const threat = /^(?:(query|candidates|both):)?(linf|l2):([\d.]+)(\/255)?(?::m=(\d+))?$/.exec(found.threat ?? "");
  if (threat) {
    const [, who = "query", norm, size, steps, most] = threat;
    found.threat = { who, norm, most: most ?? "" };
    found.eps = Number(size) / (steps ? 255 : 1);
  } else delete found.threat;
  const k = Number(found.k);
  if (Number.isInteger(k) && k >= 1) found.k = k;
  else delete found.k;
  return found;
}

export function write(asked) {
  const kept = new URLSearchParams();
  for (const name of NAMES) if (asked[name]) kept.set(name, asked[name]);
  return `#${kept.toString().replaceAll("%3A", ":").replaceAll("%2F", "/").replaceAll("%3D", "=")}`;
}
