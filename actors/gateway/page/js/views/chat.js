// Chat: the sessions, one conversation, and the box to write in.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { Incremental, codeBlock } from "../markdown.js";
import { age, count, grade, json, seconds, visible } from "../format.js";

const draft = { text: "", mode: "assistant", files: [], search: "", sending: false };
let pending = ""; // session of the question that was just sent from an empty chat

const modes = [
  ["assistant", "Assistant"],
  ["committee", "Committee"],
  ["task", "Task"],
];

export function load([session]) {
  if (session && !store.state.conversations.has(session) && !runsOf(session).length) {
    store.loadConversation(session).catch((e) => store.notify(e.message, "error"));
  }
}

// runsOf returns the runs of a session that the page has seen, oldest first.
const runsOf = (session) => [...store.state.runs.values()].filter((r) => r.session === session && r.query).sort((a, b) => a.began - b.began);

const isRunning = (r) => !r.response && !r.failed;

// stop cancels the running question of the session, and reports whether there was one.
export function stop([session]) {
  const r = runsOf(session).findLast(isRunning);
  if (!r) return false;
  cancel(r);
  return true;
}

function cancel(r) {
  r.cancelled = true;
  r.phase = "stopping";
  store.changed();
  api.del("/queries/" + r.id).catch((e) => store.notify(e.message, "error"));
}

async function send(session, text, more = {}) {
  if (!text.trim() || draft.sending) return;
  draft.sending = true;
  store.changed();
  try {
    const q = { query: text, ...more };
    if (session) q.session_id = session;
    if (draft.mode !== "assistant") q.mode = draft.mode;
    if (draft.files.length) q.attachments = draft.files.map((f) => ({ name: f.name, source: "file", text: f.text }));
    const ids = await api.ask(q);
    const r = store.run(ids.query_id);
    r.session = ids.session_id;
    r.query ||= text;
    r.began ||= Date.now();
    draft.text = "";
    draft.files = [];
    pending = ids.session_id;
    if (!session) dispatchEvent(new CustomEvent("conclave:go", { detail: "/chat/" + ids.session_id }));
  } catch (e) {
    store.notify(e.message, "error");
  }
  draft.sending = false;
  store.changed();
}

async function addFiles(list) {
  for (const f of list) {
    if (f.size > 512 * 1024) store.notify(`${f.name} is larger than 512 KB: attach a part of it`, "error");
    else if (!/^text\/|json|xml|yaml|markdown|csv/.test(f.type) && f.type !== "") store.notify(`${f.name} is not a text: use conclave ask --attach for it`, "error");
    else draft.files.push({ name: f.name, text: await f.text() });
  }
  store.changed();
}

export function sessionList([open], active) {
  const words = draft.search.toLowerCase();
  const shown = store.state.sessions.filter((s) => (s.title ?? "").toLowerCase().includes(words));
  return html`<section class="sessions" aria-label="Sessions">
    <div class="sessions-head">
      <input type="search" aria-label="Search the sessions" placeholder="Search sessions" .value=${draft.search} @input=${(e) => ((draft.search = e.target.value), store.changed())} />
      <a class="button" href="/chat" title="New session (n)" aria-label="New session">+</a>
    </div>
    <ul>
      ${shown.map(
        (s) => html`<li class=${active && s.session_id === open ? "open" : ""}>
          <a href="/chat/${s.session_id}" aria-current=${active && s.session_id === open ? "page" : nothing}><span class="title">${s.title || "Untitled"}</span><span class="quiet">${age(s.updated)}</span></a>
          <button type="button" class="quiet" aria-label="Delete the session ${s.title}" @click=${() => remove(s, open)}>×</button>
        </li>`,
      )}
      ${shown.length ? nothing : html`<li class="quiet empty">${words ? "No session has these words." : "Your sessions appear here."}</li>`}
    </ul>
  </section>`;
}

async function remove(s, open) {
  if (!confirm(`Delete the session "${s.title}"? Memory and the audit log keep what they have of it.`)) return;
  try {
    await api.del("/sessions/" + s.session_id);
    store.state.conversations.delete(s.session_id);
    await store.loadSessions();
    if (s.session_id === open) dispatchEvent(new CustomEvent("conclave:go", { detail: "/chat" }));
  } catch (e) {
    store.notify(e.message, "error");
  }
}

export function view([session]) {
  const live = session ? runsOf(session) : [];
  const seen = new Set(live.map((r) => r.id));
  const stored = (store.state.conversations.get(session)?.conversation ?? []).filter((t) => !seen.has(t.query_id));
  const running = live.findLast(isRunning);
  const empty = !stored.length && !live.length;
  return html`
    <h1 class="sr">Chat</h1>
    <div class="log" id="log">
      <div class="column">
        ${empty ? welcome(session) : nothing}
        ${stored.map(storedTurn)} ${live.map((r) => liveTurn(r))}
      </div>
    </div>
    ${composer(session, running)}`;
}

const examples = ["What time is it in Tokyo?", "Remember that my favourite city is Lisbon.", "Search the web for news about NATS."];

