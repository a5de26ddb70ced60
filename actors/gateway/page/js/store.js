// The state of the page: what the event stream and the API said. Views are functions of it. Changes are announced once a frame.

import * as api from "./api.js";

const maxRuns = 300; // questions whose events are kept
const maxEvents = 3000; // events kept of one question
const maxLog = 3000; // stored events kept of all questions
const history = 1500; // stored events that are read when the page opens

export const state = {
  connection: "connecting", // open, lost after that, out: the browser is not logged in
  losses: 0, // how often the connection was lost
  loading: new Set(["sessions", "events", "approvals"]), // what was not read yet: views claim nothing about it
  missing: new Set(), // ids of sessions that do not exist
  health: null,
  sessions: [],
  conversations: new Map(), // by session id: the stored conversation, without its archived turns
  earlier: new Map(), // by session id: archived turns that were read, {turns, before, more, lost, loading, failed}
  runs: new Map(), // by query id: see newRun
  approvals: new Map(), // by id: calls that wait for the user
  log: [], // the latest stored events of every question
  notices: [], // messages to the user: {id, text, kind}
  question: null, // a question of the page to the user: see confirm
  last: 0, // sequence of the last stored event
  views: new Set(), // names of the views that the page has
};

const listeners = new Set();
let scheduled = false;

// subscribe calls listener after changes, at most once a frame. It returns a function that ends it.
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// changed announces a change of the state: in the next frame, or after a second in a tab that the browser does not draw.
export function changed() {
  if (scheduled) return;
  scheduled = true;
  let frame = 0;
  let timer = 0;
  const announce = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    scheduled = false;
    for (const l of listeners) l();
  };
  frame = requestAnimationFrame(announce);
  timer = setTimeout(announce, 1000);
}

