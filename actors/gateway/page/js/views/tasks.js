// Tasks of the orchestrator: the plan with the state of each subtask, and what can be done.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { render as renderMarkdown } from "../markdown.js";
import { age, count } from "../format.js";

const shown = { tasks: [], task: null, error: "" };

export async function load([id]) {
  shown.error = "";
  try {
    if (id) shown.task = await api.get("/tasks/" + encodeURIComponent(id));
    else shown.tasks = (await api.get("/tasks")).tasks ?? [];
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
}

const ended = (t) => ["done", "failed", "cancelled", "partial"].includes(t.state);

async function change(t, what) {
  try {
    await api.post(`/tasks/${t.task_id}/${what}`);
    setTimeout(() => load([t.task_id]), 300);
  } catch (e) {
    store.notify(e.message, "error");
  }
}

export function view([id]) {
  if (shown.error) return html`<div class="page"><h1>Tasks</h1><p class="failed">${shown.error}</p></div>`;
  if (id) {
    const live = store.state.runs.get(id)?.task;
    const t = live?.subtasks ? { ...shown.task, ...live } : shown.task;
    return t?.task_id === id ? one(t) : html`<div class="page"><h1>Task</h1><p class="quiet">Loading.</p></div>`;
  }
  return html`<div class="page"><h1>Tasks</h1>
    ${shown.tasks.length
      ? html`<table class="wide"><thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col">Subtasks</th><th scope="col">Updated</th></tr></thead><tbody>
          ${shown.tasks.map((t) => html`<tr><td><a href="/tasks/${t.task_id}">${t.query}</a></td><td>${t.state}</td><td>${t.subtasks?.length ?? 0}</td><td>${age(t.updated)}</td></tr>`)}</tbody></table>`
      : html`<p>No task yet. Choose "Task" beside the question in the <a href="/chat">chat</a>: the orchestrator makes a plan, and agents with few powers carry it out.</p>`}
  </div>`;
}

const one = (t) => html`<div class="page">
  <h1>${t.query}</h1>
  <p class="facts"><span>${t.state}</span><span>${count(t.tokens ?? 0, "token")}</span><span>updated ${age(t.updated)}</span><a href="/runs/${t.task_id}">run</a></p>
  ${ended(t) ? nothing : html`<p class="actions">${t.state === "paused" ? html`<button type="button" @click=${() => change(t, "resume")}>Resume</button>` : html`<button type="button" @click=${() => change(t, "pause")}>Pause</button>`}<button type="button" class="danger" @click=${() => change(t, "cancel")}>Cancel</button></p>`}
  <ol class="plan">${(t.subtasks ?? []).map((s) => html`<li class="subtask ${s.state}"><b>${s.title}</b> <span class="state">${s.state}</span> <span class="quiet">${s.agent}${s.depends_on?.length ? `, after ${s.depends_on.join(", ")}` : ""}${s.calls ? `, ${count(s.calls, "tool call")}` : ""}</span>${s.return?.summary ? html`<p>${s.return.summary}</p>` : nothing}</li>`)}</ol>
  ${t.error ? html`<p class="failed">${t.error.text}</p>` : nothing}
  ${t.report ? html`<h2>Report</h2><div class="markdown">${renderMarkdown(t.report)}</div>` : nothing}
</div>`;
