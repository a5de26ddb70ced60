// Chat: one conversation, the box to write in, and the run of the selected answer in a drawer.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { Incremental } from "../markdown.js";
import { act, clientLabel, copy, go, gradeBadge, guard, personaCard, questionState, recallCard, toolCard, trustLabel, untrusted } from "../parts.js";
import { age, bytes, clientOf, count, isLongPaste, seconds, visible } from "../format.js";
import * as approvals from "./approvals.js";
import * as runs from "./runs.js";

const draft = { session: "", text: "", mode: "assistant", model: localStorage.getItem("model") ?? "", files: [], sending: false, over: false };
const drawer = { open: localStorage.getItem("drawer") === "open", run: "" };
const editing = { id: "", text: "" };
let pending = ""; // session of the question that was just sent
let following = true; // the end of the log is in view, and stays there when it grows

const modes = [
  ["assistant", "Assistant", "One agent answers, with tools."],
  ["committee", "Committee", "Personas deliberate, then one answers."],
  ["task", "Task", "The orchestrator plans, and agents with few powers carry it out."],
];

// openDraft shows what was written in a session and not sent; it stays in this browser until it is.
function openDraft(session) {
  draft.session = session;
  draft.text = localStorage.getItem("draft " + session) ?? "";
}

function write(text) {
  draft.text = text;
  if (text) localStorage.setItem("draft " + draft.session, text);
  else localStorage.removeItem("draft " + draft.session);
  store.changed();
}

const models = { list: [], own: "", next: 0 }; // those that can answer, the assistant's, and when they are read again
const modelsMs = 15000;
const short = (name) => name.replace(/:latest$/, "");

// loadModels reads the models that can answer, unless they were read a moment ago. A chosen one that is gone is no longer chosen.
async function loadModels() {
  if (Date.now() < models.next) return;
  models.next = Date.now() + modelsMs;
  try {
    const got = await api.get("/models");
    models.list = got.models.filter((m) => !m.embedding && !m.refused).map((m) => ({ ...m, name: short(m.name) })).sort((a, b) => Boolean(b.loaded) - Boolean(a.loaded) || a.name.localeCompare(b.name));
    models.own = short(got.roles.find((r) => r.role === "assistant" && !r.demo_model)?.model ?? "");
    if (!models.list.some((m) => m.name === draft.model)) draft.model = "";
    store.changed();
  } catch {
    // What was read before stays, and is asked for again after a while; a question names what is wrong.
  }
}

function chooseModel(name) {
  draft.model = name;
  localStorage.setItem("model", name);
  store.changed();
}

// modelFacts says where a model is, how large it is and how fast it wrote here.
const modelFacts = (m) => [m.name, m.remote ? `at ${m.remote}` : m.machine ? `on ${m.machine}` : "", m.loaded ? "loaded" : m.fits === "no" ? "too large" : "", m.size ? bytes(m.size) : "", m.output_speed ? `${m.output_speed < 10 ? m.output_speed.toFixed(1) : Math.round(m.output_speed)} tokens/s` : ""].filter(Boolean).map(visible).join(", ");

// modelChoice chooses the model of the next questions. A task has models by role.
function modelChoice() {
  const shown = store.state.health?.model;
  if (!models.list.length) return html`<span class="quiet hint">${shown?.model ?? ""}${shown?.demo_model ? ", the built-in demo model" : ""}</span>`;
  const own = models.list.find((m) => m.name === models.own);
  return html`<label class="sr" for="model">Model</label>
    <select id="model" title=${draft.mode === "task" ? "A task uses the models of its roles" : "Model of the next questions"} ?disabled=${draft.mode === "task"} @focus=${loadModels} @change=${(e) => chooseModel(e.target.value)}>
      <option value="" ?selected=${!draft.model}>${own ? modelFacts(own) : "Demo model"}</option>
      ${models.list.filter((m) => m !== own).map((m) => html`<option value=${m.name} ?selected=${draft.model === m.name}>${modelFacts(m)}</option>`)}
    </select>`;
}

let focusWanted = false; // the box gets the focus when it is drawn next

let target = ""; // question of the session that is to be shown

// findTarget reads earlier turns of a session until the question that the address names is among them.
async function findTarget(session, query) {
  while (target === query && !turnsOf(session).some((t) => t.id === query)) {
    if (!store.state.conversations.has(session)) await store.loadConversation(session);
    else if (store.hasEarlier(session)) await store.loadEarlier(session);
    else {
      target = "";
      store.notify("This turn is not in the conversation any more, or in another version of it.", "error");
    }
  }
}