// newRun is what is known of one question.
function newRun(id) {
  return {
    id,
    session: "",
    query: "",
    attachments: [],
    began: 0,
    ended: 0,
    phase: "waiting", // in words for the user
    reading: null, // {tokens, ms, since} while the model reads a long prompt
    text: "", // answer so far
    step: 0, // model call that the text comes from
    firstTokens: new Map(), // by respondent and step: time of the first token, as this page saw it
    thinking: "",
    thinkingSince: 0, // of the thinking that goes on; 0 = none does
    thinkingMs: 0, // of the thinking that ended
    respondent: "",
    tools: new Map(), // by call id
    notes: [],
    recalled: [],
    grants: null,
    stored: [], // ids of the memory entries that the answer became
    grade: null,
    verdict: null,
    reward: null,
    deliberations: new Map(), // by persona and round
    task: null,
    response: null, // the stored answer
    failed: null,
    cancelled: false,
    events: [],
    dropped: 0,
    lastSeq: 0,
    version: 0, // counts changes
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

// questionOf is the text of a question. The first one of a session is its title, until the answer brings the text.
export const questionOf = (r) => r.query || (state.sessions.find((s) => s.session_id === r.session && s.running && !s.turns)?.title ?? "");

export const isRunning = (r) => !r.response && !r.failed;

// stateOf is the state of a question in the one word that it has everywhere: in the page, in the terminal, in events and metrics.
export function stateOf(r) {
  if (r.failed) return "failed";
  if (r.response) return r.response.notes?.some((n) => n.code === "stopped") ? "stopped" : "answered";
  return [...state.approvals.values()].some((a) => a.query_id === r.id) ? "waiting for you" : "running";
}

// endThinking ends the time that the thinking of a question takes.
function endThinking(r, at) {
  if (r.thinkingSince) r.thinkingMs += Math.max(0, at - r.thinkingSince);
  r.thinkingSince = 0;
}

const phases = {
  RECEIVING: "reading the conversation",
  RECALLING: "recalling what you said",
  GENERATING: "waiting for the model",
  DISPATCHING_TOOL: "calling a tool",
  WAITING_FOR_TOOL: "waiting for a tool",
  SUMMARIZING: "summarizing the conversation",
  PUBLISHING: "finishing",
  PLANNING: "making a plan",
  DELIBERATING: "the committee deliberates",
  CLOSING: "the committee closes",
};

const deniedCodes = ["denied", "not_approved", "unanswered", "limit"];

// apply takes one event of the stream into the state. The same stored event twice changes nothing.
export function apply(ev) {
  if (ev.seq) {
    if (ev.seq > state.last) {
      state.last = ev.seq;
      state.log.push(ev);
      if (state.log.length > maxLog * 1.2) state.log = state.log.slice(-maxLog);
      if (ev.subject.startsWith("approval.")) applyApproval(ev);
    }
    if (ev.seq <= (state.runs.get(ev.query)?.lastSeq ?? 0)) return;
  }
  if (ev.query) applyToRun(run(ev.query), ev);
  else if (["branched", "compacted"].includes(ev.payload?.code) && state.conversations.has(ev.payload.session_id)) loadConversation(ev.payload.session_id).catch(() => {}); // another tab branched it, or its oldest turns were summarized
  changed();
}

// newest is the sequence of the newest event of subjects that begin so, 0 for none: what a view read before it is old.
export const newest = (...subjects) => state.log.findLast((ev) => subjects.some((s) => ev.subject.startsWith(s)))?.seq ?? 0;

function applyToRun(r, ev) {
  const [kind, action] = ev.subject.split(".");
  const p = ev.payload ?? {};
  r.version++;
  r.session ||= ev.session || p.session_id || "";
  const at = Date.parse(ev.time) || Date.now();
  if (!r.began || at < r.began) r.began = at;
  if (ev.seq) r.lastSeq = Math.max(r.lastSeq, ev.seq);
  if (ev.seq || kind === "query") {
    if (r.events.length < maxEvents) r.events.push(ev);
    else r.dropped++;
  }
  if (ev.from === "respondent_b" || p.respondent_id === "respondent_b" || String(p.caller ?? "").startsWith("respondent_b")) return; // shown in the run only
  switch (kind + "." + action) {
    case "query.received":
    case "query.committee":
    case "query.task":
      r.query = p.query ?? "";
      r.attachments = p.attachments ?? [];
      break;
    case "query.grants":
      r.grants = p.grants ?? [];
      break;
    case "query.cancel":
      r.cancelled = true;
      break;
    case "agent.state":
      if (p.code) r.notes.push({ code: p.code, text: p.words ?? "" });
      else if (phases[p.to] && !r.response) {
        endThinking(r, at);
        r.phase = phases[p.to];
      }
      r.reading = p.reading && !r.response ? { ...p.reading, since: at } : null;
      if (r.reading) r.phase = p.reading.whole ? "waiting for the whole answer" : `reading ${p.reading.tokens.toLocaleString("en")} tokens`;
      break;
    case "response.thinking":
      if (!r.response) {
        firstToken(r, p, at);
        r.thinking += p.text ?? "";
        r.thinkingSince ||= at;
        r.phase = "thinking";
      }
      break;
    case "response.delta":
      if (!r.response) {
        firstToken(r, p, at);
        endThinking(r, at);
        if ((p.step ?? 0) !== r.step || p.n < (r.nextDelta ?? 0)) {
          r.step = p.step ?? 0; // the text before a tool call is not part of the answer, nor is that before a restart
          r.text = "";
          r.nextDelta = 0;
        }
        if (p.n > (r.nextDelta ?? 0)) r.text += " … "; // a piece is missing; the stored answer has it
        r.nextDelta = (p.n ?? 0) + 1;
        r.text += p.text ?? "";
        r.respondent = p.respondent_id ?? r.respondent;
        r.phase = "writing";
      }
      break;
    case "response.generation":
      applyResponse(r, p, at);
      break;
    case "tool.request":
      endThinking(r, at);
      r.tools.set(p.call_id, { ...r.tools.get(p.call_id), id: p.call_id, tool: p.tool, caller: p.caller, args: p.args, state: "running", since: at });
      r.phase = `calling ${p.tool}`;
      if (p.args?.context && p.caller === "generator") r.query ||= p.args.query ?? ""; // the recall before the first model call has the question, which is in another stream
      break;
    case "tool.output": {
      const t = r.tools.get(ev.subject.split(".")[2]);
      if (t) t.output = ((t.output ?? "") + (p.text ?? "")).slice(-20000);
      break;
    }
    case "tool.result": {
      const t = r.tools.get(p.call_id) ?? { id: p.call_id, tool: p.tool, caller: p.caller, since: at };
      Object.assign(t, { result: p.result, error: p.error ?? null, labels: p.labels, artifacts: p.artifacts, change: p.change, parked: p.parked, egress: p.egress ?? "unknown", destinations: p.destinations ?? [], ended: at, ms: p.ms ?? 0 });
      t.state = p.error ? (p.error.denial || deniedCodes.includes(p.error.code) ? "denied" : "failed") : "done";
      r.tools.set(p.call_id, t);
      break;
    }
    case "memory.recalled":
      for (const h of p.hits ?? []) if (!r.recalled.some((x) => x.id === h.id)) r.recalled.push(h);
      break;
    case "memory.stored":
      r.stored.push(...(p.ids ?? []));
      break;
    case "critique.result":
      if (!p.respondent_id || !p.respondent_id.includes(".")) r.grade = p;
      break;
    case "pairwise.result":
      r.verdict = p;
      break;
    case "reward.event":
      r.reward = p;
      break;
    case "committee.deliberation":
      r.deliberations.set(`${p.round} ${p.persona}`, { ...p, since: r.deliberations.get(`${p.round} ${p.persona}`)?.since ?? at, ended: p.status === "working" ? 0 : at });
      if (p.status === "working") r.phase = `${p.persona} is speaking`;
      break;
    case "task.progress":
      applyProgress(r, p);
      break;
    case "approval.request":
      endThinking(r, at);
      setToolState(r, p, "waiting for you");
      r.phase = `${p.tool ?? "a call"} needs your approval`;
      break;
    case "approval.decision":
      for (const t of r.tools.values()) if (t.state === "waiting for you") t.state = "running";
      r.phase = "working";
      break;
  }
  if (kind === "dead") {
    r.failed = { text: p.reason ?? "The question was abandoned." };
    r.phase = "";
    r.ended = at;
  }
}

function firstToken(r, p, at) {
  r.reading = null; // the prompt is read when the first token is there
  const key = `${p.respondent_id} ${p.step ?? 0}`;
  if (!r.firstTokens.has(key)) r.firstTokens.set(key, at);
}

function setToolState(r, p, to) {
  const t = r.tools.get(p.call_id);
  if (t) t.state = to;
  else if (p.call_id && p.tool) r.tools.set(p.call_id, { id: p.call_id, tool: p.tool, caller: p.caller, args: p.args, state: to, since: Date.now() });
}

function applyResponse(r, p, at) {
  endThinking(r, at);
  r.response = p;
  r.respondent = p.respondent_id ?? "";
  r.text = p.answer ?? "";
  r.thinking = p.thinking || r.thinking;
  r.query ||= p.query ?? "";
  r.attachments = p.attachments ?? r.attachments;
  r.failed = p.error ?? null;
  r.ended = at;
  r.phase = "";
  r.reading = null;
  for (const c of p.tool_calls ?? []) {
    const t = r.tools.get(c.call_id);
    if (t) t.layer = c.layer;
    else if (c.call_id) r.tools.set(c.call_id, { id: c.call_id, tool: c.tool, args: c.args, result: c.result, error: c.error ?? null, layer: c.layer, state: c.error ? "failed" : "done" });
  }
  loadSessionsSoon(r.session);
}

// applyProgress merges a change of a task into its plan.
function applyProgress(r, p) {
  const t = (r.task ??= { task_id: p.task_id, state: "planning", subtasks: [] });
  if (p.subtasks) t.subtasks = p.subtasks;
  if (!p.subtask) t.state = p.state;
  else t.subtasks = t.subtasks.map((s) => (s.id === p.subtask ? { ...s, state: p.state, calls: p.calls ?? s.calls, text: p.text || s.text, ms: p.ms ?? s.ms } : s));
  if (!r.response) r.phase = p.subtask ? `working on ${t.subtasks.find((s) => s.id === p.subtask)?.title ?? p.subtask}` : (p.state ?? "working");
}

function applyApproval(ev) {
  const [, action, token] = ev.subject.split(".");
  const p = ev.payload ?? {};
  if (action === "request") {
    state.approvals.set(p.id ?? token, { ...p, id: p.id ?? token });
    clearTimeout(approvalsTimer);
    approvalsTimer = setTimeout(loadApprovals, 100); // the event has the arguments as a value, which rounds numbers
  } else state.approvals.delete(p.id ?? token);
}

// notify shows a message to the user. kind is info or error.
export function notify(text, kind = "info") {
  const n = { id: Date.now() + Math.random(), text, kind };
  state.notices = [...state.notices.filter((x) => x.text !== text).slice(-3), n];
  changed();
  if (kind === "info") setTimeout(() => dismiss(n.id), 6000);
}

export function dismiss(id) {
  state.notices = state.notices.filter((n) => n.id !== id);
  changed();
}

// confirm asks the user in a dialog of the page: {title, text, action, value}. It resolves to false, or to the text of the field
// when there is a value, otherwise to true.
export function confirm(question) {
  return new Promise((resolve) => {
    state.question = { ...question, resolve };
    changed();
  });
}

let approvalsTimer = 0;
let sessionsTimer = 0;

// loadSessionsSoon reads the list again, and the conversation that has another answer: where its window begins may have changed.
function loadSessionsSoon(session) {
  clearTimeout(sessionsTimer);
  sessionsTimer = setTimeout(() => {
    loadSessions();
    if (state.conversations.get(session)?.conversation.length > 1) loadConversation(session).catch(() => {});
  }, 300);
}

export async function loadSessions() {
  try {
    state.sessions = (await api.get("/sessions")).sessions ?? [];
    state.loading.delete("sessions");
    changed();
  } catch (e) {
    report(e);
  }
}

// report shows the error of a read a little later, unless the connection is or was lost around it: the page says so, and reads anew.
function report(e) {
  const { losses, connection } = state;
  setTimeout(() => connection !== "lost" && state.connection === "open" && state.losses === losses && notify(e.message, "error"), 2000);
}

export async function loadHealth() {
  try {
    state.health = await api.get("/health");
    changed();
  } catch (e) {
    report(e);
  }
}

export async function loadConversation(id) {
  try {
    const c = await api.get("/sessions/" + encodeURIComponent(id));
    keepArchived(id, c);
    state.conversations.set(id, c);
    state.missing.delete(id);
    changed();
    return c;
  } catch (e) {
    if (e.status !== 404) throw e;
    state.missing.add(id);
    changed();
  }
}

// keepArchived adds the turns that were archived since a conversation was read to its earlier ones, as far as these were read.
function keepArchived(id, c) {
  const old = state.conversations.get(id);
  const e = state.earlier.get(id);
  if (!old || !e) return;
  if (c.archived < old.archived) state.earlier.delete(id); // another conversation of the same name
  const kept = new Set(c.conversation.map((t) => t.query_id));
  if (c.archived > old.archived) e.turns = [...e.turns, ...old.conversation.filter((t) => !kept.has(t.query_id))];
}

// hasEarlier reports whether a session has archived turns that were not read yet.
export const hasEarlier = (id) => Boolean(state.conversations.get(id)?.archived) && (state.earlier.get(id)?.more ?? true);

// loadEarlier reads the next page of archived turns of a session, from the latest to the oldest.
export async function loadEarlier(id) {
  const e = state.earlier.get(id) ?? { turns: [], before: "", more: true, lost: 0, loading: false };
  if (e.loading || !hasEarlier(id)) return;
  state.earlier.set(id, e);
  Object.assign(e, { loading: true, failed: true });
  try {
    const page = await api.get(`/sessions/${encodeURIComponent(id)}/turns?` + new URLSearchParams(e.before ? { before: e.before } : {}));
    Object.assign(e, { turns: [...page.conversation, ...e.turns], before: page.before, more: Boolean(page.before), lost: e.lost + page.lost, failed: false });
  } finally {
    e.loading = false;
    changed();
  }
}

// forgetSession removes a deleted session from the state.
export function forgetSession(id) {
  state.conversations.delete(id);
  state.earlier.delete(id);
  localStorage.removeItem("draft " + id);
  for (const [q, r] of state.runs) if (r.session === id) state.runs.delete(q);
  state.sessions = state.sessions.filter((s) => s.session_id !== id);
  changed();
}

export async function loadApprovals() {
  try {
    const list = (await api.get("/approvals")).approvals ?? [];
    state.approvals = new Map(list.map((a) => [a.id, a]));
    state.loading.delete("approvals");
    changed();
  } catch (e) {
    report(e);
  }
}

// loadRun reads every stored event of a question, so that a run looks the same after a reload.
export async function loadRun(id) {
  const known = state.runs.get(id);
  if (known?.complete || (known && known.events[0]?.subject.startsWith("query."))) return known;
  const got = await api.get("/events/history?" + new URLSearchParams({ query: id }));
  const fresh = newRun(id);
  fresh.complete = true;
  if (known) Object.assign(fresh, { session: known.session, query: known.query, attachments: known.attachments, firstTokens: known.firstTokens });
  if (!got.events.length) fresh.known = await api.get("/queries/" + encodeURIComponent(id)).then(() => true, (e) => e.status !== 404 && e.status !== 400);
  state.runs.set(id, fresh);
  for (const ev of got.events) applyToRun(fresh, { ...ev, query: id });
  changed();
  return fresh;
}

let setReady;
// ready resolves when the sessions and the latest events are known.
export const ready = new Promise((resolve) => (setReady = resolve));

// readState reads the first state: the sessions, the approvals and the latest events.
async function readState() {
  const sessions = loadSessions();
  loadHealth();
  const got = await api.get("/events/history?" + new URLSearchParams({ limit: history }));
  for (const ev of got.events) apply(ev);
  state.last = Math.max(state.last, got.last ?? 0);
  state.loading.delete("events");
  loadApprovals();
  await sessions;
  setReady();
  changed();
}

// start loads the first state and follows the event stream, also across restarts of the server.
export function start() {
  setInterval(() => state.connection === "open" && loadHealth(), 15000);
  api.follow({
    start: readState,
    after: () => state.last,
    onEvent: apply,
    onLost: ({ to }) => to <= state.last && location.reload(), // the event log was created anew: nothing that is shown is in it
    onState: (s) => {
      if (s === state.connection) return;
      if (s === "open" && state.connection !== "connecting") {
        loadApprovals();
        loadSessions();
        loadHealth();
      }
      state.connection = s;
      if (s !== "open") state.losses++;
      changed();
    },
  });
}
