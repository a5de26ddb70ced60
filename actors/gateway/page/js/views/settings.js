// Settings: value, default, where it came from, and what a change does.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { visible } from "../format.js";

const edits = new Map(); // by name: {value, busy, error}

const words = { true: "on", false: "off" };

const short = (name) => name.slice(name.indexOf(".") + 1);

const origin = (s) => (s.origin === "shipped" ? "default" : s.origin === "flag" ? "flag of this start" : s.origin.slice(s.origin.lastIndexOf("/") + 1));

async function save(s, reload) {
  const e = edits.get(s.name);
  e.busy = true;
  e.error = "";
  store.changed();
  try {
    const done = await api.put("/settings/" + encodeURIComponent(s.name), { value: e.value });
    edits.delete(s.name);
    store.notify(done.restarted.length ? `${s.name} is ${done.setting.value}: in force, ${done.restarted.join(" and ")} started again with it.` : `${s.name} is stored: it applies when conclave is restarted.`);
    await reload();
  } catch (x) {
    e.busy = false;
    e.error = x.message;
  }
  store.changed();
}

// field changes a setting. choices are the values to choose from; without them it is typed.
export function field(s, reload, choices = s.type === "bool" ? ["true", "false"] : []) {
  const e = edits.get(s.name);
  const value = e ? e.value : s.pending || s.value;
  const id = "set-" + s.name;
  const onInput = (ev) => {
    if (ev.target.value === (s.pending || s.value)) edits.delete(s.name);
    else edits.set(s.name, { value: ev.target.value, error: "" });
    store.changed();
  };
  const input =
    choices.length
      ? html`<select id=${id} @change=${onInput}>${[...new Set([...choices, value])].map((v) => html`<option value=${v} ?selected=${v === value}>${words[v] ?? visible(v || "none")}</option>`)}</select>`
      : html`<input id=${id} .value=${value} size="12" autocomplete="off" spellcheck="false" placeholder=${s.default || "empty"} @input=${onInput} />`;
  return html`<form class="field" @submit=${(ev) => (ev.preventDefault(), edits.has(s.name) && save(s, reload))}>
    <label class="sr" for=${id}>${s.name}</label>${input}
    ${e ? html`<button class="primary" ?disabled=${e.busy}>${e.busy ? "Saving" : "Save"}</button><button type="button" class="ghost" aria-label="Undo the change of ${s.name}" @click=${() => (edits.delete(s.name), store.changed())}>${icon("close")}</button>` : nothing}
    ${!e && s.value !== s.default && !s.pending ? html`<button type="button" class="link quiet" @click=${() => (edits.set(s.name, { value: s.default, error: "" }), store.changed())}>default</button>` : nothing}
  </form>
  ${e?.error ? html`<p class="failed" role="alert">${visible(e.error)}</p>` : nothing}`;
}

export const facts = (s) => html`<span title=${s.origin}>${origin(s)}</span>${s.value !== s.default ? html`<br /><span class="quiet">shipped: ${visible(s.default || "empty")}</span>` : nothing}`;

const row = (s, reload, whole) => html`<tr>
  <th scope="row"><code>${whole ? s.name : short(s.name)}</code><span class="what">${s.description}</span></th>
  <td>${field(s, reload)}${s.pending ? html`<span class="state warn">in force until a restart: ${visible(s.value || "empty")}</span>` : nothing}</td>
  <td>${facts(s)}</td>
  <td>${s.live ? html`<span class="quiet">at once</span>` : html`<span class="quiet">after a restart</span>`}</td>
</tr>`;

// settingsView draws settings: those of a participant, or with whole names of several. reload is called after a change.
export function settingsView(list, all, reload, whole = false) {
  const open = list.filter((s) => s.editable);
  const locked = list.filter((s) => !s.editable);
  return html`
    ${all?.error ? html`<p class="failed" role="alert">The files in ${all.folder} cannot be loaded, so nothing can be changed here. Correct this first: ${visible(all.error)}</p>` : nothing}
    ${open.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Settings"><table class="wide ops settings"><thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th><th scope="col">Applies</th></tr></thead><tbody>${open.map((s) => row(s, reload, whole))}</tbody></table></div>
        <p class="quiet">A change is recorded in the audit log, checked like the files at a start, and written to <code>${all?.folder}</code>; comments stay.</p>`
      : nothing}
    ${locked.length
      ? html`<details class="locked" ?open=${!open.length || whole}><summary>${icon("lock")} ${locked.length} changed in the file only</summary>
          <p class="quiet">What protects you cannot be changed from a page: addresses, credentials, the broker's rules, the sandbox and what may leave this machine.</p>
          <div class="table" tabindex="0" role="region" aria-label="Settings that are changed in the file only"><table class="wide ops settings"><thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead><tbody>${locked.map((s) => html`<tr><th scope="row"><code>${whole ? s.name : short(s.name)}</code><span class="what">${s.description}</span></th><td class="value"><code>${visible(s.value).slice(0, 300) || "empty"}</code>${s.pending ? html`<br /><span class="state warn">after a restart: ${visible(s.pending)}</span>` : nothing}</td><td>${facts(s)}</td></tr>`)}</tbody></table></div></details>`
      : nothing}
    ${list.length ? nothing : html`<p class="quiet">${whole ? "No setting has these words." : "It has no settings of its own."}</p>`}`;
}
