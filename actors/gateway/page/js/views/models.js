// Models: what is there, what fits this machine, how fast it is and which role it has; fetch with progress.

import { html, nothing, svg } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { copy, empty } from "../parts.js";
import { bytes, seconds, visible } from "../format.js";

const shown = { models: null, error: "", name: "" };
let timer = 0;

export async function load() {
  clearTimeout(timer);
  try {
    shown.models = await api.get("/models");
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
  const busy = shown.models?.pulls.some((p) => !p.ended);
  timer = setTimeout(() => location.pathname.startsWith("/models") && load(), busy ? 1000 : 10000);
}

async function pull(name) {
  try {
    await api.post(`/models/${encodeURIComponent(name)}/pull`);
    shown.name = "";
  } catch (e) {
    store.notify(e.message, "error");
  }
  load();
}

async function stop(name) {
  try {
    await api.del(`/models/${encodeURIComponent(name)}/pull`);
  } catch (e) {
    store.notify(e.message, "error");
  }
  setTimeout(load, 300);
}

const fits = { loaded: ["good", "loaded"], yes: ["good", "fits"], no: ["bad", "too large"] };

// size draws the size of a model against the free memory.
const size = (m, free) => html`${m.size ? bytes(m.size) : nothing}${free && m.size && !m.machine && !m.remote
  ? svg`<svg class="share" width="72" height="6" aria-hidden="true"><rect class="all" width="72" height="6" rx="3"></rect><rect class=${m.fits === "no" ? "over" : "part"} width=${Math.min(72, (72 * m.size) / free).toFixed(1)} height="6" rx="3"></rect></svg>`
  : nothing}`;

const perSecond = (v, what) => (v ? html`<span class="speed">${v < 100 ? v.toFixed(1) : Math.round(v).toLocaleString("en")} <span class="quiet">${what}</span></span> ` : nothing);

const speed = (m) => (m.prompt_speed || m.output_speed ? html`${perSecond(m.prompt_speed, "read")}${perSecond(m.output_speed, "write")}` : html`<span class="quiet">not measured</span>`);

const row = (m, free) => html`<tr>
  <th scope="row">${m.name}<span class="what">${[m.parameters, m.family, m.machine ? `on ${m.machine}` : m.remote ? `at ${m.remote}` : "", m.tools ? "tools" : "", m.thinking ? "thinking" : "", m.vision ? "images" : "", m.embedding ? "embeddings" : ""].filter(Boolean).join(", ")}</span></th>
  <td>${m.used_by.map((r) => html`<span class="chip">${r}</span> `)}</td>
  <td class="nowrap">${size(m, free)}</td>
  <td>${m.refused ? html`<span class="state bad" title=${m.refused}>denied</span>` : fits[m.fits] ? html`<span class="state ${fits[m.fits][0]}">${fits[m.fits][1]}</span>` : nothing}</td>
  <td class="nowrap">${speed(m)}</td>
</tr>`;

const progress = (p) => html`<li class="pull"><b>${p.model}</b> <span class="quiet">${p.error ? nothing : p.ended ? `done after ${seconds(Date.parse(p.ended) - Date.parse(p.began))}` : `${p.status}${p.total ? `, ${bytes(p.completed)} of ${bytes(p.total)}` : ""}`}</span>
  ${p.error ? html`<p class="failed">${visible(p.error)}</p>` : nothing}
  ${p.ended ? nothing : html`<progress aria-label="Download of ${p.model}" max=${p.total || nothing} value=${p.total ? p.completed : nothing}></progress><button type="button" @click=${() => stop(p.model)}>Stop</button>`}</li>`;

export function view() {
  if (shown.error && !shown.models) return html`<div class="page"><h1>Models</h1><p class="failed">${shown.error}</p></div>`;
  const m = shown.models;
  if (!m) return html`<div class="page wide-page"><h1>Models</h1><p class="quiet">Loading.</p></div>`;
  const latest = (name) => name.replace(/:latest$/, "");
  const missing = (r) => r.wanted || (r.notice && !r.demo_model && !r.model.includes("/") && !m.models.some((x) => latest(x.name) === latest(r.model)) ? r.model : "");
  const offered = new Map(m.roles.map((r) => [r, missing(r)]).filter(([, name]) => name && !m.pulls.some((p) => p.model === name && !p.ended))); // what to fetch for a role
  return html`<div class="page wide-page ops-page"><h1>Models</h1>
    <p class="lead">${m.free_memory ? `${bytes(m.free_memory)} of memory is free on this machine. A model needs its size and a fifth more for the context.` : "The free memory of this machine is not known."}</p>
    <form class="search" @submit=${(e) => (e.preventDefault(), shown.name.trim() && pull(shown.name.trim()))}>
      <label class="sr" for="model-name">Name of a model to fetch</label><input id="model-name" placeholder="Fetch a model by name, such as gemma4:12b" autocomplete="off" spellcheck="false" .value=${shown.name} @input=${(e) => (shown.name = e.target.value)} />
      <button class="primary">Fetch</button>
    </form>
    ${m.pulls.length ? html`<ul class="plain" aria-label="Downloads">${m.pulls.map(progress)}</ul>` : nothing}
    ${m.models.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Models"><table class="wide ops"><thead><tr><th scope="col">Model</th><th scope="col">Roles</th><th scope="col">Size</th><th scope="col">Memory</th><th scope="col">Tokens per second</th></tr></thead><tbody>${m.models.map((x) => row(x, m.free_memory))}</tbody></table></div>`
      : empty("models", "No model yet", "Ollama runs models on this machine; nothing you ask leaves it. Start it, then fetch a model that fits your memory.", html`<button type="button" class="primary" @click=${() => copy("ollama serve")}>Copy: ollama serve</button>`)}
    <h2>Roles</h2>
    <div class="table" tabindex="0" role="region" aria-label="Roles"><table class="wide ops"><thead><tr><th scope="col">Role</th><th scope="col">Model now</th><th scope="col">Note</th></tr></thead><tbody>${m.roles.map((r) => html`<tr><th scope="row">${r.role}</th><td>${r.model}${r.demo_model ? html` <span class="chip">demo</span>` : nothing}</td><td>${r.notice ? html`<span class="quiet">${visible(r.notice)}</span>` : nothing}${offered.has(r) ? html` <button type="button" @click=${() => pull(offered.get(r))}>Fetch ${offered.get(r)}</button>` : nothing}</td></tr>`)}</tbody></table></div>
    <p class="quiet">Change the model of a role in the <a href="/agents/model/settings">settings of the model actor</a>.</p>
  </div>`;
}
