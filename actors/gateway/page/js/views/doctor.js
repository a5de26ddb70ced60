// Doctor: the checks of the installation, problems first, each with its fix.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { copy } from "../parts.js";
import { age, count, visible } from "../format.js";

const shown = { checks: null, error: "", busy: false, at: 0 };

export async function load() {
  if (shown.busy) return;
  shown.busy = true;
  store.changed();
  try {
    shown.checks = (await api.get("/doctor")).checks;
    shown.at = Date.now();
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  shown.busy = false;
  store.changed();
}

const tones = { ok: ["good", "ok"], warn: ["warn", "note"], fail: ["bad", "failed"] };
const order = { fail: 0, warn: 1, ok: 2 };

export function view() {
  const list = [...(shown.checks ?? [])].sort((a, b) => order[a.level] - order[b.level]);
  const of = (level) => list.filter((c) => c.level === level).length;
  return html`<div class="page wide-page ops-page"><h1>Doctor</h1>
    <div class="bar">${shown.busy
      ? html`<span class="progress"><span class="spinner"></span>Checking folders, keys, actors, models, memory and disk.</span>`
      : shown.checks
        ? html`<span class="bar tight">${of("fail") ? html`<span class="state bad">${count(of("fail"), "problem")}</span> ` : html`<span class="state good">no problem</span> `}${of("warn") ? html`<span class="state warn">${count(of("warn"), "note")}</span> ` : nothing}<span class="quiet">${of("ok")} checks are ok, ${age(shown.at)}</span></span>`
        : nothing}<span class="grow"></span><button type="button" ?disabled=${shown.busy} @click=${load}>${icon("retry")} Check again</button></div>
    ${shown.error ? html`<p class="failed" role="alert">${shown.error}</p>` : nothing}
    ${list.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Checks"><table class="wide ops"><thead><tr><th scope="col">Check</th><th scope="col">Result</th><th scope="col">What was found</th><th scope="col"><span class="sr">Fix</span></th></tr></thead><tbody>${list.map((c) => html`<tr><th scope="row" class="nowrap">${c.name}</th><td class="nowrap"><span class="state ${tones[c.level]?.[0]}">${tones[c.level]?.[1] ?? c.level}</span></td><td>${visible(c.text)}${c.fix ? html`<span class="fix">${visible(c.fix)}</span>` : nothing}</td><td class="n act">${c.fix ? html`<button type="button" class="ghost" aria-label="Copy the fix of ${c.name}" title="Copy the fix" @click=${() => copy(c.fix)}>${icon("copy")}</button>` : nothing}</td></tr>`)}</tbody></table></div>`
      : nothing}
    <p class="quiet">The same in a terminal: <code>conclave doctor</code>. It changes nothing.</p>
  </div>`;
}
