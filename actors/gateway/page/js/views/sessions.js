// The list of sessions: search in titles and in all that was said, pin, rename, archive, export, delete.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, clientLabel, go } from "../parts.js";
import { age, count, visible } from "../format.js";

const shown = { search: "", found: null, error: "", menu: null }; // menu: the session whose menu is open; found: sessions of the words as said, {sessions, left}; null = not read yet
const searchMs = 250; // of silence, after which the conversations are searched
let timer = 0;

// search looks for words in the titles at once, and in the conversations when the user stops to type.
function search(words) {
  Object.assign(shown, { search: words, found: null, error: "" });
  clearTimeout(timer);
  if (words.trim().length > 1) timer = setTimeout(() => find(words), searchMs);
  store.changed();
}

async function find(words) {
  let got = null;
  let error = "";
  try {
    got = await api.get("/search?" + new URLSearchParams({ q: words.trim() }));
  } catch (e) {
    error = e.message;
  }
  if (words !== shown.search) return; // the answer to earlier words
  Object.assign(shown, { found: got, error });
  store.changed();
}

// foundList shows where the words were said, each with a link to that turn.
const foundList = () => html`<li class="quiet found-head">${shown.error || (!shown.found ? "Searching the conversations" : shown.found.sessions.length ? "Said in" : "Nobody said these words.")}${shown.found?.left ? html` (${count(shown.found.left, "session")} not searched: use more words)` : nothing}</li>
  ${(shown.found?.sessions ?? []).map((s) => html`<li class="found"><a href="/chat/${s.session_id}/${s.query_id}"><span class="title">${visible(s.title || "Untitled")}</span><span class="excerpt quiet ${s.trust === "untrusted" ? "untrusted" : ""}">${visible(s.excerpt)}</span><span class="quiet">${age(s.updated)}${s.found > 1 ? `, ${count(s.found, "turn")}` : ""}</span></a></li>`)}`;

const isFresh = (r) => (store.isRunning(r) ? Date.now() - r.began < 3600000 : Date.now() - r.ended < 5000);

export function sessionList([open], active) {
  const words = shown.search.toLowerCase();
  const seen = new Set([...store.state.runs.values()].map((r) => r.session)); // the events of a session tell more than the list
  const running = new Set([...[...store.state.runs.values()].filter(store.isRunning).map((r) => r.session), ...store.state.sessions.filter((s) => s.running && !seen.has(s.session_id)).map((s) => s.session_id)]);
  const known = new Set(store.state.sessions.map((s) => s.session_id));
  const first = new Map(); // sessions whose first question runs: they are stored with its answer, and listed a moment later
  for (const r of store.state.runs.values()) if (r.session && !known.has(r.session) && isFresh(r)) first.set(r.session, { session_id: r.session, title: r.query, updated: r.began, fresh: true });
  const list = [...first.values(), ...store.state.sessions.toSorted((a, b) => Boolean(b.pinned) - Boolean(a.pinned))].filter((s) => (s.title ?? "").toLowerCase().includes(words));
  const [away, here] = [list.filter((s) => s.archived), list.filter((s) => !s.archived)];
  const waiting = new Set([...store.state.approvals.values()].map((a) => a.session_id));
  const row = (s) => sessionRow(s, active && s.session_id === open, waiting.has(s.session_id) ? "waiting for you" : running.has(s.session_id) ? "running" : "");
  return html`<section class="sessions" aria-label="Sessions">
    <div class="sessions-head">
      <label class="find">${icon("search")}<input type="search" aria-label="Search the sessions" placeholder="Search sessions" .value=${shown.search} @input=${(e) => search(e.target.value)} /></label>
      <a class="button ghost" href="/chat" title="New session (n)" aria-label="New session">${icon("plus")}</a>
    </div>
    <ul>
      ${here.map(row)}
      ${list.length || words || store.state.loading.has("sessions") ? nothing : html`<li class="quiet empty">Your sessions appear here.</li>`}
      ${words.trim().length > 1 ? foundList() : nothing}
      ${away.length ? html`<li class="away"><details ?open=${Boolean(words) || (active && away.some((s) => s.session_id === open))}><summary>${count(away.length, "archived session")}</summary><ul>${away.map(row)}</ul></details></li>` : nothing}
    </ul>
    ${menu(open, active)}
  </section>`;
}

