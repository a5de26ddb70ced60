// Runs: one question over all actors, drawn from its events. The same data as a waterfall with a lane for each actor and as a
// log; every event shows its subject and sequence.

import { html, nothing, svg } from "../lit-html.js";
import * as store from "../store.js";
import { codeBlock } from "../markdown.js";
import { age, clock, json, seconds, visible } from "../format.js";

const shown = { face: "waterfall", event: null };

export function load([id]) {
  shown.event = null;
  if (id) store.loadRun(id).catch((e) => store.notify(e.message, "error"));
}

export function view([id]) {
  return id ? one(id) : list();
}

function list() {
  const all = [...store.state.runs.values()].sort((a, b) => b.began - a.began);
  return html`<div class="page"><h1>Runs</h1>
    ${all.length
      ? html`<table class="wide"><thead><tr><th scope="col">Question</th><th scope="col">State</th><th scope="col">Time</th><th scope="col">Tools</th><th scope="col">Asked</th></tr></thead><tbody>
          ${all.map((r) => html`<tr><td><a href="/runs/${r.id}">${r.query || r.id}</a></td><td>${r.failed ? "failed" : r.response ? "answered" : r.phase}</td><td>${seconds((r.ended || Date.now()) - r.began)}</td><td>${r.tools.size}</td><td>${age(r.began)}</td></tr>`)}
        </tbody></table>`
      : html`<p>Questions asked while this page is open appear here. <a href="/chat">Ask one</a>, then open "run" below its answer.</p>`}
  </div>`;
}

// lanes returns the spans of a run by actor: {actor, from, to, kind, title, event}.
function lanes(r) {
  const spans = [];
  const ticks = [];
  const end = r.ended || Date.now();
  let state = null;
  for (const ev of r.events) {
    const at = Date.parse(ev.time);
    const [kind, action] = ev.subject.split(".");
    const p = ev.payload ?? {};
    ticks.push({ actor: ev.from || "user", at, event: ev });
    if (kind === "agent" && action === "state" && p.to && !p.code) {
      const actor = ev.subject.split(".").slice(2).join(".");
      if (state && state.actor === actor) state.to = at;
      state = p.to === "IDLE" ? null : { actor, from: at, to: end, kind: p.to.toLowerCase(), title: p.to.toLowerCase().replaceAll("_", " "), event: ev };
      if (state) spans.push(state);
    } else if (kind === "tool" && action === "request") {
      spans.push({ actor: p.tool, from: at, to: end, kind: "tool", title: p.tool, event: ev, call: p.call_id });
    } else if (kind === "tool" && action === "result") {
      const s = spans.find((x) => x.call === p.call_id);
      if (s) {
        s.to = at;
        s.kind = p.error ? "failed" : "tool";
      }
    }
  }
  return { spans, ticks };
}

const lane = 30;
const left = 120;

function waterfall(r) {
  const { spans, ticks } = lanes(r);
  const actors = [...new Set(["user", ...ticks.map((t) => t.actor), ...spans.map((s) => s.actor)])];
  const begin = Math.min(r.began, ...ticks.map((t) => t.at));
  const end = Math.max(r.ended || Date.now(), ...ticks.map((t) => t.at)) + 1;
  const width = 900;
  const x = (at) => left + ((at - begin) / (end - begin)) * (width - left - 10);
  const y = (actor) => actors.indexOf(actor) * lane + 24;
  const marks = [0, 0.25, 0.5, 0.75, 1].map((f) => begin + f * (end - begin));
  const pick = (event) => () => ((shown.event = event), store.changed());
  const key = (event) => (e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), pick(event)());
  return html`<div class="waterfall" tabindex="0" role="group" aria-label="Waterfall of the run">
    ${svg`<svg viewBox="0 0 ${width} ${actors.length * lane + 40}" role="presentation">
      ${marks.map((m) => svg`<line class="grid" x1=${x(m)} x2=${x(m)} y1="16" y2=${actors.length * lane + 22}></line><text class="axis" x=${x(m)} y="12" text-anchor=${m === begin ? "start" : "end"}>${seconds(m - begin) || "0"}</text>`)}
      ${actors.map((a) => svg`<text class="lane" x="0" y=${y(a) + 17}>${a.length > 17 ? a.slice(0, 16) + "…" : a}</text><line class="grid" x1=${left} x2=${width} y1=${y(a) + lane - 4} y2=${y(a) + lane - 4}></line>`)}
      ${spans.map((s) => svg`<rect class="span ${s.kind}" tabindex="0" role="button" aria-label="${s.actor}: ${s.title}, ${seconds(s.to - s.from)}" x=${x(s.from)} y=${y(s.actor) + 4} width=${Math.max(2, x(s.to) - x(s.from))} height=${lane - 14} rx="3" @click=${pick(s.event)} @keydown=${key(s.event)}><title>${s.title}, ${seconds(s.to - s.from)}</title></rect>`)}
      ${ticks.map((t) => svg`<circle class="tick" cx=${x(t.at)} cy=${y(t.actor) + 12} r="3" @click=${pick(t.event)}><title>${t.event.subject}${t.event.seq ? ", sequence " + t.event.seq : ""}</title></circle>`)}
    </svg>`}
  </div>`;
}

const log = (r) => html`<table class="wide log-table"><thead><tr><th scope="col">Time</th><th scope="col">Sequence</th><th scope="col">Author</th><th scope="col">Subject</th></tr></thead><tbody>
  ${r.events.map((ev) => html`<tr><td>${clock(ev.time)}</td><td>${ev.seq ?? ""}</td><td>${ev.from ?? "user"}</td><td><button type="button" class="link" @click=${() => ((shown.event = ev), store.changed())}>${visible(ev.subject)}</button></td></tr>`)}
</tbody></table>`;

function one(id) {
  const r = store.state.runs.get(id);
  if (!r || !r.events.length) return html`<div class="page"><h1>Run</h1><p class="quiet">Loading the run.</p></div>`;
  const command = `conclave tap --query ${id}`;
  return html`<div class="page">
    <h1>${r.query || "Run"}</h1>
    <p class="facts"><a href="/chat/${r.session}">session</a><span>${r.response?.model ?? ""}</span><span>${seconds((r.ended || Date.now()) - r.began)}</span><span>${r.events.length} events</span>
      <button type="button" class="quiet" @click=${() => copy(JSON.stringify(r.events, null, 2))}>Copy JSON</button>
      <button type="button" class="quiet" @click=${() => copy(command)}>Copy command</button></p>
    <div class="tabs" role="tablist">
      ${["waterfall", "log"].map((f) => html`<button type="button" role="tab" aria-selected=${shown.face === f} @click=${() => ((shown.face = f), store.changed())}>${f === "waterfall" ? "Waterfall" : "Log"}</button>`)}
    </div>
    ${shown.face === "waterfall" ? waterfall(r) : log(r)}
    ${shown.event ? html`<section class="event" aria-label="Event"><h2>${visible(shown.event.subject)}</h2><p class="facts"><span>by ${shown.event.from ?? "user"}</span>${shown.event.seq ? html`<span>sequence ${shown.event.seq} of EVENTS</span>` : nothing}<span>${clock(shown.event.time)}</span></p>${codeBlock(json(shown.event.payload), "json")}</section>` : nothing}
  </div>`;
}

function copy(text) {
  navigator.clipboard.writeText(text).then(
    () => store.notify("Copied."),
    () => store.notify("Copying failed: the browser does not allow it", "error"),
  );
}
