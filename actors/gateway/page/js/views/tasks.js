// Tasks of the orchestrator: the plan as a graph with the state of each subtask, its results, and what can be done.

import { html, nothing, svg } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, empty, loader, stateMark } from "../parts.js";
import { render as renderMarkdown } from "../markdown.js";
import { age, count, seconds, visible } from "../format.js";

const tasks = loader(() => api.get("/tasks"));
const task = loader((id) => api.get("/tasks/" + encodeURIComponent(id)));
const shown = { version: 0, subtask: "", report: null, read: 0 };

const newestChange = () => store.newest("query.task", "task.progress.", "agent.return.");

export function load([id]) {
  if (id) {
    shown.subtask = "";
    task.load(id);
  } else {
    shown.read = newestChange();
    tasks.load();
  }
}

const ended = (t) => ["done", "failed", "stopped", "canceled", "partial"].includes(t.state);

const change = (t, what) =>
  act(async () => {
    await api.post(`/tasks/${t.task_id}/${what}`);
    setTimeout(() => task.load(t.task_id), 300);
  });

// stateOf is the state of a task in the word that its question has; what goes on follows.
function stateOf(t) {
  const list = t.subtasks ?? [];
  const done = list.filter((s) => s.state === "done").length;
  if (t.state === "partial") return stateMark("answered", `${done} of ${count(list.length, "subtask")} done`);
  if (ended(t) || t.state === "paused") return stateMark({ done: "answered", canceled: "stopped" }[t.state] ?? t.state);
  const waits = [...store.state.approvals.values()].some((a) => a.query_id === t.task_id);
  return stateMark(waits ? "waiting for you" : "running", t.state);
}

const tone = { done: "good", failed: "bad", running: "run", verifying: "run" };

