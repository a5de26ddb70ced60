// The state of the page: what the event stream and the API said. Views are functions of it. Changes are announced once a frame.

import * as api from "./api.js";

const maxRuns = 200; // questions whose events are kept
const maxEvents = 3000; // events kept of one question

export const state = {
  connection: "connecting", // open, connecting, closed
  health: null,
  sessions: [],
  conversations: new Map(), // by session id: the stored conversation
  runs: new Map(), // by query id: see newRun
  approvals: new Map(), // by id: calls that wait for the user
  notices: [], // messages to the user: {id, text, kind}
  last: 0, // sequence of the last stored event
};

const listeners = new Set();
let scheduled = false;

// subscribe calls listener after changes, at most once a frame. It returns a function that ends it.
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// changed announces a change of the state.
export function changed() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    for (const l of listeners) l();
  });
}

// newRun is what is known of one question.
function newRun(id) {
  return {
    id,
    session: "",
    query: "",
    began: 0,
    ended: 0,
    phase: "waiting", // in words for the user
    text: "", // answer so far
    thinking: "",
    thinkingSince: 0,
    thinkingMs: 0,
    respondent: "",
    tools: new Map(), // by call id
    notes: [],
    recalled: [],
    grade: null,
    reward: null,
    deliberations: new Map(), // by persona and round
    task: null,
    response: null, // the stored answer
    failed: null,
    cancelled: false,
    events: [],
    dropped: 0,
  };
}

// run returns the run of a question and creates it.
export function run(id) {
  let r = state.runs.get(id);
  if (!r) {
    r = newRun(id);
    state.runs.set(id, r);
    if (state.runs.size > maxRuns) {
      for (const [old, x] of state.runs) {
        if (x.response || x.failed) {
          state.runs.delete(old);
          break;
        }
      }
    }
  }
  return r;
}

const phases = {
  RECEIVING: "reading the question",
  GENERATING: "writing",
  DISPATCHING_TOOL: "calling a tool",
  WAITING_FOR_TOOL: "waiting for a tool",
  SUMMARIZING: "summarizing the conversation",
  PUBLISHING: "finishing",
};

// apply takes one event of the stream into the state. The same stored event twice changes nothing.
export function apply(ev) {
  if (ev.seq) {
    if (ev.seq <= state.last) return;
    state.last = ev.seq;
  }
  const [kind, action] = ev.subject.split(".");
  const p = ev.payload ?? {};
  if (kind === "approval") applyApproval(action, p, ev);
  if (!ev.query || ev.from === "respondent_b" || p.respondent_id === "respondent_b") {
    changed();
    return;
  }
  const r = run(ev.query);
  r.session ||= ev.session || p.session_id || "";
  const at = Date.parse(ev.time) || Date.now();
  r.began ||= at;
  if (ev.seq || kind === "query") {
    if (r.events.length < maxEvents) r.events.push(ev);
    else r.dropped++;
  }
  switch (kind + "." + action) {
    case "query.received":
    case "query.committee":
    case "query.task":
      r.query = p.query ?? "";
      r.attachments = p.attachments ?? [];
      break;
    case "query.cancel":
      r.cancelled = true;
      break;
    case "agent.state":
      if (p.code) r.notes.push({ code: p.code, text: p.words ?? "" });
      else if (phases[p.to] && !r.response) r.phase = phases[p.to];
      break;
    case "response.thinking":
      if (!r.response) {
        r.thinking += p.text ?? "";
        r.thinkingSince ||= at;
        r.thinkingMs = at - r.thinkingSince;
        r.phase = "thinking";
      }
      break;
    case "response.delta":
      if (!r.response) {
        r.text += p.text ?? "";
        r.respondent = p.respondent_id ?? r.respondent;
        r.phase = "writing";
      }
      break;
    case "response.generation":
      r.response = p;
      r.respondent = p.respondent_id ?? "";
      r.text = p.answer ?? "";
      r.thinking = p.thinking || r.thinking;
      r.query ||= p.query ?? "";
      r.failed = p.error ?? null;
      r.ended = at;
      r.phase = "";
      loadSessionsSoon();
      break;
    case "tool.request":
      r.tools.set(p.call_id, { ...r.tools.get(p.call_id), id: p.call_id, tool: p.tool, caller: p.caller, args: p.args, state: "running", since: at });
      r.phase = `calling ${p.tool}`;
      break;
    case "tool.output": {
      const t = r.tools.get(ev.subject.split(".")[2]);
      if (t) t.output = ((t.output ?? "") + (p.text ?? "")).slice(-20000);
      break;
    }
    case "tool.result": {
      const t = r.tools.get(p.call_id) ?? { id: p.call_id, tool: p.tool, caller: p.caller, since: at };
      t.result = p.result;
      t.error = p.error ?? null;
      t.labels = p.labels;
      t.ended = at;
      t.state = p.error ? (p.error.denial || ["denied", "not_approved", "unanswered", "limit"].includes(p.error.code) ? "denied" : "failed") : "done";
      r.tools.set(p.call_id, t);
      break;
    }
    case "memory.recalled":
      r.recalled = [...r.recalled, ...(p.hits ?? [])];
      break;
    case "critique.result":
      if (!p.respondent_id || !p.respondent_id.includes(".")) r.grade = p;
      break;
    case "reward.event":
      r.reward = p;
      break;
    case "committee.deliberation":
      r.deliberations.set(`${p.persona} ${p.round}`, p);
      if (p.status === "working") r.phase = `${p.persona} is speaking`;
      break;
    case "task.progress":
      r.task = p;
      break;
  }
  if (kind === "dead" && p.query_id === r.id) {
    r.failed = { text: p.reason };
    r.phase = "";
    r.ended = at;
  }
  changed();
}

