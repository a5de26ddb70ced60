// Runs: one question over all actors, drawn from its events. The same data has three faces: a waterfall with a lane for each
// actor, a tree, and a log. The chat shows the same in its drawer.

import { html, nothing, svg } from "../lit-html.js";
import { icon } from "../icons.js";
import * as store from "../store.js";
import { act, codeView, copy, download, empty, gradeBadge, loading, questionState, recallList, trustLabel } from "../parts.js";
import { age, clock, count, json, seconds, visible } from "../format.js";
import { buildTrace, preview, size, ticksOf } from "../trace.js";

const shown = { face: "waterfall", picked: null, hover: null, window: null, filter: "", width: 900, brush: null, run: "" };

export function load([id]) {
  select(id);
}

// select reads the events of a run and resets what is picked in it.
export function select(id) {
  if (!id || id === shown.run) return;
  Object.assign(shown, { picked: null, hover: null, window: null, filter: "", run: id });
  act(() => store.loadRun(id));
}

export function view([id]) {
  if (id) return html`<div class="page wide-page">${runPanel(id)}</div>`;
  const all = [...store.state.runs.values()].filter((r) => r.events.length).sort((a, b) => b.began - a.began);
  return html`<div class="page wide-page"><h1>Runs</h1>
    ${all.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Runs"><table class="wide"><thead><tr><th scope="col">Question</th><th scope="col">State</th><th scope="col">Grade</th><th scope="col" class="num">Time</th><th scope="col" class="num">Tools</th><th scope="col" class="num">Events</th><th scope="col">Asked</th></tr></thead><tbody>
          ${all.slice(0, 200).map((r) => html`<tr><td><a href="/runs/${r.id}">${visible(store.questionOf(r) || r.id)}</a></td><td>${questionState(r)}</td><td>${r.grade?.score ? gradeBadge(r.grade.score, r.grade.feedback, r.grade.self_graded) : nothing}</td><td class="num">${seconds((r.ended || Date.now()) - r.began)}</td><td class="num" data-label="tools">${r.tools.size || ""}</td><td class="num" data-label="events">${r.events.length}</td><td class="nowrap">${age(r.began)}</td></tr>`)}
        </tbody></table></div>`
      : loading("events") ?? empty("runs", "No run yet", "Every question becomes a run: who did what, when, and what the broker decided. It is drawn from the event log, live and after a reload.", html`<a class="button primary" href="/chat">Ask a question</a>`)}
  </div>`;
}

const faces = [["waterfall", "Waterfall"], ["tree", "Tree"], ["log", "Log"]];

// runPanel shows one run; compact leaves out its title, for the drawer.
export function runPanel(id, compact = false) {
  const r = store.state.runs.get(id);
  if (!r?.events.length) {
    const text = !r?.complete ? "Loading." : r.known ? "The events of this question are no longer stored: the event log keeps them for 90 days, or less when it is full. The conversation stays." : "There is no question with this id.";
    return html`${compact ? nothing : html`<h1>Run</h1>`}<p class="quiet">${text}</p>`;
  }
  const tools = [...r.tools.values()];
  return html`
    ${compact ? nothing : html`<h1 dir="auto">${visible(store.questionOf(r) || "Run")}</h1>`}
    <p class="facts">
      ${questionState(r)}<span>${seconds((r.ended || Date.now()) - r.began)}</span><span>${r.response?.model ?? ""}</span>
      ${r.grade?.score ? gradeBadge(r.grade.score, r.grade.feedback, r.grade.self_graded) : nothing}
      <span>${count(tools.length, "tool call")}</span><span>${count(r.recalled.length, "recall")}</span><span>${count(r.events.length, "event")}</span>
      ${compact ? html`<a href="/runs/${id}">open</a>` : r.session ? html`<a href="/chat/${r.session}">session</a>` : nothing}
    </p>
    <div class="bar">
      <div class="tabs" role="tablist" aria-label="Faces of the run">
        ${faces.map(([f, title]) => html`<button type="button" role="tab" aria-selected=${shown.face === f} tabindex=${shown.face === f ? 0 : -1} @keydown=${onTabKey} @click=${() => ((shown.face = f), store.changed())}>${title}</button>`)}
      </div>
      <span class="grow"></span>
      <span class="together"><button type="button" class="ghost" title="Copy the address of this run" @click=${() => copy(location.origin + "/runs/" + id, "The address was copied.")}>${icon("link")}Link</button>
      <button type="button" class="ghost" title="Copy the nats commands that show the same" @click=${() => copy(natsCommands(r), "The commands were copied.")}>${icon("copy")}nats</button>
      <button type="button" class="ghost" title="Save the events as JSON" @click=${() => download(`run-${id}.json`, JSON.stringify({ query_id: id, query: r.query, events: r.events }, null, 2))}>${icon("export")}JSON</button></span>
    </div>
    ${shown.face === "waterfall" ? waterfall(r, compact) : shown.face === "tree" ? tree(r) : log(r)}
    ${shown.picked && r.events.includes(shown.picked) ? payload(shown.picked) : nothing}
    ${r.grade && !compact ? html`<section class="panel"><h2>Critic ${r.grade.score ? gradeBadge(r.grade.score, "", r.grade.self_graded) : nothing}</h2><p>${visible(r.grade.feedback || r.grade.ungraded || "")}</p><p class="quiet">rubric ${r.grade.rubric}${r.grade.model ? `, ${r.grade.model}` : ""}</p></section>` : nothing}
    ${r.recalled.length && !compact ? html`<section class="panel"><h2>Recalled</h2>${recallList(r.recalled)}</section>` : nothing}`;
}

function onTabKey(e) {
  const i = faces.findIndex(([f]) => f === shown.face);
  const next = e.key === "ArrowRight" ? i + 1 : e.key === "ArrowLeft" ? i - 1 : -9;
  if (next < -1) return;
  shown.face = faces[(next + faces.length) % faces.length][0];
  store.changed();
  requestAnimationFrame(() => document.querySelector('[role="tab"][aria-selected="true"]')?.focus());
}

function natsCommands(r) {
  const seqs = r.events.map((e) => e.seq).filter(Boolean);
  return [
    `# The events of the question ${r.id}, as the page shows them`,
    `conclave tap --query ${r.id}`,
    `nats --context conclave stream view EVENTS --id=${Math.min(...seqs)}`,
    ...[...new Set(r.events.filter((e) => e.seq && /^(tool|approval|response)/.test(e.subject)).map((e) => e.seq))].slice(0, 12).map((s) => `nats --context conclave stream get EVENTS ${s}`),
  ].join("\n");
}