export function view([id]) {
  if (id) {
    const r = store.state.runs.get(id);
    if (r && r.version !== shown.version && !task.loading) {
      shown.version = r.version; // the stored task has what the events leave out
      if (r.response || !task.value) queueMicrotask(() => task.load(id));
    }
    const t = r?.task?.subtasks?.length && task.value?.task_id === id && !ended(task.value) ? merge(task.value, r.task) : task.value;
    if (task.error) return html`<div class="page"><h1>Task</h1><p class="failed">${task.error}</p></div>`;
    return t?.task_id === id ? one(t) : html`<div class="page"><h1>Task</h1><p class="quiet">Loading.</p></div>`;
  }
  const now = newestChange();
  if (now > shown.read && !tasks.loading) {
    shown.read = now;
    queueMicrotask(() => tasks.load());
  }
  const all = tasks.value?.tasks ?? [];
  return html`<div class="page"><h1>Tasks</h1>
    ${tasks.error ? html`<p class="failed">${tasks.error}</p>` : nothing}
    ${all.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Tasks"><table class="wide"><thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col">Subtasks</th><th scope="col" class="num">Tokens</th><th scope="col">Updated</th></tr></thead><tbody>
          ${all.map((t) => html`<tr><td><a href="/tasks/${t.task_id}">${visible(t.query)}</a></td><td>${stateOf(t)}</td><td><span class="pips" role="img" aria-label=${(t.subtasks ?? []).map((s) => s.state).join(", ")}>${(t.subtasks ?? []).map((s) => html`<i class=${tone[s.state] ?? ""}></i>`)}</span></td><td class="num" data-label="tokens">${(t.tokens ?? 0).toLocaleString("en")}</td><td class="nowrap">${age(t.updated)}</td></tr>`)}</tbody></table></div>`
      : tasks.loading
        ? html`<p class="quiet">Loading.</p>`
        : empty("tasks", "No task yet", 'Choose "Task" beside the question: the orchestrator makes a plan, and agents with few powers carry it out, in parallel where nothing depends.', html`<a class="button primary" href="/chat">Give a task</a>`)}
  </div>`;
}

const merge = (stored, live) => ({ ...stored, state: live.state, subtasks: live.subtasks.map((s) => ({ ...stored.subtasks?.find((x) => x.id === s.id), ...s })) });

function one(t) {
  const list = t.subtasks ?? [];
  const picked = list.find((s) => s.id === shown.subtask) ?? null;
  if (t.report && shown.report?.text !== t.report) shown.report = { text: t.report, nodes: renderMarkdown(t.report) };
  return html`<div class="page wide-page">
    <h1 dir="auto">${visible(t.query)}</h1>
    <p class="facts">${stateOf(t)}<span>${count(t.tokens ?? 0, "token")}</span><span>${t.began ? seconds(Date.parse(t.ended ?? t.updated) - Date.parse(t.began)) : ""}</span><span>updated ${age(t.updated)}</span><a href="/runs/${t.task_id}">run</a><a href="/chat/${t.session_id}">session</a></p>
    ${ended(t) ? nothing : html`<p class="actions">${t.state === "paused" ? html`<button type="button" @click=${() => change(t, "resume")}>Resume</button>` : html`<button type="button" @click=${() => change(t, "pause")}>Pause</button>`}<button type="button" class="danger" @click=${() => change(t, "cancel")}>Cancel</button></p>`}
    ${list.length ? graph(list) : html`<p class="quiet">${ended(t) ? "It ended without a plan." : "The plan is being made."}</p>`}
    ${picked ? detail(picked) : list.length ? html`<p class="quiet">Select a subtask to see its instructions and its result.</p>` : nothing}
    ${t.error ? html`<p class="failed">${visible(t.error.text)}</p>` : nothing}
    ${t.report ? html`<h2>Report</h2><div class="markdown">${shown.report.nodes}</div>` : nothing}
  </div>`;
}

const width = 190;
const height = 56;

// graph draws the plan: a column for each step of the longest chain of dependencies, on a phone a list that is indented by it.
function graph(list) {
  const level = new Map();
  const levelOf = (id, depth = 0) => {
    if (!level.has(id)) level.set(id, depth > 20 ? 0 : Math.max(-1, ...(list.find((s) => s.id === id)?.depends_on ?? []).map((d) => levelOf(d, depth + 1))) + 1);
    return level.get(id);
  };
  const columns = [];
  for (const s of list) (columns[levelOf(s.id)] ??= []).push(s);
  const at = new Map();
  const rows = Math.max(...columns.map((c) => c.length));
  const narrow = innerWidth <= 720; // then one below the other
  if (narrow) columns.flat().forEach((s, i) => at.set(s.id, { x: 4 + levelOf(s.id) * 20, y: 4 + i * (height + 14) }));
  else columns.forEach((c, x) => c.forEach((s, y) => at.set(s.id, { x: 4 + x * (width + 56), y: 4 + (y + (rows - c.length) / 2) * (height + 18) })));
  const w = narrow ? width + columns.length * 20 : columns.length * (width + 56) - 48;
  const h = narrow ? list.length * (height + 14) - 6 : rows * (height + 18) - 10;
  const pick = (s) => () => ((shown.subtask = s.id), store.changed());
  return html`<div class="dag" tabindex="0" role="group" aria-label="Plan">${svg`<svg width=${w} height=${h} viewBox="0 0 ${w} ${h}" role="presentation">
    ${list.flatMap((s) => (s.depends_on ?? []).map((d) => {
      const a = at.get(d);
      const b = at.get(s.id);
      if (!a || !b) return nothing;
      const y1 = a.y + height / 2;
      const y2 = b.y + height / 2;
      if (narrow) return svg`<path class="edge" d="M${a.x + 8} ${a.y + height}V${y2}H${b.x - 2}"></path>`;
      return svg`<path class="edge" d="M${a.x + width} ${y1}C${a.x + width + 28} ${y1} ${b.x - 28} ${y2} ${b.x - 2} ${y2}"></path>`;
    }))}
    ${list.map((s) => {
      const p = at.get(s.id);
      const title = s.title.length > 24 ? s.title.slice(0, 23) + "…" : s.title;
      const below = `${s.agent} · ${s.state}${s.calls ? ` · ${count(s.calls, "call")}` : ""}`;
      return svg`<g class="node ${tone[s.state] ?? ""} ${shown.subtask === s.id ? "picked" : ""}" tabindex="0" role="button" aria-label="${title} ${below}" @click=${pick(s)} @keydown=${(e) => e.key === "Enter" && pick(s)()}>
        <rect x=${p.x} y=${p.y} width=${width} height=${height} rx="8"></rect><rect class="tone" x=${p.x} y=${p.y + 8} width="4" height=${height - 16} rx="2"></rect>
        <text class="title" x=${p.x + 14} y=${p.y + 24}>${title}</text>
        <text class="sub" x=${p.x + 14} y=${p.y + 42}>${below}</text></g>`;
    })}
  </svg>`}</div>`;
}

const detail = (s) => html`<section class="panel"><h2>${visible(s.title)} <span class="state ${tone[s.state]}">${s.state}</span></h2>
  <dl class="pairs"><dt>Instructions</dt><dd>${visible(s.instructions ?? "")}</dd><dt>Agent</dt><dd>${s.agent}${s.child ? html` <code>${s.child}</code>` : nothing}</dd>
    ${s.tools?.length ? html`<dt>Tools</dt><dd>${s.tools.join(", ")}</dd>` : nothing}
    ${s.return ? html`<dt>Result</dt><dd>${visible(s.return.summary)} <span class="quiet">${s.return.result_quality}, from ${s.return.source}</span></dd>` : nothing}
    ${s.return?.artifacts?.length ? html`<dt>Artifacts</dt><dd>${s.return.artifacts.map((a) => html`<code>${visible(a)}</code> `)}</dd>` : nothing}
    ${s.doubt ? html`<dt>Doubt</dt><dd class="warn-text">${visible(s.doubt)}</dd>` : nothing}
    ${s.return?.failure_reason ? html`<dt>Failed because</dt><dd>${visible(s.return.failure_reason)}</dd>` : nothing}</dl>
  <p class="quiet">${icon("lock")} It may only use the tools of its type, and less where its parents may less.</p></section>`;
