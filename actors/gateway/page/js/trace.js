// The run of a question as lanes: pure functions of its events.

import { visible } from "./format.js";

// A span: {lane, from, to, kind, title, note, event, open}. kind: read, model, state, tool, denied, wait, memory, critic, persona, task.
// A mark: {lane, at, kind, title, event}. kind: event, audit, answer, first.

const owners = { search_memory: "memory", save_memory: "memory", search_knowledge_graph: "memory", compare_answers: "critic", reward: "reward" };
const rank = ["you", "generator", "respondent_b", "committee", "orchestrator", "broker"];
const last = ["memory", "critic", "reward"];
const stateWords = { RECEIVING: "reads the conversation", RECALLING: "recalls what you said", DISPATCHING_TOOL: "sends calls", WAITING_FOR_TOOL: "waits for tools", PUBLISHING: "stores the answer", SUMMARIZING: "summarizes", PLANNING: "plans", DELIBERATING: "deliberates", CLOSING: "closes", REPORTING: "reports", RUNNING: "runs the plan" };

// personaToken is the name of a persona in subjects.
const personaToken = (name) => name.toLowerCase().replace(/^(the|an?)\s+/, "").replace(/[^a-z0-9]+/g, "_");

export const size = (ev) => JSON.stringify(ev.payload ?? {}).length;

// buildTrace returns {begin, end, lanes, spans, marks, answer} of a run. now is the end of what is still running.
export function buildTrace(r, now = Date.now()) {
  const spans = [];
  const marks = [];
  const open = new Map(); // the running span of an agent, a call, an approval, a persona or a subtask
  const running = !r.response && !r.failed;
  let end = 0;
  let answer = 0;
  const close = (key, at, more = {}) => {
    const s = open.get(key);
    if (!s) return null;
    s.to = Math.max(s.from, at);
    s.open = false;
    Object.assign(s, more);
    open.delete(key);
    return s;
  };
  const start = (key, s) => {
    close(key, s.from);
    const span = { to: now, open: true, ...s };
    spans.push(span);
    open.set(key, span);
    return span;
  };
  const events = [...r.events].sort((a, b) => Date.parse(a.time) - Date.parse(b.time) || (a.seq ?? 0) - (b.seq ?? 0));
  for (const ev of events) {
    const at = Date.parse(ev.time);
    const [kind, action, third] = ev.subject.split(".");
    const p = ev.payload ?? {};
    const mark = (lane, title, as = "event") => marks.push({ lane, at, kind: as, title, event: ev });
    end = Math.max(end, at);
    switch (kind + "." + action) {
      case "query.received":
      case "query.committee":
      case "query.task":
        mark("you", "question");
        break;
      case "query.cancel":
        mark("you", "stop");
        break;
      case "query.grants":
        mark("broker", `${(p.grants ?? []).length} grants from the words of the question`, "audit");
        break;
      case "agent.state": {
        const lane = ev.subject.split(".").slice(2).join(" ");
        if (p.code) {
          mark(lane, p.words || p.code);
          break;
        }
        if (p.reading) {
          const s = open.get("agent " + lane);
          if (s) Object.assign(s, { reading: p.reading });
          break;
        }
        const s = open.get("agent " + lane);
        if (p.to === "GENERATING" && s?.kind === "model" && p.event === "START_GENERATION" && at - s.from < 30) {
          s.step = p.step;
          s.title = `model call ${p.step ?? ""}`;
          break;
        }
        close("agent " + lane, at);
        if (p.to === "GENERATING") start("agent " + lane, { lane, from: at, kind: "model", title: `model call ${p.step ?? ""}`, step: p.step ?? 0, agent: lane.split(" ")[0], event: ev });
        else if (p.to && p.to !== "IDLE") start("agent " + lane, { lane, from: at, kind: "state", title: stateWords[p.to] ?? p.to.toLowerCase().replaceAll("_", " "), event: ev });
        break;
      }
      case "tool.request": {
        const lane = owners[p.tool] ?? p.tool;
        start("call " + p.call_id, { lane, from: at, kind: owners[p.tool] === "memory" ? "memory" : "tool", title: p.tool, call: p.call_id, caller: p.caller, event: ev });
        mark("broker", `${p.tool} allowed, the decision is in the audit log`, "audit");
        break;
      }
      case "tool.result": {
        const bad = !!p.error;
        let s = close("call " + p.call_id, at, { result: ev });
        if (!s) spans.push((s = { lane: "broker", from: at, to: at, kind: "denied", title: p.tool, call: p.call_id, event: ev, result: ev }));
        if (p.ms && at - s.from < p.ms) s.from = at - p.ms;
        if (bad) s.kind = "denied";
        mark("broker", `${p.tool} ${bad ? (p.error.code ?? "failed") : "returned"}, the outcome is in the audit log`, "audit");
        break;
      }
      case "approval.request":
        start("approval " + (p.id ?? third), { lane: "you", from: at, kind: "wait", title: `asked to approve ${p.tool}`, event: ev });
        mark("broker", `${p.tool} needs an approval`, "audit");
        break;
      case "approval.decision":
        close("approval " + (p.id ?? third), at, { title: `approval ${p.state ?? ""}`, result: ev });
        mark("broker", `approval ${p.state ?? "decided"}`, "audit");
        break;
      case "memory.recalled":
        mark("memory", `${(p.hits ?? []).length} recalled`);
        break;
      case "memory.stored":
      case "memory.annotated":
        mark("memory", action === "stored" ? "entry stored" : "entry graded");
        break;
      case "critique.result":
        spans.push({ lane: "critic", from: at - (p.ms ?? 0), to: at, kind: "critic", title: p.score ? `grade ${p.score} of 5${p.self_graded ? ", graded by itself" : ""}` : "not graded", event: ev });
        break;
      case "pairwise.result":
        mark("critic", `better answer: ${p.winner || "undecided"}${p.self_graded ? ", graded by itself" : ""}`);
        break;
      case "user.feedback":
        mark("you", "rating");
        break;
      case "reward.event":
        mark("reward", `reward ${p.value}`);
        break;
      case "committee.deliberation": {
        const lane = `committee ${personaToken(p.persona ?? "")}`;
        if (p.status === "working") start("persona " + lane, { lane, from: at, kind: "persona", title: `${p.persona}, round ${p.round}`, event: ev });
        else {
          close("agent " + lane, at, { result: ev });
          close("persona " + lane, at, { result: ev, title: `${p.persona}, round ${p.round}${p.dissents ? ", dissents" : ""}` });
        }
        break;
      }
      case "task.progress":
        if (!p.subtask) mark("orchestrator", p.state);
        else if (p.state === "running" && open.has("subtask " + p.subtask)) break;
        else if (p.state === "running") start("subtask " + p.subtask, { lane: `task ${p.subtask}`, from: at, kind: "task", title: p.subtask, event: ev });
        else if (["done", "failed", "skipped"].includes(p.state)) close("subtask " + p.subtask, at, { result: ev, kind: p.state === "failed" ? "denied" : "task" });
        break;
      case "agent.return":
        mark("orchestrator", `${p.subtask ?? ""} returned: ${p.status ?? ""}`);
        break;
      case "response.generation":
        mark(ev.from || p.respondent_id || "generator", "answer", "answer");
        if (ev.from !== "respondent_b") answer = at;
        break;
      case "answer.dialog":
        break;
      default:
        mark(ev.from || "broker", ev.subject);
    }
  }
  if (events.length && !marks.some((m) => m.title === "question")) marks.push({ lane: "you", at: Date.parse(events[0].time), kind: "event", title: "question", event: events[0] }); // the question itself is in another stream
  for (const s of spans) {
    if (s.open && !running) Object.assign(s, { to: Math.max(s.from, r.ended || end), open: false });
  }
  for (const s of spans.filter((x) => x.kind === "model")) splitModelCall(r, s);
  const begin = Math.min(r.began || Infinity, ...spans.map((s) => s.from), ...marks.map((m) => m.at));
  end = Math.max(end, running ? now : 0, ...spans.map((s) => s.to), begin + 1);
  return { begin, end, spans, marks, answer, lanes: orderLanes(spans, marks) };
}

