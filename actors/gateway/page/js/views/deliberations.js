// Deliberations of the committee: what each persona said, with its tools and its dissent.

import { html, nothing } from "../lit-html.js";
import * as store from "../store.js";
import { act, empty, loading, personaCard } from "../parts.js";
import { render as renderMarkdown } from "../markdown.js";
import { age, count, seconds, visible } from "../format.js";

const answer = { text: "", nodes: [] };

export function load([id]) {
  if (id) act(() => store.loadRun(id));
}

export function view([id]) {
  const r = id ? store.state.runs.get(id) : null;
  if (id && !r?.deliberations.size) return html`<div class="page"><h1>Deliberation</h1><p class="quiet">${r?.complete ? "No deliberation of a question with this id is stored." : "Loading."}</p></div>`;
  if (r) return one(r);
  const all = [...store.state.runs.values()].filter((x) => x.deliberations.size).sort((a, b) => b.began - a.began);
  return html`<div class="page"><h1>Deliberations</h1>
    ${all.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Deliberations"><table class="wide"><thead><tr><th scope="col">Question</th><th scope="col">Personas</th><th scope="col">Dissent</th><th scope="col">Asked</th></tr></thead><tbody>${all.map((x) => html`<tr><td><a href="/deliberations/${x.id}">${visible(x.query || x.id)}</a></td><td data-label="contributions">${x.deliberations.size}</td><td data-label="dissent">${[...x.deliberations.values()].filter((d) => d.dissents).map((d) => d.persona).join(", ") || "none"}</td><td class="nowrap">${age(x.began)}</td></tr>`)}</tbody></table></div>`
      : loading("events") ?? empty("deliberations", "No deliberation yet", 'Choose "Committee" beside the question: personas speak in turn, one may dissent, and one of them answers.', html`<a class="button primary" href="/chat">Ask the committee</a>`)}
  </div>`;
}

function one(r) {
  const all = [...r.deliberations.values()];
  const rounds = [...new Set(all.map((d) => d.round))];
  if (answer.text !== r.text) Object.assign(answer, { text: r.text, nodes: renderMarkdown(r.text) });
  const dissent = all.filter((d) => d.dissents);
  return html`<div class="page">
    <h1 dir="auto">${visible(r.query || "Deliberation")}</h1>
    <p class="facts"><span>${count(all.length, "contribution")}</span><span>${seconds((r.ended || Date.now()) - r.began)}</span>${dissent.length ? html`<span class="state warn">${dissent.map((d) => d.persona).join(", ")} ${dissent.length === 1 ? "dissents" : "dissent"}</span>` : html`<span class="state good">no dissent</span>`}<a href="/runs/${r.id}">run</a><a href="/chat/${r.session}">session</a></p>
    ${rounds.map((n) => html`<h2>${all.find((d) => d.round === n)?.closing ? "Closing" : `Round ${n}`}</h2>${all.filter((d) => d.round === n).map(personaCard)}`)}
    ${r.text ? html`<h2>Answer</h2><div class="markdown">${answer.nodes}</div>` : nothing}
  </div>`;
}
