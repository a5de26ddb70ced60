// Settings: the ten that a person changes, each with its effect, its value and where that comes from; the rest behind "Advanced".

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { visible } from "../format.js";
import { setTheme, theme, themes } from "../theme.js";
import { notifyChoice } from "./approvals.js";
import { facts, field, settingsView } from "./settings.js";

const shown = { all: null, models: [], error: "", find: "" };

export async function load() {
  try {
    const [all, models] = await Promise.all([api.get("/settings"), api.get("/models").catch(() => ({ models: [] }))]);
    Object.assign(shown, { all, models: models.models.filter((m) => !m.embedding && !m.refused).map((m) => m.name), error: "" });
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
}

// Each has the setting behind it, or what is chosen in this browser or elsewhere instead.
const ten = [
  { title: "Model", text: "Answers your questions, and has every role that has no model of its own.", setting: "models.roles.assistant", choices: () => shown.models, more: html`<a href="/models">Models and their speed</a>` },
  { title: "Search", text: "Who searches the web. The words of a search go to that provider.", setting: "web_search.provider" },
  { title: "Language", text: "Language of search results, such as en or de; empty: as the provider decides.", setting: "web_search.language" },
  { title: "Folders", text: "What the assistant may read and write of your files.", value: () => html`<code>${visible(folders()) || "none"}</code>`, more: html`Under <code>paths</code> in <code>manifest.yaml</code>: what an agent may reach is not changed from a browser.` },
  { title: "Approvals", text: "What untrusted content wants and you did not order waits for you, unless it can be undone.", value: () => notifyChoice(), more: html`<a href="/approvals">Remembered decisions</a>` },
  { title: "Critic", text: "Grades every answer, with a model of its own where there is one.", setting: "critic.enabled" },
  { title: "Memory", text: "Stores what you say, and recalls it in later conversations.", setting: "memory.enabled", more: html`<a href="/memory">What is stored</a>` },
  { title: "Appearance", text: "Light or dark, in this browser.", value: () => html`<label class="sr" for="set-theme">Appearance</label><select id="set-theme" @change=${(e) => setTheme(e.target.value)}>${themes.map((t) => html`<option value=${t} ?selected=${t === theme()}>${t}</option>`)}</select>` },
  { title: "Phone", text: "The names under which a phone or another machine reaches this page, behind a proxy with TLS.", setting: "system.gateway.hosts", more: html`<a href="/machines">Browsers that are logged in</a>` },
  { title: "Backup", text: "The folder of the daily backups; empty: beside the data folder.", setting: "system.backup.folder" },
];

const find = (name) => shown.all.settings.find((s) => s.name === name);

// folders are those that the file tools of the assistant may use, as the manifest has them.
const folders = () => [...new Set(shown.all.settings.filter((s) => s.name.startsWith("manifest.types.assistant.paths.")).flatMap((s) => s.value.split(", ")))].join(", ");

const plain = (value) => visible({ "[]": "none", "": "empty", true: "on", false: "off" }[value] ?? value);

function one(x) {
  const s = x.setting ? find(x.setting) : null;
  return html`<tr>
    <th scope="row">${x.title}<span class="what">${x.text}</span></th>
    <td>${s ? (s.editable ? field(s, load, x.choices?.()) : html`<code>${plain(s.value)}</code><span class="what">${icon("lock")} ${visible(s.locked ?? "")}</span>`) : x.value?.()}${s?.pending ? html`<span class="state warn">in force until a restart: ${plain(s.value)}</span>` : nothing}${x.more ? html`<span class="what">${x.more}</span>` : nothing}</td>
    <td>${s ? facts(s) : html`<span class="quiet">${x.title === "Appearance" || x.title === "Approvals" ? "this browser" : ""}</span>`}</td>
  </tr>`;
}

export function view() {
  if (!shown.all) return html`<div class="page"><h1>Settings</h1>${shown.error ? html`<p class="failed">${shown.error}</p>` : html`<p class="quiet">Loading.</p>`}</div>`;
  const words = shown.find.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (...texts) => words.every((w) => texts.join(" ").toLowerCase().includes(w));
  const mine = ten.filter((x) => has(x.title, x.text, x.setting ?? ""));
  const all = shown.all.settings.filter((s) => has(s.name, s.description, s.value));
  return html`<div class="page wide-page ops-page"><h1>Settings</h1>
    <label class="sr" for="find-setting">Search the settings</label>
    <p class="search"><input id="find-setting" type="search" placeholder="Search all settings" .value=${shown.find} @input=${(e) => ((shown.find = e.target.value), store.changed())} /></p>
    ${mine.length ? html`<div class="table" tabindex="0" role="region" aria-label="Your settings"><table class="wide ops settings"><thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead><tbody>${mine.map(one)}</tbody></table></div>` : nothing}
    ${words.length ? html`<h2>All settings with these words</h2>${settingsView(all, shown.all, load, true)}` : html`<details class="locked" @toggle=${(e) => ((shown.advanced = e.target.open), store.changed())}><summary>Advanced: ${shown.all.settings.length} settings</summary>${shown.advanced ? settingsView(all, shown.all, load, true) : nothing}</details>`}
  </div>`;
}
