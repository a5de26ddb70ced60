// Bus: a fixed map of the actors and of the messages between them, counted from the event log, with latency where an event has it.

import { html, nothing, svg } from "../lit-html.js";
import * as store from "../store.js";
import { empty, loading } from "../parts.js";
import { clock, count, seconds, visible } from "../format.js";

const shown = { query: "" };

// places and bends are for a wide screen, narrow for a phone: [x, y] of each place, and how much a wire is bent that would cross one.
const wide = {
  places: { you: [60, 190], gateway: [240, 190], agents: [430, 100], model: [430, 300], broker: [640, 100], tools: [840, 20], memory: [840, 180], critic: [640, 300], reward: [840, 300], audit: [640, -20] },
  bends: { "agents memory": 0.16, "critic gateway": 0.1, "broker gateway": -0.14, "agents critic": -0.08 },
};
const narrow = {
  places: { you: [150, 24], gateway: [150, 104], audit: [312, 104], agents: [50, 200], broker: [308, 200], memory: [214, 310], tools: [312, 310], model: [50, 400], critic: [150, 500], reward: [300, 500] },
  bends: {},
};
const agentNames = ["generator", "respondent_b", "committee", "orchestrator"];

// edgesOf maps an event to the messages that it shows: [from, to, milliseconds].
function edgesOf(ev) {
  const [kind, action] = ev.subject.split(".");
  const p = ev.payload ?? {};
  const memory = /memory|knowledge/.test(p.tool ?? "");
  switch (kind + "." + action) {
    case "response.generation":
      return [["agents", "gateway", p.usage?.ms], ["gateway", "you"], ["agents", "critic"]];
    case "agent.state":
      return p.to === "RECEIVING" ? [["you", "gateway"], ["gateway", "agents"]] : p.to === "GENERATING" ? [["agents", "model"]] : [];
    case "tool.request":
      return [["agents", "broker"], ["broker", "audit"], ["broker", memory ? "memory" : "tools"]];
    case "tool.result":
      return [[memory ? "memory" : "tools", "broker", p.ms], ["broker", "audit"], ["broker", "agents"]];
    case "approval.request":
      return [["broker", "gateway"], ["gateway", "you"], ["broker", "audit"]];
    case "approval.decision":
      return [["you", "gateway"], ["gateway", "broker"], ["broker", "audit"]];
    case "memory.stored":
      return [["agents", "memory"]];
    case "memory.annotated":
      return [["critic", "memory"]];
    case "critique.result":
      return [["critic", "model", p.ms], ["critic", "gateway"]];
    case "user.feedback":
      return [["you", "gateway"], ["gateway", "reward"]];
    case "reward.event":
      return [["reward", "memory"]];
    default:
      return [];
  }
}

const median = (list) => (list.length ? list.sort((a, b) => a - b)[Math.floor(list.length / 2)] : null);

