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
      headers: body === undefined ? { Accept: "application/json" } : { Accept: "application/json", "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
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
export const patch = (path, body) => send("PATCH", path, body);
export const del = (path) => send("DELETE", path);

// ask stores a question and returns its ids at once; the answer arrives as events.
export function ask(question) {
  return send("POST", "/query?wait=0", question);
}

// openEvents opens the event stream at its end and calls onEvent with each event, stored and live. The browser reconnects by
// itself and resumes behind the last stored event. It returns a function that closes the stream.
export function openEvents({ onEvent, onState }) {
  const source = new EventSource("/events?deltas=1&respondent_b=1");
  const read = (e) => onEvent(JSON.parse(e.data));
  source.onmessage = read;
  source.addEventListener("delta", read);
  source.addEventListener("live", read);
  source.onopen = () => onState("open");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "closed" : "connecting");
  return () => source.close();
}
