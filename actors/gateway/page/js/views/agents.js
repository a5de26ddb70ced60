// Agents: every participant of the system with what it does now (Activity) and its settings (Settings).

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { age, clock, count, visible } from "../format.js";
import { copy } from "../parts.js";
import { preview } from "../trace.js";
import { settingsView } from "./settings.js";

const shown = { agents: null, settings: null, error: "", find: "" };
let timer = 0;

export async function load() {
  clearTimeout(timer);
  try {
    const none = shown.settings ?? { settings: [], folder: "", error: "" };
    const [a, s] = await Promise.all([api.get("/agents"), api.get("/settings").catch(() => none)]);
    shown.agents = a.agents;
    shown.settings = s;
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
  timer = setTimeout(() => location.pathname.startsWith("/agents") && load(), 4000);
}

const titles = {
  generator: "Answers your questions",
  respondent_b: "Answers the same questions for comparison; never shown as the answer",
  committee: "Deliberates by personas",
  orchestrator: "Plans tasks and spawns agents",
  critic: "Grades every answer",
  memory: "Stores answers and facts, and recalls them",
  broker: "Authorizes every tool call",
  model: "Runs the models, one queue per server",
  gateway: "This page, the HTTP API and query.ask",
  registry: "Keeps principals, machines and settings",
  reward: "Turns your feedback into rewards",
  router: "Orders the questions of each session",
  secrets: "Reads credentials, for the broker only",
  mcp: "Mounts tools of MCP servers behind the broker",
  system: "The bus, the disk and the log",
  tools: "What file tools and programs share: working folder and sandbox",
};
const words = { GENERATING: "writing", RECEIVING: "reading the question", DISPATCHING_TOOL: "calling a tool", WAITING_FOR_TOOL: "waiting for a tool", SUMMARIZING: "summarizing", PUBLISHING: "finishing", GRADING: "grading", RECALLING: "recalling", STORING: "storing" };

// eventsOf returns the latest events of a participant, newest first.
function eventsOf(name, most = 40) {
  const out = [];
  for (let i = store.state.log.length - 1; i >= 0 && out.length < most; i--) {
    const ev = store.state.log[i];
    if (ev.from === name || ev.subject === `tool.request.${name}` || ev.subject === `tool.result.${name}`) out.push(ev);
  }
  return out;
}

// stateNow is what a participant does now, by its last event; a state without an end for two minutes is not believed.
function stateNow(name, last) {
  if (!last || Date.now() - Date.parse(last.time) > 120000) return "";
  if (last.subject.startsWith("tool.request.") && last.from !== name) return "running";
  return last.subject.startsWith("agent.state.") ? (words[last.payload?.to] ?? "") : "";
}

const number = (n) => (n ?? 0).toLocaleString("en");
const ms = (v) => (v ? (v < 10 ? v.toFixed(1) : Math.round(v).toLocaleString("en")) : "–");

const stateCell = (a, doing) => {
  if (!a.state) return html`<span class="quiet">off</span>`;
  if (doing) return html`<span class="state run">${doing}</span>`;
  return html`<span class="state ${a.state === "ready" ? "good" : a.state === "failed" ? "bad" : "warn"}">${a.state}</span>`;
};

const row = (a) => {
  const last = eventsOf(a.actor, 1)[0];
  return html`<tr>
    <th scope="row"><a href="/agents/${a.actor}">${a.actor}</a>${a.instances > 1 ? html` <span class="quiet">× ${a.instances}</span>` : nothing}<span class="what">${titles[a.actor] ?? ""}${a.personas?.length ? `: ${a.personas.join(", ")}` : nothing}</span></th>
    <td>${stateCell(a, stateNow(a.actor, last))}</td>
    <td class="n" data-label="queue">${a.state ? number(a.mailbox + a.in_flight) : nothing}</td>
    <td class="n" data-label="requests">${a.state ? number(a.requests) : nothing}</td>
    <td class="n ${a.errors ? "warn-text" : ""}" data-label="errors">${a.state ? number(a.errors) : nothing}</td>
    <td class="n" data-label="p50 ms">${a.p50_ms ? ms(a.p50_ms) : nothing}</td><td class="n" data-label="p99 ms">${a.p99_ms ? ms(a.p99_ms) : nothing}</td>
    <td class="n ${a.restarts ? "warn-text" : ""}" data-label="restarts">${a.state ? number(a.restarts) : nothing}</td>
    <td class="quiet nowrap">${last ? age(last.time) : nothing}</td>
  </tr>`;
};

const group = (title, list) =>
  list.length
    ? html`<section><h2>${title}</h2><div class="table" tabindex="0" role="region" aria-label=${title}><table class="wide ops actors"><thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col" class="n" title="Messages that wait or are handled">Queue</th><th scope="col" class="n">Requests</th><th scope="col" class="n">Errors</th><th scope="col" class="n">p50 ms</th><th scope="col" class="n">p99 ms</th><th scope="col" class="n">Restarts</th><th scope="col">Last event</th></tr></thead><tbody>${list.map(row)}</tbody></table></div></section>`
    : nothing;

// spawned returns the spawned agents in the events, newest first: the orchestrator's path names each.
function spawned() {
  const seen = new Map();
  for (const ev of store.state.log) {
    const [kind, what, , ...path] = ev.subject.split(".");
    if (kind === "agent" && what === "state" && path.length) seen.set(ev.subject, { name: path.join(" › "), by: ev.from, state: words[ev.payload?.to] ?? ev.payload?.to ?? "", at: ev.time, query: ev.query });
  }
  return [...seen.values()].reverse().slice(0, 12);
}

// participants are the running actors, and those that only have settings.
function participants() {
  const all = [...(shown.agents ?? [])];
  for (const s of shown.settings?.settings ?? []) if (!all.some((a) => a.actor === s.actor)) all.push({ actor: s.actor, kind: s.actor === "respondent_b" ? "agent" : "service", personas: [] });
  return all;
}

export function view([name, tab]) {
  if (shown.error && !shown.agents) return html`<div class="page"><h1>Agents</h1><p class="failed">${shown.error}</p></div>`;
  if (!shown.agents) return html`<div class="page wide-page"><h1>Agents</h1><p class="quiet">Loading.</p></div>`;
  const all = participants();
  if (name) {
    const a = all.find((x) => x.actor === name);
    return a ? one(a, tab) : html`<div class="page"><h1>${visible(name)}</h1><p>There is no participant of this name. <a href="/agents">All participants</a></p></div>`;
  }
  const children = spawned();
  const running = all.filter((a) => a.state);
  return html`<div class="page wide-page ops-page"><h1>Agents</h1>
    <p class="lead">${count(running.length, "actor")} in this system, each with its own key on the bus. ${running.every((a) => a.state === "ready") ? "All are ready." : "Not all are ready."} Figures since the start, latency in milliseconds.</p>
    ${group("Agents", all.filter((a) => a.kind === "agent"))} ${group("Services", all.filter((a) => a.kind === "service"))} ${group("Tools", all.filter((a) => a.kind === "tool"))}
    <p class="quiet">Add a tool of your own or an MCP server in a terminal, which shows what it may reach before it is admitted; a browser cannot:
      ${addCommands.map((c) => html`<button type="button" class="link" title="Copy" @click=${() => copy(c)}><code>${c}</code></button> `)}</p>
    ${children.length ? html`<section><h2>Spawned agents</h2><ul class="plain rows">${children.map((c) => html`<li><span>${visible(c.name)} <span class="quiet">by ${c.by}</span></span><span class="quiet">${c.state}</span><span class="quiet">${age(c.at)}</span>${c.query ? html`<a href="/runs/${c.query}">run</a>` : nothing}</li>`)}</ul></section>` : nothing}
  </div>`;
}

const addCommands = ["conclave tool add NAME", "conclave mcp add NAME", "conclave mcp list"];

const figure = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;

function one(a, tab) {
  const settings = (shown.settings?.settings ?? []).filter((s) => s.actor === a.actor);
  const events = eventsOf(a.actor);
  const isSettings = tab === "settings" || !a.state;
  return html`<div class="page wide-page ops-page">
    <p class="crumb"><a href="/agents">Agents</a></p>
    <h1>${a.actor} ${a.state ? stateCell(a, stateNow(a.actor, events[0])) : nothing}</h1>
    <p class="lead">${titles[a.actor] ?? (a.kind === "tool" ? "A tool. Only the broker can call it." : "")}</p>
    <nav class="tabs" aria-label="Parts of ${a.actor}">${a.state ? html`<a href="/agents/${a.actor}" aria-current=${isSettings ? nothing : "page"}>Activity</a>` : nothing}<a href="/agents/${a.actor}/settings" aria-current=${isSettings ? "page" : nothing}>Settings <span class="quiet count">${settings.length}</span></a></nav>
    ${isSettings ? settingsView(settings, shown.settings, load) : activity(a, events)}
  </div>`;
}

const activity = (a, events) => html`
  <dl class="figures">${figure("Waiting", number(a.mailbox))}${figure("In work", number(a.in_flight))}${figure("Requests", number(a.requests))}${figure("Errors", number(a.errors))}${figure("Rejected", number(a.refused))}${figure("p50", `${ms(a.p50_ms)} ms`)}${figure("p99", `${ms(a.p99_ms)} ms`)}${figure("Restarts", number(a.restarts))}</dl>
  ${a.last_fall ? html`<p class="failed">Last failure: ${visible(a.last_fall)}</p>` : nothing}
  <h2>Last events</h2>
  ${events.length
    ? html`<div class="table" tabindex="0" role="region" aria-label="Last events"><table class="wide log-table"><thead><tr><th scope="col">Time</th><th scope="col">Event</th><th scope="col">What</th><th scope="col">Question</th></tr></thead><tbody>${events.map((ev) => html`<tr><td>${clock(ev.time)}</td><td><code>${ev.subject}</code></td><td class="preview">${words[ev.payload?.to] ?? (visible(ev.payload?.words ?? "") || preview(ev))}</td><td>${ev.query ? html`<a href="/runs/${ev.query}">run</a>` : nothing}</td></tr>`)}</tbody></table></div>`
    : html`<p class="quiet">No event yet since this page was opened. ${a.actor === "generator" ? html`<a href="/chat">Ask something</a>, and watch.` : ""}</p>`}
  <h2>Subjects</h2>
  <div class="table" tabindex="0" role="region" aria-label="Subjects"><table class="wide ops"><thead><tr><th scope="col">Subject</th><th scope="col" class="n">Requests</th><th scope="col" class="n">Errors</th><th scope="col" class="n">p50 ms</th><th scope="col" class="n">p99 ms</th></tr></thead><tbody>${(a.subjects ?? []).map((s) => html`<tr><td><code>${s.subject}</code></td><td class="n" data-label="requests">${number(s.requests)}</td><td class="n" data-label="errors">${number(s.errors)}</td><td class="n" data-label="p50 ms">${ms(s.p50_ms)}</td><td class="n" data-label="p99 ms">${ms(s.p99_ms)}</td></tr>`)}</tbody></table></div>
  <p class="quiet">${icon("keys")} The same in a terminal: <code>conclave top ${a.actor}</code></p>`;