// showTarget scrolls to the turn that the address names, and marks it.
function showTarget() {
  const turn = target && document.querySelector(`.turn[data-turn="${CSS.escape(target)}"]`);
  if (!turn) return;
  target = "";
  follow(false);
  anchor = null;
  turn.classList.add("wanted");
  turn.scrollIntoView({ block: "start" });
  requestAnimationFrame(() => turn.scrollIntoView({ block: "start" })); // the turns above it have their true heights now
}

export async function load([session = "", query = ""]) {
  drawer.run = "";
  target = query;
  openDraft(session);
  focusWanted = true;
  loadModels();
  await store.ready;
  const known = store.state.sessions.find((s) => s.session_id === session);
  if (target) act(() => findTarget(session, query));
  if (known ? known.turns || !known.running : session && !turnsOf(session).length) act(() => store.loadConversation(session)); // while the first question of a session runs, none is stored
}

// turnsOf returns the turns of a session, oldest first: {id, at, run, turn}.
function turnsOf(session) {
  const all = new Map();
  const aside = new Set((store.state.conversations.get(session)?.branches ?? []).flatMap((b) => b.queries));
  const stored = [...(store.state.earlier.get(session)?.turns ?? []), ...(store.state.conversations.get(session)?.conversation ?? [])];
  for (const t of stored) all.set(t.query_id, { id: t.query_id, at: Date.parse(t.time), turn: t });
  for (const r of store.state.runs.values()) {
    if (r.session !== session || aside.has(r.id) || !(r.query || store.isRunning(r))) continue;
    const known = all.get(r.id);
    if (known && !r.response && !r.failed && known.turn) continue; // only a part of its events is known
    all.set(r.id, { ...known, id: r.id, at: r.began, run: r });
  }
  return [...all.values()].sort((a, b) => a.at - b.at);
}

let versions = new Map(); // ids of the branches that a turn is one of, oldest first, by its question
let busy = false; // a question of the session runs

// findVersions returns the branches that the turns on the page are one of. They follow the same turn of the assistant; turns of the
// committee are not branched.
function findVersions(session, turns) {
  const out = new Map();
  const c = store.state.conversations.get(session);
  if (!c?.branches?.length) return out;
  let before = c.summarized + c.dropped ? null : "";
  for (const t of turns) {
    if ((t.turn?.respondent ?? t.run?.respondent) === "committee") continue;
    const others = c.branches.filter((b) => b.after === before).map((b) => ({ id: b.id, at: Date.parse(b.time) }));
    if (others.length) out.set(t.id, [...others, { id: t.id, at: t.turn ? Date.parse(t.turn.time) : t.run.ended || Date.now() }].sort((a, b) => a.at - b.at).map((b) => b.id));
    before = t.id;
  }
  return out;
}

// branch changes the branch of a session: {before: question} or {to: branch}. Other tabs follow by the event of it.
const branch = (session, change) => api.post(`/sessions/${encodeURIComponent(session)}/branch`, change).then(() => store.loadConversation(session));

// branchSwitch shows which of its branches a turn belongs to, and switches.
const branchSwitch = (session, id, ids) => {
  const at = ids.indexOf(id);
  const button = (to, label, sign) => html`<button type="button" class="ghost" aria-label=${label} title=${label} ?disabled=${busy || !ids[to]} @click=${() => act(() => branch(session, { to: ids[to] }))}>${sign}</button>`;
  return html`<nav class="versions" aria-label="Versions of the question">${button(at - 1, "Previous version", "‹")}<span><span class="sr">Version </span>${at + 1}/${ids.length}</span>${button(at + 1, "Next version", "›")}</nav>`;
};

// askEdited asks an edited question in the place of the first version, which becomes a branch. A question that is in no stored turn of the
// assistant is asked at the end.
async function askEdited(session, id, text) {
  if (!text.trim() || draft.sending) return;
  const stored = await act(() => store.loadConversation(session));
  const turn = stored?.conversation.find((t) => t.query_id === id);
  if (turn && turn.respondent !== "committee") {
    try {
      await branch(session, { before: id });
    } catch (e) {
      if (e.code !== "malformed") {
        editing.id = id;
        store.notify(e.message, "error");
        return;
      }
    }
  }
  return send(session, text);
}

// stop closes the open editor, or cancels the running question of the session; it reports whether there was one.
export function stop([session]) {
  if (editing.id) {
    editing.id = "";
    store.changed();
    return true;
  }
  const r = turnsOf(session).find((t) => t.run && store.isRunning(t.run))?.run;
  if (!r) return false;
  cancel(r);
  return true;
}

function cancel(r) {
  r.cancelled = true;
  r.phase = "stopping";
  r.version++;
  store.changed();
  act(() => api.del("/queries/" + r.id));
}