const sessionRow = (s, isOpen, state) => html`<li class=${isOpen ? "open" : ""}>
  <a href="/chat/${s.session_id}" aria-current=${isOpen ? "page" : nothing}><span class="title">${state ? html`<span class=${state === "running" ? "spinner" : "waits"} role="img" aria-label=${state} title=${state}></span>` : nothing}${s.pinned ? html`<span class="pinned" title="Pinned">${icon("pin")}<span class="sr">pinned: </span></span>` : nothing}${s.session_id.startsWith("schedule_") ? html`<span role="img" title="scheduled" aria-label="scheduled">${icon("clock")}</span> ` : nothing}${visible(s.title || "Untitled")}</span>${clientLabel(s.session_id)}<span class="quiet">${age(s.updated)}</span></a>
  ${s.fresh || (s.running && !s.turns) ? nothing : html`<span class="reveal">
    <button type="button" class="ghost" aria-label="${s.pinned ? "Unpin" : "Pin"} the session ${s.title}" @click=${() => change(s, { pinned: !s.pinned })}>${icon("pin")}</button>
    <button type="button" class="ghost" aria-haspopup="true" aria-label="More about the session ${s.title}" @click=${(e) => openMenu(s, e.currentTarget)}>${icon("more")}</button>
  </span>`}
</li>`;

// openMenu shows the menu of a session below its button, or above it where there is no room.
function openMenu(s, button) {
  shown.menu = s;
  store.changed();
  requestAnimationFrame(() => {
    const m = document.querySelector("#session-menu");
    m.showPopover();
    const at = button.getBoundingClientRect();
    m.style.left = `${Math.max(4, Math.min(at.left, innerWidth - m.offsetWidth - 4))}px`;
    m.style.top = `${at.bottom + m.offsetHeight > innerHeight ? Math.max(4, at.top - m.offsetHeight) : at.bottom}px`;
    m.querySelector("button, a").focus();
  });
}

const closeMenu = () => document.querySelector("#session-menu")?.hidePopover();

const menu = (open, active) => {
  const s = shown.menu;
  const item = (label, run) => html`<button type="button" @click=${() => (closeMenu(), run())}>${label}</button>`;
  const file = (format, label) => html`<a class="button" href="/sessions/${s.session_id}/export?format=${format}" download @click=${closeMenu}>${label}</a>`;
  return html`<div id="session-menu" popover role="group" aria-label=${s ? `Session ${s.title}` : "Session"}>${s
    ? html`${item("Rename", () => rename(s))}${item(s.archived ? "Back to the list" : "Archive", () => change(s, { archived: !s.archived }))}${file("md", "Save as Markdown")}${file("json", "Save as JSON")}${item("Delete", () => remove(s, active ? open : ""))}`
    : nothing}</div>`;
};

async function change(s, to) {
  await act(() => api.patch("/sessions/" + s.session_id, to));
  store.loadSessions();
}

async function rename(s) {
  const title = await store.confirm({ title: "Rename the session", value: s.title, action: "Rename" });
  if (title) await change(s, { title });
}

async function remove(s, open) {
  if (!(await store.confirm({ title: "Delete the session?", text: `The messages of "${s.title}" are deleted. Memory, the event log and the audit log keep what they have of it.`, action: "Delete", danger: true }))) return;
  await act(async () => {
    await api.del("/sessions/" + s.session_id);
    store.forgetSession(s.session_id);
    if (s.session_id === open) go("/chat");
  });
}
