// Requests to the server, and its stream of events.

export class Refused extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

// A path with a query; a list gives one entry per element.
export function address(path, query = {}) {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) if (each !== undefined && each !== null) found.append(key, each);
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

export const get = (path, query) => ask(address(path, query));

export const post = (path, body) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused("The server does not answer. Is `shoal ui` still running?", 0);
  }
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  throw new Refused(problem(text), response.status);
}

function problem(text) {
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || "The server could not answer.";
  }
}

// Follows what changes: the list (from `version` on) and runs (a Map of name to offset).
//
// `on` has `entries`, `lines`, `gone` and `state(connected)`. A tab that nobody sees lets go of its stream, since a
// browser opens few connections to one server; when it is seen again, it goes on from where it was.
export function follow({ version = null, runs = new Map(), ...on }) {
  let source = null;
  let retry = 0;
  let closed = false;

  const open = () => {
    if (closed || document.hidden || (version === null && !runs.size)) return;
    source = new EventSource(address("/api/events", { list: version, run: [...runs.keys()], after: [...runs.values()] }));
    source.onopen = () => on.state?.(true);
    source.onerror = () => {
      drop();
      on.state?.(false);
      retry = setTimeout(open, 3000);
    };
    listen("entries", (data) => { version = data.version; });
    listen("lines", (data) => runs.set(data.run, data.offset));
    listen("gone", (data) => runs.delete(data.run));
  };
  const listen = (kind, note) =>
    source.addEventListener(kind, (event) => {
      const data = JSON.parse(event.data);
      note(data);
      on[kind]?.(data);
    });
  const drop = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const seen = () => (document.hidden ? drop() : source ?? open());
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    closed = true;
    document.removeEventListener("visibilitychange", seen);
    drop();
  };
}