async function send(session, text) {
  if (!text.trim() || draft.sending) return;
  draft.sending = true;
  store.changed();
  await act(async () => {
    const mode = draft.mode === "assistant" ? "" : draft.mode;
    const ids = await api.ask({ query: text, session_id: session || "", mode, model: mode === "task" ? "" : draft.model }, draft.files);
    const r = store.run(ids.query_id);
    r.session = ids.session_id;
    r.query ||= text;
    r.began ||= Date.now();
    r.version++;
    write("");
    draft.files = [];
    pending = ids.session_id;
    if (!session) go("/chat/" + ids.session_id);
  });
  draft.sending = false;
  store.changed();
}

// steer stops the unfinished questions of the session and asks the text of the box at once. The model sees the answer so far.
function steer(session, turns) {
  if (!draft.text.trim() || draft.sending) return;
  for (const t of turns) if (t.run && store.isRunning(t.run)) cancel(t.run);
  return send(session, draft.text);
}

function addFiles(list) {
  for (const f of list) {
    if (f.size > 20 << 20) store.notify(`${f.name} is larger than 20 MB: attach a part of it`, "error");
    else if (draft.files.length >= 16) store.notify("At most 16 files can be attached to one question", "error");
    else draft.files.push(f);
  }
  store.changed();
}

// onPaste attaches pasted or dropped content: files, and a text that is too long to be the user's own words. It returns the text
// that is left to insert.
function onPaste(e, data) {
  const text = data.getData("text/plain");
  if (data.files.length) addFiles(data.files);
  else if (isLongPaste(text)) addFiles([{ name: `Pasted text, ${count(text.trim().split(/\r\n?|\n/).length, "line")}`, size: text.length, paste: text }]);
  else return text;
  e.preventDefault();
  return "";
}

// dropContent attaches what is dropped, and appends a short text to the question.
function dropContent(e) {
  e.preventDefault();
  draft.over = false;
  write(draft.text + onPaste(e, e.dataTransfer));
}

// typePaste makes a pasted text part of the question: the user says that the words are their own.
function typePaste(f) {
  draft.files.splice(draft.files.indexOf(f), 1);
  write(draft.text + (draft.text ? "\n" : "") + f.paste);
}

export function view([session]) {
  const turns = session ? turnsOf(session) : [];
  const running = turns.find((t) => t.run && store.isRunning(t.run))?.run;
  versions = findVersions(session, turns);
  busy = Boolean(running);
  const selected = drawer.run || turns.findLast((t) => t.id)?.id || "";
  const summary = store.state.conversations.get(session);
  return html`
    <div class="chat ${drawer.open && selected ? "with-drawer" : ""}">
      <section class="conversation" aria-label="Conversation">
        <h1 class="sr">Chat</h1>
        <div class="log" id="log" tabindex="0" role="region" aria-label="Messages" @scroll=${(e) => onScroll(e.target, session)}>
          <div class="column">
            ${turns.length ? nothing : welcome(session)}
            ${earlierLine(session)}
            ${withRoom(turns, summary).map((t) => (t ? html`${t.id === summary?.window ? windowMark(summary) : nothing}${t.run ? liveTurn(t.run, turns) : guard([t.turn, editing.id === t.id && editing.text, versions.get(t.id)?.join(), busy], () => storedTurn(t.turn, session))}` : nothing))}
          </div>
        </div>
        ${following || !turns.length ? nothing : html`<div class="jump"><button type="button" @click=${jump}>${icon("end")}${running ? "The answer that is written" : "Latest"}</button></div>`}
        <p class="sr" aria-live="polite" id="spoken"></p>
        ${composer(session, running, turns)}
      </section>
      ${drawer.open && selected
        ? html`<aside class="drawer" aria-label="Run of the selected answer">
            <div class="drawer-head"><h2>Run</h2><span class="grow"></span><button type="button" class="ghost" aria-label="Close the drawer" @click=${() => setDrawer(false)}>${icon("close")}</button></div>
            <div class="drawer-body">${runs.runPanel(selected, true)}</div>
          </aside>`
        : nothing}
    </div>`;
}

// withRoom puts a place for each archived turn that was not read before the turns, so that a turn keeps its place when it is.
function withRoom(turns, c) {
  const first = turns.findIndex((t) => t.id === c?.conversation?.[0]?.query_id);
  return [...Array(Math.max(0, (c?.archived ?? 0) - Math.max(0, first))).fill(null), ...turns];
}