const welcome = (session) =>
  session
    ? html`<p class="quiet">Loading the conversation.</p>`
    : html`<div class="welcome">
        <h2>Ask anything. It stays on this machine.</h2>
        <p>Every tool call is authorized and written to an audit log. A call that could send or change something asks you first.</p>
        <ul class="examples">
          ${examples.map((x) => html`<li><button type="button" @click=${() => send("", x)}>${x}</button></li>`)}
        </ul>
      </div>`;

// storedTurn shows a turn from before the page was opened.
function storedTurn(t) {
  const calls = (t.messages ?? []).flatMap((m) => m.tool_calls ?? []);
  const results = new Map((t.messages ?? []).filter((m) => m.role === "tool").map((m) => [m.tool_call_id, m.content]));
  return html`<article class="turn" aria-label="Question">
    ${userText(t.query)}
    ${calls.map((c) => toolCard({ id: c.id, tool: c.name, args: c.arguments, state: "done", result: results.get(c.id) }))}
    <div class="answer">${markdown(t.query_id, t.answer)}</div>
    <p class="facts"><span>${t.model}</span><span>${age(t.time)}</span><a href="/runs/${t.query_id}">run</a></p>
  </article>`;
}

const userText = (text) => html`<div class="user" dir="auto">${text}</div>`;

function liveTurn(r) {
  const running = isRunning(r);
  const u = r.response?.usage;
  return html`<article class="turn" aria-label="Question" aria-busy=${running}>
    ${userText(r.query)}
    ${r.thinking ? html`<details class="thinking"><summary>${running && !r.text ? `Thinking, ${seconds(Date.now() - r.thinkingSince)}` : `Thought for ${seconds(r.thinkingMs)}`}</summary><div class="thought">${visible(r.thinking)}</div></details>` : nothing}
    ${[...r.tools.values()].map(toolCard)}
    ${[...r.deliberations.values()].map(persona)}
    ${r.task ? html`<p class="tool"><a href="/tasks/${r.id}">Task: ${r.task.state ?? "planning"}</a></p>` : nothing}
    <div class="answer" dir="auto">${r.text ? markdown(r.id, r.text) : nothing}</div>
    ${running
      ? html`<p class="progress"><span class="spinner" aria-hidden="true"></span><span role="status">${r.phase || "waiting"}</span><span class="quiet">${seconds(Date.now() - r.began)}</span></p>`
      : nothing}
    ${r.failed ? html`<p class="failed"><b>Failed.</b> ${r.failed.text ?? r.failed.message ?? ""}</p>` : nothing}
    ${r.cancelled && !running ? html`<p class="quiet">You stopped this answer.</p>` : nothing}
    ${notes(r)}
    ${running ? nothing : html`<p class="facts">
      <span>${r.response?.model ?? ""}</span>
      ${u?.completion_tokens ? html`<span>${count(u.completion_tokens, "token")}${u.ms ? `, ${((u.completion_tokens * 1000) / u.ms).toFixed(0)}/s` : ""}</span>` : nothing}
      <span>${seconds(r.ended - r.began)}</span>
      ${badge(r)}
      ${r.recalled.length ? html`<span>${count(r.recalled.length, "recall")}</span>` : nothing}
      ${r.tools.size ? html`<span>${count(r.tools.size, "tool call")}</span>` : nothing}
      <span title="What left this machine">${left(r)}</span>
      <a href="/runs/${r.id}">run</a>
      ${rating(r)}
      <button type="button" class="quiet" @click=${() => send(r.session, r.query)}>Retry</button>
    </p>`}
  </article>`;
}

// left says what left the machine for an answer: the hosts of web tools.
function left(r) {
  const out = [...r.tools.values()].filter((t) => /^(web_|mcp_|package_)/.test(t.tool) && t.state === "done");
  return out.length ? `sent: ${[...new Set(out.map((t) => t.tool))].join(", ")}` : "nothing left this machine";
}

const notes = (r) => {
  const seen = new Set();
  const shown = [...r.notes, ...(r.response?.notes ?? [])].filter((n) => n.text && n.code !== "demo_model" && !seen.has(n.text) && seen.add(n.text));
  return shown.length ? html`<ul class="notes">${shown.map((n) => html`<li>${n.text}</li>`)}</ul>` : nothing;
};

function badge(r) {
  if (!r.grade) return nothing;
  if (!r.grade.score) return html`<span title=${r.grade.ungraded ?? ""}>not graded</span>`;
  const g = grade(r.grade.score);
  return html`<span class="grade ${g.tone}" title=${r.grade.feedback ?? ""}>${g.letter} ${r.grade.score}<span class="sr"> of 5, ${g.words}</span></span>`;
}

const rating = (r) => html`<span class="rating" role="group" aria-label="Rate the answer">
  <button type="button" class="quiet" aria-label="Good answer" aria-pressed=${r.rated === "up"} @click=${() => rate(r, "up")}>↑</button>
  <button type="button" class="quiet" aria-label="Bad answer" aria-pressed=${r.rated === "down"} @click=${() => rate(r, "down")}>↓</button>
</span>`;

