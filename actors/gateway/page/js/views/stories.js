// Stories: what the system must do. Each runs on a system of its own; its steps, expectations and events are shown while it runs,
// and the difference of expected and observed where it fails.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { icon } from "../icons.js";
import { copy, go } from "../parts.js";
import { clock, count, seconds, visible } from "../format.js";

const shown = { stories: null, canRun: false, error: "", find: "" };
const watched = { file: "", source: null, run: null }; // the run that is shown

const newRun = () => ({ checks: new Map(), turns: [], events: [], end: null });

export async function load([file] = []) {
  if (file !== watched.file) {
    watched.source?.close();
    Object.assign(watched, { file: file ?? "", source: null, run: null });
  }
  try {
    const got = await api.get("/stories");
    shown.stories = got.stories;
    shown.canRun = got.can_run;
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  if (file && !watched.source && !watched.run && story(file)?.run) watch(file);
  store.changed();
}

const story = (file) => shown.stories?.find((s) => s.file === file);

// watch reads the reports of the latest run of a story from its start, until its end.
function watch(file) {
  watched.source?.close();
  const run = newRun();
  const source = new EventSource(`/stories/${encodeURIComponent(file)}/run`);
  Object.assign(watched, { file, source, run });
  source.onmessage = (e) => {
    const p = JSON.parse(e.data);
    for (const c of p.checks ?? []) run.checks.set(c.path, c);
    if (p.turn) run.turns[p.turn.n - 1] = p.turn;
    if (p.event) run.events.push(p.event);
    if (p.end) {
      run.end = p.end;
      source.close();
      if (watched.source === source) watched.source = null;
      load([watched.file]);
    }
    store.changed();
  };
}

async function start(file) {
  try {
    await api.post(`/stories/${encodeURIComponent(file)}/run`);
    watch(file);
    await load([file]);
  } catch (e) {
    store.notify(e.message, "error");
  }
}

const stop = (file) => api.del(`/stories/${encodeURIComponent(file)}/run`).catch((e) => store.notify(e.message, "error"));

const words = { pending: "not yet", running: "runs", ok: "holds", failed: "failed" };
const marks = { pending: "clock", running: "clock", ok: "check", failed: "close" };

const mark = (state, text = words[state]) => html`<span class="mark-state is-${state}">${icon(marks[state])}<span class="sr">${text}: </span></span>`;

const badge = (run) => (run ? html`<span class="state ${run.state === "ok" ? "good" : run.state === "failed" ? "bad" : ""}">${icon(marks[run.state])}${run.state === "ok" ? "passed" : run.state === "failed" ? "failed" : "running"}${run.ms ? html` <span class="quiet">${seconds(run.ms)}</span>` : nothing}</span>` : nothing);

const signs = { "-": "expected", "+": "observed", " ": "" };

const diff = (lines, label) => html`<div class="diff" tabindex="0" role="group" aria-label=${label}>${lines.map((l) => html`<div class=${l.op === "-" ? "want" : l.op === "+" ? "got" : "same"}><span class="sign" aria-hidden="true">${l.op === "-" ? "−" : l.op}</span><span class="sr">${signs[l.op]}: </span><code>${visible(l.text)}</code></div>`)}</div>`;

const check = (c, file, ended) => html`<li class="is-${c.state}">${mark(c.state, ended && c.state === "pending" ? "not checked" : undefined)}
  <div class="what-holds"><span>${visible(c.text)}</span> <span class="quiet nowrap">line ${c.line}</span>
    ${(c.failures ?? []).map((f) => html`<p class="quiet why">${visible(f.text)}</p>${f.diff ? html`<p class="legend quiet"><span>− expected</span> <span>+ observed</span></p>${diff(f.diff, `Expected and observed, ${file} line ${f.line}`)}` : nothing}`)}
  </div></li>`;

const outcome = (end) =>
  end.ok ? html`<p class="outcome good" role="status">${icon("check")}Passed in ${seconds(end.ms)}.</p>` : html`<p class="outcome bad" role="status">${icon("close")}${end.failed ? `${count(end.failed, "expectation")} failed` : "Not finished"}${end.ms ? `, after ${seconds(end.ms)}` : ""}${end.failed && watched.run.checks.size ? "." : `: ${visible(end.reason ?? "")}`}</p>`;

function runView(file, run) {
  const checks = [...run.checks.values()];
  const order = { failed: 0, running: 1, pending: 1, ok: 1 };
  checks.sort((a, b) => order[a.state] - order[b.state]); // failures first
  const held = checks.filter((c) => c.state === "ok").length;
  return html`${run.end ? outcome(run.end) : html`<p class="outcome" role="status"><span class="spinner" aria-hidden="true"></span>${run.turns.length ? `Turn ${run.turns.length} runs.` : "Starting a system for it."}</p>`}
    ${run.turns.length ? html`<section><h2>Steps</h2><ol class="steps">${run.turns.map((t) => html`<li class="is-${t.state}">${mark(t.state, t.state === "ok" ? "done" : undefined)}<div><span class="step">${visible(t.step)}</span>${t.answer ? html`<span class="what">${visible(t.answer)}</span>` : nothing}</div></li>`)}</ol></section>` : nothing}
    ${checks.length ? html`<section><h2>Expectations <span class="quiet">${held} of ${checks.length}</span></h2><ul class="checks">${checks.map((c) => check(c, file, run.end))}</ul></section>` : nothing}
    ${run.events.length ? html`<details class="story-events"><summary>${count(run.events.length, "event")} of its system</summary><div class="table" tabindex="0" role="region" aria-label="Events"><table class="wide ops"><thead><tr><th scope="col">Time</th><th scope="col">From</th><th scope="col">Subject</th><th scope="col">Body</th></tr></thead><tbody>${run.events.map((e) => html`<tr><td class="nowrap">${clock(e.time)}</td><td>${e.from ?? "user"}</td><td><code>${e.subject}</code></td><td><code class="clip">${visible(e.body)}</code></td></tr>`)}</tbody></table></div></details>` : nothing}`;
}

function detail(file) {
  const s = story(file);
  if (!s) return html`<div class="page"><h1>Stories</h1><p class="quiet">${shown.stories ? "This build has no such story." : "Loading."}</p></div>`;
  const running = s.run?.state === "running" || (watched.run && !watched.run.end);
  return html`<div class="page wide-page ops-page story-page"><p class="crumb"><a href="/stories">Stories</a></p>
    <div class="story-head"><h1>${s.id} <span class="story-title">${s.title}</span></h1>
      <p class="actions">${running ? html`<button type="button" @click=${() => stop(file)}>${icon("stop")}Stop</button>` : html`<button type="button" class="primary" ?disabled=${!shown.canRun} @click=${() => start(file)}>${s.run ? "Run again" : "Run"}</button>`}
        <button type="button" class="ghost" title=${s.command} aria-label="Copy the command of ${s.id}" @click=${() => copy(s.command, `Copied: ${s.command}`)}>${icon("copy")}</button></p></div>
    <p class="lead">${s.why}</p>
    ${watched.run && watched.file === file ? runView(file, watched.run) : html`<p class="quiet">${shown.canRun ? "Not run since conclave up started." : html`This process cannot run stories. In a terminal: <code>${s.command}</code>`}</p>`}
  </div>`;
}

export function view([file]) {
  if (shown.error && !shown.stories) return html`<div class="page"><h1>Stories</h1><p class="failed">${shown.error}</p></div>`;
  if (file) return detail(file);
  const find = shown.find.toLowerCase();
  const list = (shown.stories ?? []).filter((s) => `${s.id} ${s.title} ${s.why} ${s.file}`.toLowerCase().includes(find));
  const busy = shown.stories?.some((s) => s.run?.state === "running");
  return html`<div class="page wide-page ops-page"><h1>Stories</h1>
    <p class="lead">Acceptance stories of this build. Each runs on a system of its own with a scripted model, and compares every message: your memory, settings and sessions are not touched.</p>
    <form class="search" @submit=${(e) => e.preventDefault()}><label class="sr" for="story-find">Find a story</label><input id="story-find" type="search" placeholder="Find a story" .value=${shown.find} @input=${(e) => ((shown.find = e.target.value), store.changed())} /><span class="quiet">${count(list.length, "story", "stories")}</span></form>
    ${list.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Stories"><table class="wide ops story-list"><thead><tr><th scope="col">Story</th><th scope="col">What must hold</th><th scope="col">Latest run</th><th scope="col"><span class="sr">Run</span></th></tr></thead><tbody>${list.map((s) => html`<tr><th scope="row" class="nowrap"><a href="/stories/${s.file}">${s.id}</a></th><td>${s.title}<span class="what">${s.why}</span></td><td class="nowrap">${badge(s.run)}</td><td class="n act"><button type="button" aria-label="Run ${s.id}" ?disabled=${!shown.canRun || busy} @click=${() => (go(`/stories/${s.file}`), start(s.file))}>Run</button></td></tr>`)}</tbody></table></div>`
      : shown.stories
        ? html`<p class="quiet">${shown.stories.length ? "No story has these words." : "This process has no stories: it was not started with conclave up."}</p>`
        : nothing}
  </div>`;
}