// earlierLine leads to the turns before those that were read, or says how many are lost.
function earlierLine(session) {
  if (store.hasEarlier(session)) return html`<p class="earlier"><button type="button" class="link" @click=${() => showEarlier(session)}>Earlier turns</button></p>`;
  const lost = store.state.earlier.get(session)?.lost ?? 0;
  return lost ? html`<p class="earlier quiet">${count(lost, "turn")} cannot be read.</p>` : nothing;
}

// windowMark marks where the part of the conversation begins that the model gets.
const windowMark = (c) => html`<div class="window-mark"><span>The model gets the conversation from here on</span>
  ${c.summarized ? html`<details class="card"><summary>with a summary of ${count(c.summarized, "turn")} before</summary><p class="body prose">${visible(c.summary)}</p></details>` : nothing}</div>`;

// anchor is the first turn that is shown, and where, while earlier ones are put above it: it stays there, also in the frames after that,
// in which the browser measures what it has not drawn before.
let anchor = null;
const anchorFrames = 12;

function showEarlier(session) {
  const turn = document.querySelector("#log .turn");
  anchor = turn && { turn, top: turn.getBoundingClientRect().top, session, frames: 0, at: 0 };
  act(() => store.loadEarlier(session));
}

function holdAnchor(log) {
  if (!anchor?.turn.isConnected) anchor = null;
  if (!anchor || store.state.earlier.get(anchor.session)?.loading) return;
  const moved = anchor.turn.getBoundingClientRect().top - anchor.top;
  const scrolled = anchor.frames && Math.abs(log.scrollTop - anchor.at) > 1; // by the user, or by the browser for the same end
  log.scrollTop += scrolled ? 0 : moved;
  anchor.at = log.scrollTop;
  if (++anchor.frames > anchorFrames || (scrolled && moved)) anchor = null;
  else requestAnimationFrame(() => holdAnchor(log));
}

// onScroll follows the user, who may scroll on while earlier turns are read.
function onScroll(log, session) {
  follow(log.scrollHeight - log.scrollTop - log.clientHeight < 80);
  if (anchor && !anchor.frames) anchor.top = anchor.turn.getBoundingClientRect().top;
  if (log.scrollTop < 400) autoEarlier(session);
}

function follow(to) {
  if (following !== to) store.changed(); // the button to the latest turn comes or goes
  following = to;
}

// jump leads to the latest turn.
function jump() {
  const log = document.querySelector("#log");
  follow(true);
  log.scrollTop = log.scrollHeight;
  document.querySelector("#question")?.focus();
}

// autoEarlier reads earlier turns when their place comes into view. After an error only the button does.
function autoEarlier(session) {
  const e = store.state.earlier.get(session);
  if (store.hasEarlier(session) && !e?.loading && !e?.failed) showEarlier(session);
}

function setDrawer(open, run = drawer.run) {
  Object.assign(drawer, { open, run });
  localStorage.setItem("drawer", open ? "open" : "closed");
  if (open) runs.select(run);
  store.changed();
}

const examples = [
  ["What is the capital of France?", "an answer, and the run that led to it"],
  ["What time is it in Tokyo?", "a tool call, authorized and audited"],
  ["Remember that my favourite city is Lisbon.", "something for memory"],
  ["What do my notes say?", "reads the files in ~/notes"],
  ["Search the web for news about NATS.", "needs a search provider"],
];

const needsModel = (m) => m?.demo_model || m?.notice.startsWith("model not found");

const welcome = (session) =>
  store.state.missing.has(session)
    ? html`<div class="welcome"><h2>There is no session of this address.</h2><p class="lead">It was deleted, or the address is not complete. <a href="/chat">Begin a new one</a>, or choose one in the list.</p></div>`
    : session && !store.state.conversations.has(session)
      ? html`<p class="quiet">Loading the conversation.</p>`
      : html`<div class="welcome">
        <h2>Ask anything.<br />Every answer says what left this machine.</h2>
        <p class="lead">Every tool call is authorized and written to an audit log. What a page or a file wants and you did not order asks you first, unless it can be undone.</p>
        ${needsModel(store.state.health?.model) ? html`<p class="first-run"><a class="button primary" href="/models">Fetch a model</a> <span class="quiet">${store.state.health.model.demo_model ? "Until then the built-in demo model answers." : `The assistant's model, ${store.state.health.model.model}, is not on this machine yet.`}</span></p>` : nothing}
        <ul class="examples">
          ${examples.map(([text, what]) => html`<li><button type="button" @click=${() => send(session ?? "", text)}><span>${text}</span><span class="quiet">${what}</span></button></li>`)}
        </ul>
      </div>`;