// splitModelCall sets first, the time of the first token, of a model call: as stored with the answer, or as this page saw it.
function splitModelCall(r, s) {
  const stored = (r.response?.model_calls ?? []).find((c) => c.step === s.step && s.agent === (r.response.respondent_id || "generator"));
  const first = stored ? s.from + stored.first_ms : r.firstTokens.get(`${s.agent} ${s.step}`);
  if (first > s.from && first <= s.to) s.first = first;
  if (s.reading) s.note = `reads ${s.reading.tokens.toLocaleString("en")} tokens`;
}

function orderLanes(spans, marks) {
  const found = [...new Set(["you", ...spans.map((s) => s.lane), ...marks.map((m) => m.lane)])];
  const place = (l) => {
    const first = l.split(" ")[0];
    if (last.includes(first)) return 100 + last.indexOf(first);
    const i = rank.indexOf(first);
    if (i >= 0) return i * 10 + (l.includes(" ") ? 1 : 0);
    return first === "task" ? 45 : 60; // tools after the broker
  };
  return found.map((name, i) => ({ name, i })).sort((a, b) => place(a.name) - place(b.name) || a.i - b.i).map((l) => l.name);
}

// ticksOf returns round times for an axis of a range in milliseconds.
export function ticksOf(range, most) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000];
  const step = steps.find((s) => range / s <= most) ?? 7200000;
  return Array.from({ length: Math.floor(range / step) + 1 }, (_, i) => i * step);
}

// preview returns the beginning of what an event says, on one line.
export function preview(ev) {
  const p = ev.payload ?? {};
  const text = p.to && p.event ? `${p.from ?? ""} → ${p.to}` : (p.query ?? p.answer ?? p.result ?? p.feedback ?? p.why ?? p.response ?? p.text ?? p.error?.text ?? (p.args ? JSON.stringify(p.args) : ""));
  return visible(String(text ?? "").replace(/\s+/g, " ")).slice(0, 110);
}