function payload(ev) {
  const label = ev.payload?.labels;
  return html`<section class="panel event" aria-label="Event">
    <h2><code>${visible(ev.subject)}</code> ${trustLabel(label)}</h2>
    <p class="facts"><span>by ${ev.from ?? "you"}</span>${ev.seq ? html`<span>sequence ${ev.seq} of EVENTS</span>` : html`<span>not stored</span>`}<span>${clock(ev.time)}</span><span>${count(size(ev), "byte")}</span>
      ${ev.seq ? html`<button type="button" class="link" @click=${() => copy(`nats --context conclave stream get EVENTS ${ev.seq}`, "The command was copied.")}>copy as nats command</button>` : nothing}
      <button type="button" class="link" @click=${() => ((shown.picked = null), store.changed())}>close</button></p>
    ${codeView(json(ev.payload), "payload")}
  </section>`;
}

const laneHeight = 34;
const top = 26;

// waterfall draws lanes by actor over time. Zoom with the buttons, with + and -, or by dragging over the small map.
function waterfall(r, compact) {
  const t = buildTrace(r);
  const narrow = compact || shown.width < 560;
  const left = narrow ? 104 : 148;
  const width = Math.max(300, shown.width);
  const [from, to] = shown.window && shown.run === r.id ? [Math.max(t.begin, shown.window[0]), Math.min(t.end, shown.window[1])] : [t.begin, t.end];
  const range = Math.max(1, to - from);
  const x = (at) => left + ((at - from) / range) * (width - left - 14);
  const clampX = (at) => Math.min(width - 8, Math.max(left, x(at)));
  const y = (lane) => t.lanes.indexOf(lane) * laneHeight + top;
  const height = t.lanes.length * laneHeight + top + 6;
  const inWindow = (a, b) => b >= from && a <= to;
  const pick = (event) => () => ((shown.picked = event), store.changed());
  const key = (event) => (e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), pick(event)());
  const hover = (item) => () => ((shown.hover = item), store.changed());
  const zoom = (f) => {
    const middle = (from + to) / 2;
    const half = Math.max(5, (range * f) / 2);
    shown.window = f >= 1 && half * 2 >= t.end - t.begin ? null : [Math.max(t.begin, middle - half), Math.min(t.end, middle + half)];
    store.changed();
  };
  const onKey = (e) => {
    const step = range / 5;
    if (e.target !== e.currentTarget && !["+", "-", "0"].includes(e.key)) return;
    if (e.key === "+" || e.key === "=") zoom(0.5);
    else if (e.key === "-") zoom(2);
    else if (e.key === "0") shown.window = null;
    else if (e.key === "ArrowLeft" && shown.window) shown.window = [Math.max(t.begin, from - step), Math.max(t.begin, from - step) + range];
    else if (e.key === "ArrowRight" && shown.window) shown.window = [Math.min(t.end, to + step) - range, Math.min(t.end, to + step)];
    else return;
    e.preventDefault();
    store.changed();
  };
  const ticks = ticksOf(range, Math.max(3, Math.floor((width - left) / 90)));
  return html`<div class="waterfall" tabindex="0" role="group" aria-label="Waterfall: ${t.lanes.length} lanes, ${seconds(t.end - t.begin)}. Plus and minus zoom, 0 shows everything." @keydown=${onKey} @mouseleave=${hover(null)}>
    <div class="measure"></div>
    ${svg`<svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="presentation">
      ${ticks.map((k) => svg`<line class="grid" x1=${x(from + k)} x2=${x(from + k)} y1=${top - 6} y2=${height}></line><text class="axis" x=${x(from + k)} y="12" text-anchor=${k ? "middle" : "start"}>${seconds(from + k - t.begin) || "0"}</text>`)}
      ${t.lanes.map((l) => svg`<line class="rule" x1="0" x2=${width} y1=${y(l) + laneHeight - 2} y2=${y(l) + laneHeight - 2}></line><text class="lane" x="0" y=${y(l) + 20}>${clip(l.replace(/^(committee|task) /, ""), narrow ? 13 : 20)}</text>`)}
      ${t.answer && inWindow(t.answer, t.answer) ? svg`<line class="answer" x1=${x(t.answer)} x2=${x(t.answer)} y1=${top - 6} y2=${height}></line>` : nothing}
      ${t.spans.filter((s) => inWindow(s.from, s.to)).map((s) => spanShape(s, clampX, y, pick, key, hover))}
      ${t.marks.filter((m) => inWindow(m.at, m.at)).map((m) => markShape(m, x, y, pick, hover))}
    </svg>`}
    ${tooltip(t, x, y, width)}
  </div>
  ${miniMap(t, width, left, from, to, zoom)}
  <p class="legend" aria-hidden="true">${legend.map(([kind, words]) => html`<span><i class="k ${kind}"></i>${words}</span>`)}</p>`;
}

