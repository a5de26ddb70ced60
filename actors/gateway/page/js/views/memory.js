// Memory: what is stored, with source, trust and grades; search with the reasons for each rank; add, import, edit, pin, forget; the graph.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, download, empty, go, gradeBadge, trustLabel } from "../parts.js";
import { age, count, isLongPaste, visible } from "../format.js";
import { graphView, loadGraph } from "./graph.js";

const shown = { text: "", kind: "", state: "active", trust: "", entries: [], hits: null, next: "", entry: null, expanded: "", editing: null, adding: null, loading: false, error: "", status: null, read: 0 };

const pageSize = 50;

const newestChange = () => store.newest("memory.stored", "memory.annotated");

export async function load([id]) {
  Object.assign(shown, { error: "", loading: true, editing: null, adding: null, read: newestChange() });
  store.changed();
  try {
    if (id === "graph") await loadGraph();
    else if (id) shown.entry = await api.get("/memory/" + encodeURIComponent(id));
    else {
      shown.entry = null;
      await list();
      shown.status = await api.get("/memory/status");
    }
  } catch (e) {
    shown.error = e.message;
  }
  shown.loading = false;
  store.changed();
}

let begun = 0; // lists that were begun: the last one holds
let reading = 0; // lists that are read now

// list reads a search, or a page of entries after one, and further ones until there are as many as wanted. It reports false, and
// changes nothing, when another list was begun meanwhile.
async function list(after = "", wanted = 0) {
  const own = ++begun;
  reading++;
  try {
    const found = await readList(after, wanted);
    if (own === begun) Object.assign(shown, found);
  } finally {
    reading--;
  }
  return own === begun;
}

async function readList(after, wanted) {
  if (shown.text.trim() && !after) {
    const p = new URLSearchParams({ q: shown.text, max: 20, all: shown.state === "active" ? 0 : 1 });
    if (shown.kind) p.set("kind", shown.kind);
    return { hits: (await api.get("/memory/search?" + p)).hits ?? [] };
  }
  const p = new URLSearchParams({ limit: pageSize });
  for (const [k, v] of [["kind", shown.kind], ["state", shown.state], ["trust", shown.trust]]) if (v) p.set(k, v);
  let entries = after ? shown.entries : [];
  let next = after;
  do {
    if (next) p.set("after", next);
    const page = await api.get("/memory?" + p);
    entries = [...entries, ...page.entries];
    next = page.next;
  } while (next && entries.length < wanted);
  return { entries, next, hits: null };
}

// refresh reads the list, as many pages as are shown, or the entry again when memory has changed since it was read, and nothing else is
// being read. A search and an entry that is being edited stay as they are.
function refresh(id) {
  const now = newestChange();
  if (now <= shown.read || shown.loading || reading || shown.editing || shown.error || (!id && shown.hits)) return;
  reading++;
  queueMicrotask(async () => {
    let done = true;
    try {
      if (id) shown.entry = await api.get("/memory/" + encodeURIComponent(id));
      else done = await list("", shown.entries.length);
    } catch {
      // what is shown stays
    }
    if (done) shown.read = now;
    reading--;
    store.changed();
  });
}

const reload = () => act(() => list()).then(store.changed);

const score = (e) => (e.grades?.critic_score ? gradeBadge(e.grades.critic_score, e.grades.feedback) : nothing);

const kindWords = { engram: "answer", fact: "fact", document: "document" };

function row(e, hit) {
  const isOpen = shown.expanded === e.id;
  return html`<tr class=${e.provenance?.trust === "untrusted" ? "untrusted" : ""}>
      <td><button type="button" class="ghost fold" aria-expanded=${isOpen} aria-label="Expand ${e.name}" @click=${() => ((shown.expanded = isOpen ? "" : e.id), store.changed())}>${isOpen ? "▾" : "▸"}</button><a href="/memory/${e.id}">${visible(e.name || e.description || e.id)}</a> ${trustLabel(e.provenance)} ${e.pinned ? html`<span class="chip">${icon("pin")}pinned</span>` : nothing}${e.state !== "active" ? html`<span class="chip">${e.state}</span>` : nothing}</td>
      <td>${kindWords[e.kind] ?? e.kind}</td><td class="nowrap">${age(e.happened ?? e.created)}</td><td>${e.respondent_id ?? e.speaker ?? ""}</td><td>${score(e)}</td><td>${e.sentiment ?? ""}</td><td>${e.grades?.pairwise_winner ?? ""}</td>${hit ? html`<td class="num" data-label="similarity">${hit.similarity.toFixed(2)}</td><td class="num" data-label="rank">${hit.score.toFixed(2)}</td>` : nothing}
    </tr>
    ${isOpen ? html`<tr class="expanded"><td colspan=${hit ? 9 : 7}><p class="prose" dir="auto">${visible(hit?.segment || e.corpus || e.description)}</p>${hit ? reasons(hit) : nothing}${actions(e)}</td></tr>` : nothing}`;
}