function applyApproval(action, p, ev) {
  const id = p.id ?? p.approval_id ?? ev.subject.split(".")[2];
  if (action === "request") state.approvals.set(id, { ...p, id, query: ev.query, session: ev.session });
  else state.approvals.delete(id);
  const r = ev.query ? state.runs.get(ev.query) : null;
  const t = r && p.call_id ? r.tools.get(p.call_id) : null;
  if (t) t.state = action === "request" ? "waiting for you" : "running";
  if (r && action === "request") r.phase = `waiting for your approval of ${p.tool ?? "a call"}`;
}

// notify shows a message to the user. kind is info or error.
export function notify(text, kind = "info") {
  const n = { id: Date.now() + Math.random(), text, kind };
  state.notices = [...state.notices.slice(-3), n];
  changed();
  if (kind === "info") setTimeout(() => dismiss(n.id), 6000);
}

export function dismiss(id) {
  state.notices = state.notices.filter((n) => n.id !== id);
  changed();
}

let sessionsTimer = 0;
function loadSessionsSoon() {
  clearTimeout(sessionsTimer);
  sessionsTimer = setTimeout(loadSessions, 300);
}

export async function loadSessions() {
  try {
    state.sessions = (await api.get("/sessions")).sessions ?? [];
    changed();
  } catch (e) {
    notify(e.message, "error");
  }
}

export async function loadHealth() {
  try {
    state.health = await api.get("/health");
  } catch (e) {
    state.health = { status: "down", degraded: [e.message] };
  }
  changed();
}

export async function loadConversation(id) {
  const c = await api.get("/sessions/" + encodeURIComponent(id));
  state.conversations.set(id, c);
  changed();
  return c;
}

export async function loadApprovals() {
  try {
    const list = (await api.get("/approvals")).approvals ?? [];
    state.approvals = new Map(list.map((a) => [a.id ?? a.approval_id, a]));
    changed();
  } catch (e) {
    notify(e.message, "error");
  }
}

// loadRun reads the stored events of a question that the page has not seen.
export async function loadRun(id) {
  const known = state.runs.get(id);
  if (known && known.response) return known;
  const a = await api.get("/queries/" + encodeURIComponent(id));
  const last = state.last;
  for (const ev of a.event_log ?? []) {
    state.last = 0;
    apply({ ...ev, query: ev.query ?? id });
  }
  state.last = Math.max(last, state.last);
  return run(id);
}

// start loads the first state and follows the event stream.
export function start() {
  loadSessions();
  loadHealth();
  loadApprovals();
  setInterval(loadHealth, 15000);
  return api.openEvents({
    onEvent: apply,
    onState: (s) => {
      if (s !== state.connection) {
        const back = state.connection === "connecting" && s === "open";
        state.connection = s;
        if (back) loadApprovals();
        changed();
      }
    },
  });
}
