// Requests to the HTTP API. The cookie of the login is the credential; nothing here is sent to any other host.

// Problem is an error that the API returned: what happened and what to do, as text for the user.
export class Problem extends Error {
  constructor(status, fault) {
    super(fault?.text || fault?.message || `HTTP ${status}`);
    this.status = status;
    this.code = fault?.code || "";
  }
}

async function send(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      credentials: "same-origin",
      headers: body === undefined || body instanceof FormData ? { Accept: "application/json" } : { Accept: "application/json", "Content-Type": "application/json" },
      body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
    });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem(0, { code: "unreachable", text: "Conclave does not answer. Is conclave up still running?" });
  }
  const type = response.headers.get("Content-Type") || "";
  const data = type.includes("json") ? await response.json() : null;
  if (!response.ok) throw new Problem(response.status, data?.error);
  return data;
}

export const get = (path, signal) => send("GET", path, undefined, signal);
export const post = (path, body = undefined) => send("POST", path, body);
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

// openEvents opens the event stream behind the sequence after and calls onEvent with each event, stored and live. The browser
// reconnects by itself and resumes behind the last stored event. It returns a function that closes the stream.
export function openEvents({ after, onEvent, onState }) {
  const source = new EventSource(`/events?deltas=1&respondent_b=1&after=${after}`);
  const read = (e) => onEvent(JSON.parse(e.data));
  source.onmessage = read;
  source.addEventListener("delta", read);
  source.addEventListener("live", read);
  source.onopen = () => onState("open");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "closed" : "connecting");
  return () => source.close();
}