// reasons shows why an entry was recalled: parts that add up to its rank.
const reasons = (hit) => html`<div class="reasons" role="img" aria-label="Why recalled: ${hit.reasons.map((r) => `${r.what} ${r.value.toFixed(2)}`).join(", ")}">${hit.reasons.filter((r) => Math.abs(r.value) >= 0.005).map((r) => html`<span class=${r.value < 0 ? "minus" : "plus"} title=${r.text ?? ""}><b>${r.what}</b> ${r.value > 0 ? "+" : ""}${r.value.toFixed(2)}</span>`)}</div>`;

const sentence = (label, value, options, set) => html`<label>${label} <select aria-label=${label} @change=${(e) => (set(e.target.value), reload())}>${options.map(([v, text]) => html`<option value=${v} ?selected=${v === value}>${text}</option>`)}</select></label>`;

export function view([id]) {
  if (id === "graph") return html`<div class="page wide-page">${head("graph")}${shown.error ? html`<p class="failed">${shown.error}</p>` : graphView()}</div>`;
  if (shown.error) return html`<div class="page"><h1>Memory</h1><p class="failed">${shown.error}</p></div>`;
  refresh(id);
  if (id) return shown.entry?.entry && !shown.loading ? one(shown.entry) : html`<div class="page"><h1>Memory</h1><p class="quiet">Loading.</p></div>`;
  const rows = shown.hits ? shown.hits.map((h) => row(h.entry, h)) : shown.entries.map((e) => row(e));
  const s = shown.status;
  return html`<div class="page wide-page">${head("")}
    ${shown.adding ? addForm() : addBar()}
    <form class="search" @submit=${(e) => (e.preventDefault(), reload())}>
      <label class="sr" for="memory-text">Search memory</label>
      <input id="memory-text" type="search" placeholder="Recall as the assistant does, with the reasons" .value=${shown.text} @input=${(e) => ((shown.text = e.target.value), shown.text || reload())} />
      <button class="primary">Recall</button>
    </form>
    <p class="sentence">Show
      ${sentence("kind", shown.kind, [["", "everything"], ["engram", "answers"], ["fact", "facts"], ["document", "documents"]], (v) => (shown.kind = v))}
      ${sentence("that is", shown.state, [["active", "active"], ["candidate", "a candidate"], ["superseded", "superseded"], ["", "in any state"]], (v) => (shown.state = v))}
      ${sentence("and", shown.trust, [["", "trusted or not"], ["trusted", "trusted"], ["untrusted", "untrusted"]], (v) => (shown.trust = v))}
      ${s ? html`<span class="quiet" title="Search: ${s.search}">${Object.entries(s.entries).map(([k, n]) => count(n, kindWords[k] ?? k)).join(", ")}, ${count(s.relations, "relation")}</span>` : nothing}</p>
    ${rows.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Entries"><table class="wide entries"><thead><tr><th scope="col">Entry</th><th scope="col">Kind</th><th scope="col">Age</th><th scope="col">Respondent</th><th scope="col">Grade</th><th scope="col">Sentiment</th><th scope="col">Winner</th>${shown.hits ? html`<th scope="col" class="num">Similarity</th><th scope="col" class="num">Rank</th>` : nothing}</tr></thead><tbody>${rows}</tbody></table></div>`
      : shown.loading
        ? html`<p class="quiet">Loading.</p>`
        : shown.hits || shown.kind || shown.trust || shown.state !== "active"
          ? html`<p>No entry is like that.</p>`
          : empty("memory", "Nothing is stored yet", "Answers become memories, and so does a fact that you ask it to remember. Memory stays on this machine.", html`<a class="button primary" href="/chat">Say: Remember that my favourite city is Lisbon.</a>`)}
    ${!shown.hits && shown.next ? html`<button type="button" @click=${() => act(() => list(shown.next)).then(store.changed)}>More</button>` : nothing}
  </div>`;
}

// addForm stores a text of the user, or one of somebody else, which stays untrusted: it permits nothing.
function addForm() {
  const a = shown.adding;
  const submit = (e) => {
    e.preventDefault();
    act(async () => {
      const done = await api.post("/memory", { text: a.text, external: a.external });
      shown.adding = null;
      store.notify(done.action === "stored" ? "It is in memory." : `Memory: ${done.action}. ${done.why ?? ""}`);
      await reload();
    });
  };
  return html`<form class="editor panel" @submit=${submit}>
    <label>What to remember<textarea id="memory-add" rows="3" .value=${a.text} @input=${(e) => ((a.text = e.target.value), store.changed())} @paste=${(e) => isLongPaste(e.clipboardData.getData("text/plain")) && ((a.external = true), store.changed())}></textarea></label>
    <p><label class="check"><input type="checkbox" .checked=${a.external} @change=${(e) => ((a.external = e.target.checked), store.changed())} /> Somebody else wrote it: it stays untrusted</label></p>
    <p class="actions"><button type="button" @click=${() => ((shown.adding = null), store.changed())}>Cancel</button><button class="primary" ?disabled=${!a.text.trim()}>Remember</button></p>
  </form>`;
}

// importFile restores an export. Its entries become untrusted: the page cannot know whose words they are.
function importFile(file) {
  if (!file) return;
  act(async () => {
    const done = await api.upload("/memory/import", file, "application/x-ndjson");
    store.notify(`${count(done.entries, "entry", "entries")} read: ${Object.entries(done.actions).map(([what, n]) => `${n} ${what}`).join(", ")}. They are untrusted; conclave memory import --trusted keeps the marks of your own export.`);
    await reload();
  });
}

const addBar = () => html`<p class="actions">
  <button type="button" @click=${() => ((shown.adding = { text: "", external: false }), store.changed(), requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("#memory-add")?.focus())))}>${icon("plus")}Add</button>
  <label class="button">Import<input class="sr" type="file" accept=".jsonl,.ndjson" @change=${(e) => (importFile(e.target.files[0]), (e.target.value = ""))} /></label>
  <button type="button" @click=${() => act(async () => download("memory.jsonl", await api.get("/memory/export"), "application/x-ndjson"))}>Export</button></p>`;

const head = (face) => html`<h1>Memory</h1><div class="tabs" role="navigation" aria-label="Faces of memory"><a href="/memory" aria-current=${face ? nothing : "page"}>Entries</a><a href="/memory/graph" aria-current=${face ? "page" : nothing}>Knowledge graph</a></div>`;

const actions = (e) => html`<p class="actions">
  <button type="button" @click=${() => ((shown.editing = { id: e.id, name: e.name, corpus: e.corpus, tags: (e.tags ?? []).join(", ") }), go("/memory/" + e.id), setTimeout(() => ((shown.editing = { id: e.id, name: e.name, corpus: shown.entry?.entry?.corpus ?? e.corpus, tags: (e.tags ?? []).join(", ") }), store.changed()), 400))}>${icon("edit")}Edit</button>
  <button type="button" @click=${() => act(async () => (await (e.pinned ? api.del(`/memory/${e.id}/pin`) : api.post(`/memory/${e.id}/pin`, {})), shown.entry ? load([e.id]) : reload()))}>${icon("pin")}${e.pinned ? "Unpin" : "Pin"}</button>
  ${e.state === "candidate" ? html`<button type="button" @click=${() => act(async () => (await api.post(`/memory/${e.id}/accept`, {}), reload()))}>Accept</button><button type="button" @click=${() => act(async () => (await api.post(`/memory/${e.id}/reject`, {}), reload()))}>Reject</button>` : nothing}
  <button type="button" class="danger" @click=${() => forget(e)}>${icon("trash")}Forget</button></p>`;

async function forget(e) {
  if (!(await store.confirm({ title: "Forget this entry?", text: `"${e.name}" is deleted from memory and cannot be restored. Conversations and the event log keep the text until they expire.`, action: "Forget", danger: true }))) return;
  await act(async () => {
    await api.del("/memory/" + e.id);
    store.notify("The entry is forgotten.");
    if (shown.entry) go("/memory");
    else await reload();
  });
}

const save = (e) => (ev) => {
  ev.preventDefault();
  act(async () => {
    const f = shown.editing;
    await api.patch("/memory/" + e.id, { name: f.name, corpus: f.corpus, tags: f.tags.split(",").map((t) => t.trim()).filter(Boolean) });
    store.notify("The entry was changed. Its provenance stays.");
    load([e.id]);
  });
};

const editor = (e) => html`<form class="editor" @submit=${save(e)}>
  <label>Name<input .value=${shown.editing.name} @input=${(ev) => (shown.editing.name = ev.target.value)} /></label>
  <label>Text<textarea rows="6" .value=${shown.editing.corpus} @input=${(ev) => (shown.editing.corpus = ev.target.value)}></textarea></label>
  <label>Tags<input .value=${shown.editing.tags} @input=${(ev) => (shown.editing.tags = ev.target.value)} /></label>
  <p class="actions"><button type="button" @click=${() => ((shown.editing = null), store.changed())}>Cancel</button><button class="primary">Save</button></p></form>`;

// recallsOf returns the recalls of an entry that the page has seen: {run, hit}.
const recallsOf = (id) => [...store.state.runs.values()].flatMap((r) => r.recalled.filter((h) => h.id === id).map((hit) => ({ run: r, hit }))).sort((a, b) => b.run.began - a.run.began);

function one({ entry: e, correlated }) {
  const p = e.provenance ?? {};
  const recalls = recallsOf(e.id);
  return html`<div class="page">
    <p class="quiet"><a href="/memory">Memory</a></p>
    <h1>${visible(e.name || "Entry")} ${trustLabel(p)}</h1>
    ${shown.editing?.id === e.id ? editor(e) : html`<div class=${p.trust === "untrusted" ? "untrusted" : ""}><p class="prose" dir="auto">${visible(e.corpus)}</p></div>${actions(e)}`}
    <dl class="pairs">
      <dt>Kind</dt><dd>${kindWords[e.kind] ?? e.kind}</dd>
      <dt>Source</dt><dd>${p.source}${p.from ? html`: <code>${visible(p.from)}</code>` : nothing}${p.agent ? `, by ${p.agent}` : ""}</dd>
      <dt>Trust</dt><dd>${p.trust}${p.flags?.length ? `, signs of injection: ${p.flags.join(", ")}` : ""}</dd>
      <dt>Stored</dt><dd>${new Date(e.created).toLocaleString()}</dd>
      <dt>State</dt><dd>${e.state}${e.pinned ? ", pinned" : ""}${e.superseded_by ? html`, by <a href="/memory/${e.superseded_by}">${e.superseded_by}</a>` : nothing}</dd>
      ${e.grades?.critic_score ? html`<dt>Grade</dt><dd>${score(e)} ${visible(e.grades.feedback ?? "")}</dd>` : nothing}
      ${e.grades?.pairwise_winner ? html`<dt>Better answer</dt><dd>${e.grades.pairwise_winner}</dd>` : nothing}
      ${e.grades?.rewards ? html`<dt>Your rating</dt><dd>${e.grades.reward}, ${count(e.grades.rewards, "rating")}</dd>` : nothing}
      ${e.sentiment ? html`<dt>Sentiment</dt><dd>${e.sentiment}</dd>` : nothing}
      ${e.entities?.length ? html`<dt>Names</dt><dd>${e.entities.join(", ")}</dd>` : nothing}
      ${e.tags?.length ? html`<dt>Tags</dt><dd>${e.tags.join(", ")}</dd>` : nothing}
      ${p.query_id ? html`<dt>From the run</dt><dd><a href="/runs/${p.query_id}">${p.query_id}</a></dd>` : nothing}
      <dt>Recalled</dt><dd>${count(e.access_count ?? 0, "time")}${e.last_accessed ? `, last ${age(e.last_accessed)}` : ""}</dd>
    </dl>
    ${recalls.length ? html`<h2>Who recalled it, and why</h2><ul class="plain">${recalls.map(({ run, hit }) => html`<li><a href="/runs/${run.id}">${visible(run.query)}</a> <span class="quiet">similarity ${hit.similarity.toFixed(2)}, rank ${hit.score.toFixed(2)}, ${age(run.began)}</span></li>`)}</ul>` : nothing}
    ${correlated?.length ? html`<h2>Related</h2><ul class="plain">${correlated.map((c) => html`<li><a href="/memory/${c.id}">${visible(c.name || c.id)}</a></li>`)}</ul>` : nothing}
  </div>`;
}
