// Stories: what the system must do, each a conversation with the messages that it must cause.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { copy } from "../parts.js";
import { count } from "../format.js";

const shown = { stories: null, error: "", find: "" };

export async function load() {
  try {
    shown.stories = (await api.get("/stories")).stories;
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
}

export function view() {
  if (shown.error && !shown.stories) return html`<div class="page"><h1>Stories</h1><p class="failed">${shown.error}</p></div>`;
  const words = shown.find.toLowerCase();
  const list = (shown.stories ?? []).filter((s) => `${s.id} ${s.title} ${s.why} ${s.file}`.toLowerCase().includes(words));
  return html`<div class="page wide-page ops-page"><h1>Stories</h1>
    <p class="lead">Acceptance stories of this build. Each starts a system of its own with a scripted model and compares every message, so it runs in a terminal, in the folder of the source: <code>conclave story run</code> shows what was expected and what came.</p>
    <form class="search" @submit=${(e) => e.preventDefault()}><label class="sr" for="story-find">Find a story</label><input id="story-find" type="search" placeholder="Find a story" .value=${shown.find} @input=${(e) => ((shown.find = e.target.value), store.changed())} /><span class="quiet">${count(list.length, "story", "stories")}</span></form>
    ${list.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Stories"><table class="wide ops"><thead><tr><th scope="col">Story</th><th scope="col">What must hold</th><th scope="col"><span class="sr">Command</span></th></tr></thead><tbody>${list.map((s) => html`<tr><th scope="row" class="nowrap">${s.id}</th><td>${s.title}<span class="what">${s.why}</span></td><td class="n act"><button type="button" class="ghost" title=${s.command} aria-label="Copy the command of ${s.id}" @click=${() => copy(s.command, `Copied: ${s.command}`)}>${icon("copy")}</button></td></tr>`)}</tbody></table></div>`
      : shown.stories
        ? html`<p class="quiet">${shown.stories.length ? "No story has these words." : "This process has no stories: it was not started with conclave up."}</p>`
        : nothing}
  </div>`;
}