const legend = [["read", "reads the prompt"], ["model", "writes"], ["tool", "tool"], ["memory", "memory"], ["wait", "waiting for you"], ["critic", "grades"], ["denied", "denied or failed"], ["audit", "in the audit log"]];

const clip = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);

function spanShape(s, x, y, pick, key, hover) {
  const thin = s.kind === "state" || s.kind === "persona";
  const x1 = x(s.from);
  const w = Math.max(3, x(s.to) - x1);
  const top = y(s.lane) + (thin ? 24 : 7);
  const h = thin ? 4 : 17;
  const label = `${s.title}, ${s.lane}, ${seconds(s.to - s.from)}`;
  const split = s.first ? x(s.first) : 0;
  return svg`<g class="span ${s.kind} ${s.open ? "open" : ""}" tabindex="0" role="button" aria-label=${label} @click=${pick(s.result ?? s.event)} @keydown=${key(s.result ?? s.event)} @mouseenter=${hover(s)} @focus=${hover(s)}>
    <rect x=${x1} y=${top} width=${w} height=${h} rx="3"></rect>
    ${split ? svg`<rect class="reading" x=${x1} y=${top} width=${Math.max(2, split - x1)} height=${h} rx="3"></rect><line class="first" x1=${split} x2=${split} y1=${top - 3} y2=${top + h + 3}></line>` : nothing}
  </g>${!thin && x1 + w - (split || x1) > 60 ? svg`<text class="in" x=${(split || x1) + 6} y=${top + 12.500}>${clip(s.title, Math.floor((x1 + w - (split || x1) - 10) / 6.500))}</text>` : nothing}`;
}