async function rate(r, rated) {
  try {
    await api.post("/feedback", { query_id: r.id, thumb: rated === "up" ? 1 : -1 });
    r.rated = rated;
    store.notify("Thank you. Memory ranks what this answer used accordingly.");
  } catch (e) {
    store.notify(e.message, "error");
  }
  store.changed();
}

const untrusted = (labels) => labels?.trust === "untrusted";

function toolCard(t) {
  const args = typeof t.args === "object" ? JSON.stringify(t.args) : String(t.args ?? "");
  const state = t.state === "running" ? `running ${seconds(Date.now() - t.since)}` : t.state;
  return html`<details class="tool ${t.state?.split(" ")[0]}">
    <summary><span class="name">${t.tool}</span> <code>${visible(args).slice(0, 120)}</code> <span class="state">${state}</span></summary>
    <h3>Arguments</h3>
    ${codeBlock(json(t.args ?? {}), "json")}
    ${t.output ? html`<h3>Output</h3>${codeBlock(visible(t.output), "text")}` : nothing}
    ${t.error ? html`<p class="failed">${t.error.text ?? t.error.message ?? t.error.code}${t.error.denial ? html` Layer ${t.error.denial.layer}, rule ${t.error.denial.rule}.` : nothing}</p>` : nothing}
    ${t.result !== undefined && t.result !== "" ? html`<h3>Result${untrusted(t.labels) ? html` <span class="label">untrusted</span>` : nothing}</h3><div class=${untrusted(t.labels) ? "untrusted" : ""}>${codeBlock(json(t.result), "text")}</div>` : nothing}
  </details>`;
}

const persona = (d) => html`<details class="tool"><summary><span class="name">${d.persona}</span> round ${d.round} <span class="state">${d.dissents ? "dissents" : d.status}</span></summary><div class="thought">${visible(d.response ?? "")}</div></details>`;

// Answers are rendered outside the template library: their nodes are kept between draws. renderers has one for each answer.
const renderers = new Map();
const markdown = (id, text) => html`<div class="markdown" data-answer=${id} .source=${text ?? ""}></div>`;

// drawn renders the Markdown of the answers that are on the page, and keeps the end of the log in view while the user is there.
export function drawn([session]) {
  const log = document.querySelector("#log");
  const atEnd = log && log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  for (const e of document.querySelectorAll("[data-answer]")) {
    let r = renderers.get(e);
    if (!r) renderers.set(e, (r = { markdown: new Incremental(e), source: null }));
    if (r.source !== e.source) {
      r.source = e.source;
      r.markdown.update(e.source);
    }
  }
  for (const e of renderers.keys()) if (!e.isConnected) renderers.delete(e);
  if (log && (atEnd || pending === session)) {
    log.scrollTop = log.scrollHeight;
    pending = "";
  }
}

function composer(session, running) {
  const submit = (e) => {
    e.preventDefault();
    send(session, draft.text);
  };
  return html`<form class="composer" @submit=${submit} @dragover=${(e) => e.preventDefault()} @drop=${(e) => (e.preventDefault(), addFiles(e.dataTransfer.files))}>
    <div class="column">
      ${draft.files.map((f, i) => html`<p class="file"><span class="label">attachment</span> ${f.name} <button type="button" class="quiet" aria-label="Remove ${f.name}" @click=${() => (draft.files.splice(i, 1), store.changed())}>×</button></p>`)}
      <div class="box">
        <label class="sr" for="question">Your question</label>
        <textarea id="question" rows="1" placeholder=${running ? "Write the next question; it waits for this answer" : "Ask"} dir="auto"
          .value=${draft.text}
          @input=${(e) => ((draft.text = e.target.value), store.changed())}
          @paste=${(e) => e.clipboardData.files.length && (e.preventDefault(), addFiles(e.clipboardData.files))}
          @keydown=${(e) => e.key === "Enter" && !e.shiftKey && !e.isComposing && submit(e)}></textarea>
        <div class="actions">
          <label class="button" title="Attach a text file">Attach<input class="sr" type="file" multiple @change=${(e) => (addFiles(e.target.files), (e.target.value = ""))} /></label>
          <label class="sr" for="mode">Who answers</label>
          <select id="mode" @change=${(e) => ((draft.mode = e.target.value), store.changed())}>${modes.map(([v, text]) => html`<option value=${v} ?selected=${draft.mode === v}>${text}</option>`)}</select>
          <span class="grow"></span>
          ${running ? html`<button type="button" class="danger" @click=${() => cancel(running)}>Stop <kbd>Esc</kbd></button>` : nothing}
          <button class="primary" ?disabled=${draft.sending || !draft.text.trim()}>${running ? "Queue" : "Send"}</button>
        </div>
      </div>
      <p class="quiet hint">${store.state.health?.model?.model ?? ""}${store.state.health?.model?.demo_model ? ": the built-in demo model, not a language model" : ""}</p>
    </div>
  </form>`;
}
