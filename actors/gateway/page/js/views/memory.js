// Memory: what is stored, with source, trust and grades; search with the reasons for each rank; edit, pin, forget.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { age, grade, visible } from "../format.js";

const shown = { text: "", entries: [], hits: null, next: "", entry: null, loading: false, error: "" };

export async function load([id]) {
  shown.error = "";
  shown.loading = true;
  store.changed();
  try {
    if (id) shown.entry = await api.get("/memory/" + encodeURIComponent(id));
    else {
      shown.entry = null;
      await list();
    }
  } catch (e) {
    shown.error = e.message;
  }
  shown.loading = false;
  store.changed();
}

async function list(after = "") {
  if (shown.text.trim() && !after) {
    shown.hits = (await api.get("/memory/search?" + new URLSearchParams({ query: shown.text }))).hits ?? [];
    return;
  }
  shown.hits = null;
  const p = new URLSearchParams({ limit: "50" });
  if (after) p.set("after", after);
  const page = await api.get("/memory?" + p);
  shown.entries = after ? [...shown.entries, ...page.entries] : page.entries;
  shown.next = page.next;
}

async function act(what) {
  try {
    await what();
  } catch (e) {
    store.notify(e.message, "error");
  }
}

const trustLabel = (e) => (e.provenance?.trust === "untrusted" ? html`<span class="label">untrusted</span>` : nothing);

const score = (e) => {
  const s = e.grades?.critic_score;
  if (!s) return nothing;
  const g = grade(s);
  return html`<span class="grade ${g.tone}">${g.letter} ${s}</span>`;
};

const row = (e, hit) => html`<tr class=${e.provenance?.trust === "untrusted" ? "untrusted" : ""}>
  <td><a href="/memory/${e.id}">${visible(e.name || e.description || e.id)}</a> ${trustLabel(e)}${hit?.segment ? html`<p class="quiet">${visible(hit.segment).slice(0, 240)}</p>` : nothing}</td>
  <td>${e.kind}</td><td>${age(e.happened ?? e.created)}</td><td>${e.respondent_id ?? ""}</td><td>${score(e)}</td><td>${e.sentiment ?? ""}</td>
  <td>${hit ? hit.similarity.toFixed(2) : e.pinned ? "pinned" : ""}</td>
</tr>`;

export function view([id]) {
  if (shown.error) return html`<div class="page"><h1>Memory</h1><p class="failed">${shown.error}</p></div>`;
  if (id) return shown.entry?.entry ? one(shown.entry) : html`<div class="page"><h1>Memory</h1><p class="quiet">Loading.</p></div>`;
  const rows = shown.hits ? shown.hits.map((h) => row(h.entry, h)) : shown.entries.map((e) => row(e));
  return html`<div class="page"><h1>Memory</h1>
    <form class="search" @submit=${(e) => (e.preventDefault(), act(list).then(store.changed))}>
      <label class="sr" for="memory-text">Search memory</label>
      <input id="memory-text" type="search" placeholder="What do you want to recall?" .value=${shown.text} @input=${(e) => (shown.text = e.target.value)} />
      <button class="primary">Search</button>
    </form>
    ${rows.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Entries"><table class="wide"><thead><tr><th scope="col">Entry</th><th scope="col">Kind</th><th scope="col">Age</th><th scope="col">Respondent</th><th scope="col">Grade</th><th scope="col">Sentiment</th><th scope="col">${shown.hits ? "Similarity" : "Mark"}</th></tr></thead><tbody>${rows}</tbody></table></div>`
      : shown.loading
        ? html`<p class="quiet">Loading.</p>`
        : html`<p>${shown.hits ? "Nothing was found." : html`Nothing is stored yet. Say "Remember that my favourite city is Lisbon." in the <a href="/chat">chat</a>.`}</p>`}
    ${!shown.hits && shown.next ? html`<button type="button" @click=${() => act(() => list(shown.next)).then(store.changed)}>More</button>` : nothing}
  </div>`;
}

function one({ entry: e, correlated }) {
  const p = e.provenance ?? {};
  return html`<div class="page">
    <h1>${visible(e.name || "Entry")} ${trustLabel(e)}</h1>
    <div class=${p.trust === "untrusted" ? "untrusted" : ""}><p class="corpus" dir="auto">${visible(e.corpus)}</p></div>
    <dl class="pairs">
      <dt>Source</dt><dd>${p.source}${p.from ? `: ${visible(p.from)}` : ""}</dd>
      <dt>Stored</dt><dd>${new Date(e.created).toLocaleString()}</dd>
      <dt>State</dt><dd>${e.state}${e.pinned ? ", pinned" : ""}</dd>
      ${e.grades?.critic_score ? html`<dt>Grade</dt><dd>${score(e)} ${e.grades.feedback ?? ""}</dd>` : nothing}
      ${e.tags?.length ? html`<dt>Tags</dt><dd>${e.tags.join(", ")}</dd>` : nothing}
      ${p.query_id ? html`<dt>From the run</dt><dd><a href="/runs/${p.query_id}">${p.query_id}</a></dd>` : nothing}
    </dl>
    <p class="actions">
      <button type="button" @click=${() => act(async () => { await (e.pinned ? api.del : api.post)(`/memory/${e.id}/pin`); load([e.id]); })}>${e.pinned ? "Unpin" : "Pin"}</button>
      <button type="button" class="danger" @click=${() => confirm("Forget this entry? It cannot be restored.") && act(async () => { await api.del("/memory/" + e.id); dispatchEvent(new CustomEvent("conclave:go", { detail: "/memory" })); })}>Forget</button>
    </p>
    ${correlated?.length ? html`<h2>Related</h2><ul>${correlated.map((c) => html`<li><a href="/memory/${c.id}">${visible(c.name || c.id)}</a></li>`)}</ul>` : nothing}
  </div>`;
}
