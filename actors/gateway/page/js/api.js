// Requests to the HTTP API. The cookie of the login is the credential; nothing here is sent to any other host.

// Problem is an error that the API returned: what happened and what to do, as text for the user.
export class Problem extends Error {
  constructor(status, fault) {
    super(fault?.text || fault?.message || `HTTP ${status}`);
    this.status = status;
    this.code = fault?.code || "";
  }
}

async function send(method, path, body, signal, type = "application/json") {
  const isRaw = body instanceof FormData || body instanceof Blob;
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      credentials: "same-origin",
      headers: body === undefined || body instanceof FormData ? { Accept: "application/json" } : { Accept: "application/json", "Content-Type": type },
      body: body === undefined || isRaw ? body : JSON.stringify(body),
    });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem(0, { code: "unreachable", text: "Conclave does not answer. Is conclave up still running?" });
  }
  const got = response.headers.get("Content-Type") || "";
  const data = got.includes("ndjson") ? await response.text() : got.includes("json") ? await response.json() : null;
  if (!response.ok) throw new Problem(response.status, data?.error);
  return data;
}

export const get = (path, signal) => send("GET", path, undefined, signal);
export const post = (path, body = undefined) => send("POST", path, body);
export const upload = (path, file, type) => send("POST", path, file, undefined, type);
export const put = (path, body) => send("PUT", path, body);
export const patch = (path, body) => send("PATCH", path, body);
export const del = (path) => send("DELETE", path);

// ask stores a question with its files and pasted texts and returns its ids at once; the answer arrives as events. Empty fields are
// left out.
export function ask(question, files = []) {
  const fields = Object.entries(question).filter(([, v]) => v);
  if (!files.length) return send("POST", "/query?wait=0", Object.fromEntries(fields));
  const form = new FormData();
  for (const [k, v] of fields) form.append(k, v);
  for (const f of files) {
    if (f.paste) form.append("paste", f.paste);
    else form.append("file", f, f.name || "pasted");
  }
  return send("POST", "/query?wait=0", form);
}

const retryMs = 700; // between two attempts to reach the server: a page is connected within two seconds of its return

// follow keeps an event stream open: start loads the state before the first one and resolves to nothing, after is the sequence of the
// last stored event, onEvent gets each event, stored and live. onState gets open, lost, or out: the browser has no login. A lost stream is
// opened anew behind the last stored event; of events that are no longer stored onLost gets the first and the last sequence, {from, to}.
export function follow({ start, after, onEvent, onState, onLost }) {
  let timer = 0;
  let started = false;
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(attempt, retryMs);
  };
  const attempt = async () => {
    timer = 0;
    try {
      await (started ? get("/") : start());
    } catch (e) {
      onState(e.status === 401 ? "out" : "lost");
      again();
      return;
    }
    started = true;
    const source = new EventSource(`/events?deltas=1&respondent_b=1&after=${after()}`);
    const read = (e) => onEvent(JSON.parse(e.data));
    source.onmessage = read;
    source.addEventListener("delta", read);
    source.addEventListener("live", read);
    source.addEventListener("lost", (e) => onLost(JSON.parse(e.data)));
    source.onopen = () => onState("open");
    source.onerror = () => { // the browser's own attempts end at the first error of HTTP
      source.close();
      onState("lost");
      again();
    };
  };
  document.addEventListener("visibilitychange", () => timer && !document.hidden && (clearTimeout(timer), attempt())); // a hidden tab has slow timers
  attempt();
}