const question = (id, session, text, attachments) =>
  editing.id === id
    ? html`<form class="edit box" @submit=${(e) => (e.preventDefault(), (editing.id = ""), askEdited(session, id, editing.text))}>
        <label class="sr" for="edit">Edit the question</label>
        <textarea id="edit" rows="2" .value=${editing.text} @input=${(e) => ((editing.text = e.target.value), store.changed())} @paste=${(e) => onPaste(e, e.clipboardData)} @keydown=${(e) => e.key === "Enter" && !e.shiftKey && e.target.form.requestSubmit()}></textarea>
        <div class="actions"><span class="quiet">The conversation continues from here; the first version stays as a branch.</span><span class="grow"></span><button type="button" @click=${() => ((editing.id = ""), store.changed())}>Cancel</button><button class="primary">Ask again</button></div>
      </form>`
    : html`<div class="asked">
        ${clientOf(session) ? nothing : html`<button type="button" class="ghost reveal" aria-label="Edit the question" title="Edit and ask again" @click=${() => (Object.assign(editing, { id, text }), store.changed(), requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("#edit")?.focus())))}>${icon("edit")}</button>`}
        <div class="user ${clientOf(session) ? "untrusted" : ""}" dir="auto">${clientOf(session) ? html`${clientLabel(session)} ` : nothing}${visible(text || "A question that was asked before this page was opened")}${(attachments ?? []).map((a) => html`<span class="attached">${icon("attach")}${visible(a.name || "attachment")} <span class="label">untrusted</span></span>`)}</div>
      </div>${versions.has(id) ? branchSwitch(session, id, versions.get(id)) : nothing}`;

const isPublic = (labels) => labels?.trust === "trusted" && labels.privacy === "public";

// storedTurn shows a turn whose events are no longer stored. The labels of its tool results are not stored: those of the turn hold.
function storedTurn(t, session) {
  const calls = (t.messages ?? []).flatMap((m) => m.tool_calls ?? []);
  const results = new Map((t.messages ?? []).filter((m) => m.role === "tool").map((m) => [m.tool_call_id, m.content]));
  return html`<article class="turn" aria-label="Question and answer" data-turn=${t.query_id}>
    ${question(t.query_id, session, t.query, t.attachments)}
    ${calls.map((c) => toolCard({ id: c.id, tool: c.name, args: c.arguments, state: "done", result: results.get(c.id), labels: t.labels }))}
    <div class="answer" dir="auto" ?data-trusted=${isPublic(t.labels)}>${untrusted(t.labels, markdown(t.query_id, t.answer))}</div>
    ${stopped(t.state)}${t.error ? html`<p class="failed"><b>This question failed.</b></p>` : nothing}
    <p class="facts"><span>${t.respondent || "assistant"}</span><span>${t.model}</span><span>${age(t.time)}</span>${t.grades?.critic_score ? gradeBadge(t.grades.critic_score, t.grades.feedback) : nothing}${trustLabel(t.labels)}
      <button type="button" class="link" @click=${() => setDrawer(true, t.query_id)}>run</button></p>
  </article>`;
}

const stopped = (state) => (state === "stopped" ? html`<p class="quiet">You stopped this answer. The text so far is kept.</p>` : nothing);

function liveTurn(r, turns) {
  const running = store.isRunning(r);
  const tick = running ? Math.floor(Date.now() / 500) : 0;
  return guard([r, r.version, tick, editing.id === r.id && editing.text, drawer.open && drawer.run === r.id, versions.get(r.id)?.join(), busy, r.rated, r.stars, r.words, store.state.approvals.size, store.state.health?.model?.notice], () => turn(r, running, turns));
}