function markShape(m, x, y, pick, hover) {
  const cx = x(m.at);
  const cy = y(m.lane) + 15;
  if (m.kind === "audit") return svg`<path class="mark audit" d="M${cx - 3.500} ${cy - 5}h7v6l-3.500 3.500-3.500-3.500z" @click=${pick(m.event)} @mouseenter=${hover(m)}></path>`;
  if (m.kind === "answer") return svg`<path class="mark answer" d="M${cx - 5} ${cy}l5-6 5 6-5 6z" @click=${pick(m.event)} @mouseenter=${hover(m)}></path>`;
  return svg`<circle class="mark" cx=${cx} cy=${cy} r="3.500" @click=${pick(m.event)} @mouseenter=${hover(m)}></circle>`;
}

function tooltip(t, x, y, width) {
  const h = shown.hover;
  if (!h || !t.lanes.includes(h.lane)) return nothing;
  const ev = h.result ?? h.event;
  const at = h.from ?? h.at;
  const px = Math.min(Math.max(8, x(at)), width - 250);
  return html`<div class="tip" .style=${`left:${Math.round(px)}px;top:${y(h.lane) + laneHeight}px`}>
    <b>${visible(h.title)}</b>${h.from ? html` <span>${seconds(h.to - h.from)}</span>` : nothing}
    ${h.first ? html`<span class="row">first token after ${seconds(h.first - h.from)}</span>` : nothing}
    ${h.note ? html`<span class="row">${h.note}</span>` : nothing}
    <span class="row"><code>${visible(ev.subject)}</code></span>
    <span class="row quiet">${ev.seq ? `sequence ${ev.seq}` : "not stored"}, ${count(size(ev), "byte")}, +${seconds(at - t.begin) || "0"}</span>
  </div>`;
}

function miniMap(t, width, left, from, to, zoom) {
  const w = width - left - 14;
  const x = (at) => left + ((at - t.begin) / (t.end - t.begin)) * w;
  const at = (e) => t.begin + Math.min(1, Math.max(0, (e.offsetX - left) / w)) * (t.end - t.begin);
  const down = (e) => {
    shown.brush = at(e);
    e.currentTarget.setPointerCapture(e.pointerId);
  };
  const move = (e) => {
    if (shown.brush === null) return;
    const b = at(e);
    if (Math.abs(b - shown.brush) > (t.end - t.begin) / 100) shown.window = [Math.min(shown.brush, b), Math.max(shown.brush, b)];
    store.changed();
  };
  const up = () => (shown.brush = null);
  return html`<div class="minimap">
    ${svg`<svg width=${width} height="34" viewBox="0 0 ${width} 34" aria-hidden="true" @pointerdown=${down} @pointermove=${move} @pointerup=${up}>
      <rect class="back" x=${left} y="2" width=${w} height="30" rx="4"></rect>
      ${t.spans.map((s) => svg`<rect class="span ${s.kind}" x=${x(s.from)} y=${5 + (t.lanes.indexOf(s.lane) / t.lanes.length) * 24} width=${Math.max(1.500, x(s.to) - x(s.from))} height="2.500"></rect>`)}
      ${shown.window ? svg`<rect class="brush" x=${x(from)} y="2" width=${Math.max(4, x(to) - x(from))} height="30" rx="4"></rect>` : nothing}
    </svg>`}
    <div class="zoom"><button type="button" class="ghost" aria-label="Zoom in" @click=${() => zoom(0.5)}>+</button><button type="button" class="ghost" aria-label="Zoom out" @click=${() => zoom(2)}>−</button>${shown.window ? html`<button type="button" class="ghost" @click=${() => ((shown.window = null), store.changed())}>All</button>` : nothing}</div>
  </div>`;
}

