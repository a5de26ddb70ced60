// The list of sessions: search, pin, rename, delete.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, clientLabel, go } from "../parts.js";
import { age, visible } from "../format.js";

const shown = { search: "" };

export function sessionList([open], active) {
  const words = shown.search.toLowerCase();
  const seen = new Set([...store.state.runs.values()].map((r) => r.session)); // the events of a session tell more than the list
  const running = new Set([...[...store.state.runs.values()].filter(store.isRunning).map((r) => r.session), ...store.state.sessions.filter((s) => s.running && !seen.has(s.session_id)).map((s) => s.session_id)]);
  const known = new Set(store.state.sessions.map((s) => s.session_id));
  const first = new Map(); // sessions whose first question runs: they are stored with its answer
  for (const r of store.state.runs.values()) if (r.session && !known.has(r.session) && store.isRunning(r) && Date.now() - r.began < 3600000) first.set(r.session, { session_id: r.session, title: r.query, updated: r.began, fresh: true });
  const list = [...first.values(), ...store.state.sessions.toSorted((a, b) => Boolean(b.pinned) - Boolean(a.pinned))].filter((s) => (s.title ?? "").toLowerCase().includes(words));
  return html`<section class="sessions" aria-label="Sessions">
    <div class="sessions-head">
      <label class="find">${icon("search")}<input type="search" aria-label="Search the sessions" placeholder="Search sessions" .value=${shown.search} @input=${(e) => ((shown.search = e.target.value), store.changed())} /></label>
      <a class="button ghost" href="/chat" title="New session (n)" aria-label="New session">${icon("plus")}</a>
    </div>
    <ul>
      ${list.map(
        (s) => html`<li class=${active && s.session_id === open ? "open" : ""}>
          <a href="/chat/${s.session_id}" aria-current=${active && s.session_id === open ? "page" : nothing}><span class="title">${running.has(s.session_id) ? html`<span class="spinner" role="img" aria-label="running"></span>` : nothing}${s.pinned ? html`<span class="pinned" title="Pinned">${icon("pin")}<span class="sr">pinned: </span></span>` : nothing}${s.session_id.startsWith("schedule_") ? html`<span role="img" title="scheduled" aria-label="scheduled">${icon("clock")}</span> ` : nothing}${visible(s.title || "Untitled")}</span>${clientLabel(s.session_id)}<span class="quiet">${age(s.updated)}</span></a>
          ${s.fresh || (s.running && !s.turns) ? nothing : html`<span class="reveal">
            <button type="button" class="ghost" aria-label="${s.pinned ? "Unpin" : "Pin"} the session ${s.title}" @click=${() => pin(s)}>${icon("pin")}</button>
            <button type="button" class="ghost" aria-label="Rename the session ${s.title}" @click=${() => rename(s)}>${icon("edit")}</button>
            <button type="button" class="ghost" aria-label="Delete the session ${s.title}" @click=${() => remove(s, active ? open : "")}>${icon("trash")}</button>
          </span>`}
        </li>`,
      )}
      ${list.length ? nothing : html`<li class="quiet empty">${words ? "No session has these words." : "Your sessions appear here."}</li>`}
    </ul>
  </section>`;
}

async function pin(s) {
  await act(() => api.patch("/sessions/" + s.session_id, { pinned: !s.pinned }));
  store.loadSessions();
}

async function rename(s) {
  const title = await store.confirm({ title: "Rename the session", value: s.title, action: "Rename" });
  if (!title) return;
  await act(() => api.patch("/sessions/" + s.session_id, { title }));
  store.loadSessions();
}

async function remove(s, open) {
  if (!(await store.confirm({ title: "Delete the session?", text: `The messages of "${s.title}" are deleted. Memory, the event log and the audit log keep what they have of it.`, action: "Delete", danger: true }))) return;
  await act(async () => {
    await api.del("/sessions/" + s.session_id);
    store.forgetSession(s.session_id);
    if (s.session_id === open) go("/chat");
  });
}