function turn(r, running, turns) {
  const u = r.response?.usage;
  const isRecall = (t) => t.layer === "recall" || (t.tool === "search_memory" && t.args?.context);
  const recall = [...r.tools.values()].find(isRecall);
  const tools = [...r.tools.values()].filter((t) => !isRecall(t));
  const waiting = [...store.state.approvals.values()].filter((a) => a.query_id === r.id);
  return html`<article class="turn" aria-label="Question and answer" aria-busy=${running} data-query=${r.id} data-turn=${r.id}>
    ${question(r.id, r.session, store.questionOf(r), r.attachments)}
    ${r.recalled.length || recall ? recallCard(r.recalled, recall) : nothing}
    ${r.thinking ? html`<details class="thinking"><summary>${icon("think")}${r.thinkingSince ? `Thinking, ${seconds(r.thinkingMs + Date.now() - r.thinkingSince)}` : `Thought${r.thinkingMs ? ` for ${seconds(r.thinkingMs)}` : ""}, about ${count(Math.ceil(r.thinking.length / 4), "token")}`}</summary><p class="thought">${visible(r.thinking)}</p></details>` : nothing}
    ${tools.map(toolCard)}
    ${r.deliberations.size ? html`<section class="deliberation" aria-label="Deliberation">${[...r.deliberations.values()].map(personaCard)}<p class="quiet"><a href="/deliberations/${r.id}">Open the deliberation</a></p></section>` : nothing}
    ${r.task ? html`<p class="card taskline">${icon("tasks")}<a href="/tasks/${r.id}">Task</a>${questionState(r)}<span class="quiet">${r.task.subtasks.filter((s) => s.state === "done").length} of ${count(r.task.subtasks.length, "subtask")} done</span></p>` : nothing}
    ${approvals.cards(waiting, true)}
    <div class="answer" dir="auto" ?data-trusted=${isPublic(r.response?.labels)}>${r.text ? untrusted(r.response?.labels, markdown(r.id, r.text)) : nothing}</div>
    ${running ? progress(r, turns) : nothing}
    ${r.failed ? html`<p class="failed"><b>This question failed.</b> ${visible(r.failed.text ?? r.failed.message ?? r.failed.code ?? "")} ${clientOf(r.session) ? nothing : html`<button type="button" class="link" @click=${() => send(r.session, r.query)}>Ask again</button>`}</p>` : nothing}
    ${stopped(store.stateOf(r))}
    ${notes(r)}
    ${running ? nothing : factsLine(r, u, tools)}
  </article>`;
}

// progress explains what an answer waits for, with a bar where the duration is known.
function progress(r, turns) {
  const before = turns.filter((t) => t.run && t.run !== r && store.isRunning(t.run) && t.run.began < r.began).length;
  const state = store.stateOf(r);
  const text = before ? `queued behind ${count(before, "question")} of this session` : state === "waiting for you" ? `${state}: ${r.phase}` : r.phase || state;
  const read = r.reading;
  const done = read && !read.whole ? Math.min(1, (Date.now() - read.since) / read.ms) : 0;
  return html`<div class="progress">
    <span class="spinner" aria-hidden="true"></span><span role="status">${text}</span><span class="quiet">${seconds(Date.now() - r.began)}</span>
    ${read && !read.whole ? html`<progress max="1" value=${done} aria-label="Reading the prompt"></progress><span class="quiet">${done < 1 ? `about ${seconds(read.ms - (Date.now() - read.since))} left` : "longer than estimated"}</span>` : nothing}
  </div>`;
}

function factsLine(r, u, tools) {
  const out = r.response ?? {};
  const show = () => setDrawer(true, r.id);
  return html`<div class="facts">
    <span>${out.model ?? ""}</span>
    ${u?.completion_tokens ? html`<span title="${u.prompt_tokens} tokens read, ${u.completion_tokens} written">${count(u.completion_tokens, "token")}${speed(u)}</span>` : nothing}
    <span>${seconds(r.ended - r.began)}</span>
    ${badge(r)}
    ${r.recalled.length ? html`<button type="button" class="link" @click=${show}>${count(r.recalled.length, "recall")}</button>` : nothing}
    ${tools.length ? html`<button type="button" class="link" @click=${show}>${count(tools.length, "tool call")}</button>` : nothing}
    ${left(r)}
    ${trustLabel(out.labels)}
    <a href="/runs/${r.id}" class="run-link" @click=${(e) => !e.ctrlKey && !e.metaKey && innerWidth > 1000 && (e.preventDefault(), e.stopPropagation(), setDrawer(!(drawer.open && drawer.run === r.id), r.id))}>run</a>
    <span class="answer-actions">${rating(r)}
      <button type="button" class="ghost" aria-label="Copy the answer" title="Copy" @click=${() => copy(r.text)}>${icon("copy")}</button>
      ${clientOf(r.session) ? nothing : html`<button type="button" class="ghost" aria-label="Ask again" title="Retry" @click=${() => send(r.session, r.query)}>${icon("retry")}</button>`}</span>
  </div>`;
}

function speed(u) {
  const rate = (u.completion_tokens * 1000) / (u.ms || Infinity);
  return rate ? `, ${rate < 10 ? rate.toFixed(1) : Math.round(rate)}/s` : "";
}