// drawn measures the width of the waterfall.
export function drawn() {
  const e = document.querySelector(".waterfall .measure");
  const w = e?.clientWidth ?? 0;
  if (w && Math.abs(w - shown.width) > 1) {
    shown.width = w;
    store.changed();
  }
}

// tree shows the run by cause: the agents with their model calls, and below each the calls that it made.
function tree(r) {
  const t = buildTrace(r);
  const agents = t.lanes.filter((l) => t.spans.some((s) => s.lane === l && ["model", "state", "persona", "task"].includes(s.kind)));
  const calls = t.spans.filter((s) => s.call);
  const item = (s) => html`<li><button type="button" class="node ${s.kind}" @click=${() => ((shown.picked = s.result ?? s.event), store.changed())}><span class="dot ${s.kind}"></span>${visible(s.title)} <span class="quiet">${seconds(s.to - s.from)}${s.note ? `, ${s.note}` : ""}</span></button></li>`;
  return html`<ul class="tree">
    <li><b>you</b> <span class="quiet">${visible(clip(store.questionOf(r), 90))}</span><ul>
      ${agents.map((a) => html`<li><b>${a}</b><ul>
        ${t.spans.filter((s) => s.lane === a && s.kind !== "state").map(item)}
        ${calls.filter((s) => (s.caller ?? "").split(".").join(" ") === a || (s.caller ?? "").split(".")[0] === a).map((s) => html`<li><button type="button" class="node ${s.kind}" @click=${() => ((shown.picked = s.result ?? s.event), store.changed())}><span class="dot ${s.kind}"></span>${s.title} <span class="quiet">${seconds(s.to - s.from)}</span></button>
          <ul>${t.marks.filter((m) => m.kind === "audit" && (m.event.payload?.call_id === s.call)).map((m) => html`<li><button type="button" class="node" @click=${() => ((shown.picked = m.event), store.changed())}><span class="dot audit"></span>broker: ${m.title}</button></li>`)}</ul></li>`)}
      </ul></li>`)}
      ${["you", "memory", "critic", "reward"].map((l) => {
        const own = [...t.spans.filter((s) => s.lane === l && !s.call), ...t.marks.filter((m) => m.lane === l && m.title !== "question")];
        return own.length ? html`<li><b>${l}</b><ul>${own.map((o) => html`<li><button type="button" class="node" @click=${() => ((shown.picked = o.result ?? o.event), store.changed())}><span class="dot ${o.kind}"></span>${visible(o.title)}</button></li>`)}</ul></li>` : nothing;
      })}
    </ul></li>
  </ul>`;
}

function log(r) {
  const words = shown.filter.toLowerCase();
  const rows = r.events.filter((ev) => !words || (ev.subject + " " + (ev.from ?? "") + " " + JSON.stringify(ev.payload)).toLowerCase().includes(words));
  return html`<div class="search"><label class="sr" for="log-filter">Filter the events</label><input id="log-filter" type="search" placeholder="Filter by subject, actor or text" .value=${shown.filter} @input=${(e) => ((shown.filter = e.target.value), store.changed())} /></div>
  <div class="table" tabindex="0" role="region" aria-label="Events"><table class="wide log-table"><thead><tr><th scope="col" class="num">After</th><th scope="col" class="num">Sequence</th><th scope="col">Author</th><th scope="col">Subject</th><th scope="col">Content</th><th scope="col" class="num">Bytes</th></tr></thead><tbody>
    ${rows.slice(0, 1000).map((ev) => html`<tr class=${shown.picked === ev ? "picked" : ""}><td class="num">${seconds(Date.parse(ev.time) - r.began) || "0"}</td><td class="num">${ev.seq ?? ""}</td><td>${ev.from ?? "you"}</td><td><button type="button" class="link" @click=${() => ((shown.picked = ev), store.changed())}>${visible(ev.subject)}</button></td><td class="quiet preview">${preview(ev)}</td><td class="num">${size(ev)}</td></tr>`)}
  </tbody></table></div>${r.dropped ? html`<p class="quiet">${count(r.dropped, "event")} more than this page keeps; the JSON of conclave tap has all.</p>` : nothing}`;
}
