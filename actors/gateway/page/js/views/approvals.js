// Approvals: calls that wait for the user, with the exact arguments, and why each asks.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { codeBlock } from "../markdown.js";
import { json, seconds, visible } from "../format.js";

export const load = () => store.loadApprovals();

async function decide(a, approve, remember = "") {
  try {
    await api.post("/approvals/" + a.id, { approve, remember });
    store.notify(approve ? `${a.tool} was approved.` : `${a.tool} was denied; nothing was run.`);
  } catch (e) {
    store.notify(e.message, "error");
  }
  store.loadApprovals();
}

export function view() {
  const all = [...store.state.approvals.values()];
  return html`<div class="page"><h1>Approvals</h1>
    ${all.length ? all.map(card) : html`<p>No call waits for you. When a call could send or change something that your question does not cover, it appears here, and in the chat.</p>`}
  </div>`;
}

function card(a) {
  const leftMs = Date.parse(a.expires) - Date.now();
  return html`<article class="approval" aria-label="Approval of ${a.tool}">
    <h2>${a.caller} wants to call ${a.tool}${a.sinks?.length ? html`, which sends to <b class="sink">${a.sinks.map(visible).join(", ")}</b>` : nothing}</h2>
    <p><b>Why it asks:</b> ${a.reason} <span class="quiet">(layer ${a.layer}, rule ${a.rule})</span></p>
    ${a.hosts?.length ? html`<p class="failed">Host names that are not ASCII: ${a.hosts.map((h) => html`<code>${visible(h.host ?? h.name ?? "")}</code> is <code>${h.ascii ?? ""}</code> `)}</p>` : nothing}
    ${codeBlock(json(a.args), "arguments, complete")}
    ${a.preview ? html`<h3>What it would do</h3>${codeBlock(visible(a.preview), "preview")}` : nothing}
    ${a.taint?.length ? html`<h3>Untrusted content in this session</h3><ul>${a.taint.map((t) => html`<li class="untrusted">${visible(t.source ?? t.tool ?? JSON.stringify(t))}</li>`)}</ul>` : nothing}
    ${a.grants?.length ? html`<h3>What your question permits</h3><ul>${a.grants.map((g) => html`<li>${g.clause}</li>`)}</ul>` : nothing}
    <p class="actions">
      <button type="button" class="primary" autofocus @click=${() => decide(a, false)}>Deny</button>
      <button type="button" @click=${() => decide(a, true)}>Approve once</button>
      <button type="button" @click=${() => decide(a, true, "session")}>For this session</button>
      <button type="button" @click=${() => decide(a, true, "always")}>Always for this destination</button>
      <span class="quiet">${leftMs > 0 ? `expires in ${seconds(leftMs)}` : "expired"}</span>
      ${a.query_id ? html`<a href="/runs/${a.query_id}">run</a>` : nothing}
    </p>
  </article>`;
}