// left says what left the machine for an answer, by the broker's results of its calls and the hosts of its models. What they do not
// say may have left. A call that failed without a result of the broker did not reach it.
function left(r) {
  const calls = [...r.tools.values()].filter((t) => t.egress !== "none" && !(t.error && !t.egress));
  const usage = r.response?.usage ?? {};
  const hosts = (usage.hosts ?? "").split(", ");
  const sent = new Set(calls.filter((t) => t.egress === "sent").map((t) => t.tool));
  for (const h of hosts) if (h && h !== "this machine") sent.add(`the prompt (to ${h})`);
  const unknown = new Set(calls.map((t) => t.tool).filter((t) => !sent.has(t)));
  if (usage.model_calls && !usage.hosts) unknown.add("the prompt");
  if (!sent.size && !unknown.size) return html`<span class="local" title="No call and no model used the network">${icon("lock")}nothing left this machine</span>`;
  const to = [...new Set(calls.flatMap((t) => t.destinations ?? []))];
  const parts = [sent.size ? `${[...sent].join(", ")} left` : "", unknown.size ? `${[...unknown].join(", ")} may have left` : ""].filter(Boolean);
  return html`<span class="sent" title=${to.length ? visible("To " + to.join(", ")) : "What was sent is in the run"}>${icon("globe")}${visible(parts.join("; "))} this machine</span>`;
}

// notes are those of an answer, without what the banner says of the model.
const notes = (r) => {
  const seen = new Set([store.state.health?.model?.notice]);
  const all = [...r.notes, ...(r.response?.notes ?? [])].filter((n) => n.text && !["demo_model", "graded"].includes(n.code) && !seen.has(n.text) && seen.add(n.text));
  return all.length ? html`<ul class="notes">${all.map((n) => html`<li>${visible(n.text)}</li>`)}</ul>` : nothing;
};

function badge(r) {
  if (!r.grade) return nothing;
  if (!r.grade.score) return html`<span title=${r.grade.ungraded ?? ""}>not graded</span>`;
  return html`<details class="critic"><summary>${gradeBadge(r.grade.score, "What the critic says", r.grade.self_graded)}</summary><div class="pop"><b>Critic: ${r.grade.score} of 5</b><p>${visible(r.grade.feedback ?? "")}</p><p class="quiet">rubric ${r.grade.rubric}${r.grade.model ? `, ${r.grade.model}` : ""}${r.stored[0] ? html`, <a href="/memory/${r.stored[0]}">in memory</a>` : nothing}</p></div></details>`;
}

const rating = (r) => {
  const thumb = r.rated ?? r.reward?.thumb ?? 0;
  const stars = r.stars ?? r.reward?.stars ?? 0;
  return html`<span class="rating" role="group" aria-label="Rate the answer">
    <button type="button" class="ghost" aria-label="Good answer" aria-pressed=${thumb === 1} @click=${() => rate(r, { thumb: 1 })}>${icon("up")}</button>
    <button type="button" class="ghost" aria-label="Bad answer" aria-pressed=${thumb === -1} @click=${() => rate(r, { thumb: -1 })}>${icon("down")}</button>
    <span class="stars">${[1, 2, 3, 4, 5].map((n) => html`<button type="button" class="ghost ${n <= stars ? "on" : ""}" aria-label=${count(n, "star")} aria-pressed=${n === stars} @click=${() => rate(r, { stars: n })}>${icon("star")}</button>`)}</span>
  </span>`;
};

const rate = (r, what) =>
  act(async () => {
    await api.post("/feedback", { query_id: r.id, ...what });
    if (what.thumb) r.rated = what.thumb;
    if (what.stars) r.stars = what.stars;
    store.notify("Thank you. Memory ranks what this answer used accordingly.");
  });

// Answers are rendered outside the template library: their nodes are kept between draws. renderers has one for each answer.
const renderers = new Map();
const markdown = (id, text) => html`<div class="markdown" data-answer=${id} .source=${text ?? ""}></div>`;

// drawn renders the Markdown of the answers that are on the page, and keeps the end of the log in view while the user is there.
export function drawn([session]) {
  const log = document.querySelector("#log");
  for (const e of document.querySelectorAll("[data-answer]")) {
    let r = renderers.get(e);
    if (!r) renderers.set(e, (r = { markdown: new Incremental(e), source: null }));
    if (r.source !== e.source) {
      r.source = e.source;
      r.markdown.update(e.source);
    }
  }
  for (const e of renderers.keys()) if (!e.isConnected) renderers.delete(e);
  if (log && anchor && !anchor.frames) holdAnchor(log);
  if (log && !log.querySelector(".welcome") && (following || pending === session || log.dataset.session !== session)) {
    log.scrollTop = log.scrollHeight;
    log.dataset.session = session ?? "";
    follow(true);
    pending = "";
  }
  showTarget();
  if (log && log.scrollTop < 400) autoEarlier(session); // also in a conversation that is shorter than the log
  const box = document.querySelector("#question");
  if (focusWanted && box && !document.querySelector("dialog[open]")) {
    focusWanted = false;
    box.focus();
  }
  announce(session);
  if (drawer.open) {
    if (!drawer.run) runs.select(turnsOf(session).findLast((t) => t.id)?.id);
    runs.drawn();
  }
  approvals.drawn([], true);
}