export function view() {
  const all = store.state.log;
  const events = shown.query ? all.filter((e) => e.query === shown.query) : all;
  const edges = new Map();
  const now = Date.now();
  for (const ev of events) {
    for (const [from, to, ms] of edgesOf(ev)) {
      const key = [from, to].sort().join(" ");
      const e = edges.get(key) ?? { ends: [from, to].sort(), n: 0, ms: [], at: 0 };
      e.n++;
      if (ms) e.ms.push(ms);
      e.at = Math.max(e.at, Date.parse(ev.time));
      edges.set(key, e);
    }
  }
  const active = new Map();
  for (const ev of events) {
    const name = agentNames.includes(ev.from) ? "agents" : ev.from === "user" ? "you" : ev.from;
    active.set(name, (active.get(name) ?? 0) + 1);
  }
  const { places, bends } = innerWidth > 720 ? wide : narrow;
  const half = innerWidth > 720 ? 54 : 44; // of the width of a place
  const runs = [...store.state.runs.values()].filter((r) => r.query).sort((a, b) => b.began - a.began).slice(0, 50);
  return html`<div class="page wide-page"><h1>Bus</h1>
    <div class="bar"><label>Messages of <select aria-label="Filter by question" @change=${(e) => ((shown.query = e.target.value), store.changed())}><option value="">every question</option>${runs.map((r) => html`<option value=${r.id} ?selected=${shown.query === r.id}>${visible(r.query).slice(0, 70)}</option>`)}</select></label>
      <span class="quiet">${store.state.loading.has("events") ? "" : `${count(events.length, "stored event")}${all.length ? `, since ${clock(all[0].time)}` : ""}. Tokens are live only and are not counted.`}</span></div>
    ${events.length
      ? html`<div class="busmap" tabindex="0" role="group" aria-label=${[...edges.values()].map((e) => `${e.ends.join(" and ")}: ${e.n} messages`).join("; ")}>${svg`<svg viewBox=${innerWidth > 720 ? "0 -50 900 385" : "0 0 360 526"} role="presentation">
          ${[...edges.values()].map((e) => {
            const [a, b] = e.ends.map((n) => places[n]);
            const ms = median(e.ms);
            const bend = bends[e.ends.join(" ")] ?? 0;
            const cx = (a[0] + b[0]) / 2 - (b[1] - a[1]) * bend;
            const cy = (a[1] + b[1]) / 2 + (b[0] - a[0]) * bend;
            const x = (a[0] + 2 * cx + b[0]) / 4;
            const y = (a[1] + 2 * cy + b[1]) / 4;
            const room = ms ? 26 : 8 + String(e.n).length * 4;
            return svg`<g class="wire ${now - e.at < 1500 ? "lit" : ""}"><path d="M${a[0]} ${a[1]}Q${cx} ${cy} ${b[0]} ${b[1]}" stroke-width=${1 + Math.min(4, Math.log2(1 + e.n) * 0.5)}></path><rect x=${x - room} y=${y - 10} width=${room * 2} height=${ms ? 30 : 18} rx="5"></rect><text x=${x} y=${y + 3} text-anchor="middle">${e.n}</text>${ms ? svg`<text class="ms" x=${x} y=${y + 15} text-anchor="middle">${seconds(ms)}</text>` : nothing}</g>`;
          })}
          ${Object.entries(places).map(([name, [x, y]]) => svg`<g class="place ${active.has(name) || ["you", "gateway", "model", "tools", "audit"].includes(name) ? "" : "idle"}"><rect x=${x - half} y=${y - 20} width=${half * 2} height="40" rx="10"></rect><text x=${x} y=${y + (active.get(name) ? -1 : 4)} text-anchor="middle">${name === "audit" ? "audit log" : name}</text>${active.get(name) ? svg`<text class="ms" x=${x} y=${y + 13} text-anchor="middle">${active.get(name)} events</text>` : nothing}</g>`)}
        </svg>`}</div>`
      : loading("events") ?? empty("bus", "No message yet", "Ask a question: the map shows which actors talk, how often and how fast. Agents reach tools only through the broker.", html`<a class="button primary" href="/chat">Ask a question</a>`)}
    <h2>Latest events</h2>
    <div class="table" tabindex="0" role="region" aria-label="Latest events"><table class="wide log-table"><thead><tr><th scope="col">Time</th><th scope="col" class="num">Sequence</th><th scope="col">Author</th><th scope="col">Subject</th><th scope="col">Question</th></tr></thead><tbody>
      ${events.slice(-40).reverse().map((ev) => html`<tr><td>${clock(ev.time)}</td><td class="num" data-label="sequence">${ev.seq}</td><td>${ev.from ?? ""}</td><td><code>${visible(ev.subject)}</code></td><td>${ev.query ? html`<a href="/runs/${ev.query}">${visible(store.state.runs.get(ev.query)?.query || ev.query).slice(0, 50)}</a>` : nothing}</td></tr>`)}
    </tbody></table></div>
  </div>`;
}