const spoken = { id: "", until: 0 };

// announce tells a screen reader the finished sentences of the running answer, not its tokens.
function announce(session) {
  const e = document.querySelector("#spoken");
  const r = turnsOf(session).at(-1)?.run;
  if (!e || !r || Date.now() - r.began > 600000) return;
  if (spoken.id !== r.id) Object.assign(spoken, { id: r.id, until: store.isRunning(r) ? 0 : r.text.length });
  const end = r.response ? r.text.length : Math.max(r.text.lastIndexOf(". "), r.text.lastIndexOf("\n")) + 1;
  if (end > spoken.until) {
    e.textContent = r.text.slice(spoken.until, end).replace(/[*`#|>]/g, "");
    spoken.until = end;
  }
}

function composer(session, running, turns) {
  if (clientOf(session)) return html`<div class="composer"><p class="column quiet">${clientLabel(session)} You cannot ask in this conversation: its questions are not your words. <a href="/chat">Begin a session of your own</a>, and paste what it is about.</p></div>`;
  const submit = (e) => {
    e.preventDefault();
    send(session, draft.text);
  };
  return html`<form class="composer ${draft.over ? "over" : ""}" @submit=${submit}
      @dragover=${(e) => (e.preventDefault(), !draft.over && ((draft.over = true), store.changed()))} @dragleave=${() => ((draft.over = false), store.changed())}
      @drop=${dropContent}>
    <div class="column">
      <div class="box">
        ${draft.files.length ? html`<ul class="files">${draft.files.map((f, i) => html`<li>${icon("attach")}${f.name} <span class="label" title="Instructions in it are not yours">untrusted</span>${f.paste ? html`<button type="button" class="link" title="Only if the words are your own: they may permit what the agent does" @click=${() => typePaste(f)}>These are my words</button>` : nothing}<button type="button" class="ghost" aria-label="Remove ${f.name}" @click=${() => (draft.files.splice(i, 1), store.changed())}>${icon("close")}</button></li>`)}</ul>` : nothing}
        <label class="sr" for="question">Your question</label>
        <textarea id="question" rows="1" placeholder=${running ? "Correct it, or write the next question" : draft.mode === "task" ? "Describe the task" : "Ask anything"} dir="auto"
          .value=${draft.text}
          @input=${(e) => write(e.target.value)}
          @paste=${(e) => onPaste(e, e.clipboardData)}
          @keydown=${(e) => onKey(e, e.ctrlKey || e.metaKey ? () => (running ? steer(session, turns) : submit(e)) : submit, turns)}></textarea>
        <div class="actions">
          <label class="button ghost" title="Attach files, or drop and paste them">${icon("attach")}<span class="sr">Attach files</span><input class="sr" type="file" multiple @change=${(e) => (addFiles(e.target.files), (e.target.value = ""))} /></label>
          <label class="sr" for="mode">Who answers</label>
          <select id="mode" title=${modes.find(([m]) => m === draft.mode)[2]} @change=${(e) => ((draft.mode = e.target.value), store.changed())}>${modes.map(([v, text]) => html`<option value=${v} ?selected=${draft.mode === v}>${text}</option>`)}</select>
          ${modelChoice()}
          <span class="grow"></span>
          ${session && store.state.views.has("context") ? html`<a class="ghost button context-link" href="/context/${session}" title="The exact messages that the model gets">Context</a>` : nothing}
          ${session ? html`<button type="button" class="ghost" aria-pressed=${drawer.open} aria-label="Show the run beside the chat" title="Run of the selected answer" @click=${() => setDrawer(!drawer.open, drawer.run)}>${icon("panel")}</button>` : nothing}
          ${running ? html`<button type="button" class="stop" @click=${() => cancel(running)}>${icon("stop")}Stop <kbd>Esc</kbd></button>` : nothing}
          ${running && draft.text.trim() ? html`<button type="button" class="steer" title="Stops the answer, keeps its text so far, and asks this at once (Ctrl Enter)" ?disabled=${draft.sending} @click=${() => steer(session, turns)}>Stop and send now</button>` : nothing}
          ${!running || draft.text.trim() ? html`<button class="primary send" ?disabled=${draft.sending || !draft.text.trim()} aria-label=${running ? "Queue the question" : "Send"}>${running ? "Queue" : icon("send")}</button>` : nothing}
        </div>
      </div>
    </div>
  </form>`;
}

function onKey(e, submit, turns) {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e);
  else if (e.key === "ArrowUp" && !draft.text) {
    const t = turns.at(-1);
    write(t?.run?.query ?? t?.turn?.query ?? "");
  }
}
