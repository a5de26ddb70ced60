// The knowledge graph as a picture: what is, and what was at a time.

import { html, nothing, svg } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { empty } from "../parts.js";
import { visible } from "../format.js";

const shown = { relations: null, at: 1, tense: "both", picked: "" };

export async function loadGraph() {
  shown.relations = (await api.get("/memory/graph?limit=200")).relations ?? [];
}

// layout places the names by a few hundred steps of springs; it is the same for the same relations.
function layout(names, edges, w, h) {
  const [length, force] = w > 500 ? [230, 90000] : [130, 70000]; // of an edge, and between any two names
  const at = new Map(names.map((n, i) => [n, { x: w / 2 + Math.cos((i * 2 * Math.PI) / names.length) * w * 0.32, y: h / 2 + Math.sin((i * 2 * Math.PI) / names.length) * h * 0.36 }]));
  for (let step = 0; step < 220; step++) {
    const k = 0.06 * (1 - step / 220);
    for (const a of names) {
      const p = at.get(a);
      for (const b of names) {
        if (a === b) continue;
        const q = at.get(b);
        const dx = p.x - q.x;
        const dy = p.y - q.y;
        const d = Math.hypot(dx, dy) || 1;
        const push = Math.min(60, (force / (d * d)) * k * 4);
        p.x += (dx / d) * push;
        p.y += (dy / d) * push;
      }
      p.x += (w / 2 - p.x) * k * 0.1;
      p.y += (h / 2 - p.y) * k * 0.5;
    }
    for (const e of edges) {
      const p = at.get(e.subject);
      const q = at.get(e.object);
      const dx = q.x - p.x;
      const dy = q.y - p.y;
      const d = Math.hypot(dx, dy) || 1;
      const pull = (d - length) * k * 0.5;
      p.x += (dx / d) * pull;
      p.y += (dy / d) * pull;
      q.x -= (dx / d) * pull;
      q.y -= (dy / d) * pull;
    }
    for (const p of at.values()) {
      p.x = Math.min(w - 80, Math.max(80, p.x));
      p.y = Math.min(h - 30, Math.max(30, p.y));
    }
  }
  return at;
}

const widthOf = (name) => Math.min(90, 14 + name.length * 3.700); // half of it

let cached = { key: "", at: new Map() };

export function graphView() {
  const all = shown.relations;
  if (!all) return html`<p class="quiet">Loading.</p>`;
  if (!all.length) return empty("memory", "No relation is known yet", "Memory reads relations from what you say: who lives where, what belongs to whom, what is and what was.", html`<a class="button primary" href="/chat">Say: My sister Ada lives in Lisbon.</a>`);
  const times = all.map((r) => Date.parse(r.said)).sort((a, b) => a - b);
  const until = times[0] + (times.at(-1) - times[0]) * shown.at + 1;
  const edges = all.filter((r) => Date.parse(r.said) <= until && (shown.tense === "both" || r.tense === shown.tense));
  const names = [...new Set(edges.flatMap((r) => [r.subject, r.object]))].slice(0, 60);
  const known = new Set(names);
  const drawn = edges.filter((e) => known.has(e.subject) && known.has(e.object));
  const w = innerWidth > 720 ? 900 : 360;
  const h = Math.max(320, Math.min(w === 900 ? 640 : 900, names.length * (w === 900 ? 42 : 60)));
  const key = JSON.stringify([names, drawn.map((e) => e.id), w, h]);
  if (cached.key !== key) cached = { key, at: layout(names, drawn, w, h) };
  const at = cached.at;
  return html`
    <div class="bar graph-bar">
      <label>Show <select aria-label="Tense" @change=${(e) => ((shown.tense = e.target.value), store.changed())}><option value="both">what is and what was</option><option value="is">what is</option><option value="was">what was</option></select></label>
      <label class="slider">as said until <input type="range" min="0" max="1" step="0.01" .value=${String(shown.at)} aria-label="As said until" @input=${(e) => ((shown.at = Number(e.target.value)), store.changed())} /><output>${new Date(until).toLocaleString()}</output></label>
    </div>
    <div class="graph" tabindex="0" role="group" aria-label="Knowledge graph with ${names.length} names and ${drawn.length} relations">${svg`<svg viewBox="0 0 ${w} ${h}" role="presentation">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"></path></marker></defs>
      ${drawn.map((e) => {
        const a = at.get(e.subject);
        const b = at.get(e.object);
        const d = Math.hypot(b.x - a.x, b.y - a.y) || 1;
        const edge = Math.min((widthOf(e.object) + 3) / Math.abs((b.x - a.x) / d || 0.001), 17 / Math.abs((b.y - a.y) / d || 0.001));
        const x2 = b.x - ((b.x - a.x) / d) * edge;
        const y2 = b.y - ((b.y - a.y) / d) * edge;
        const faded = shown.picked && shown.picked !== e.subject && shown.picked !== e.object;
        return svg`<g class="relation ${e.tense} ${e.trust} ${faded ? "faded" : ""}"><line x1=${a.x} y1=${a.y} x2=${x2} y2=${y2} marker-end="url(#arrow)"></line><text x=${(a.x + b.x) / 2} y=${(a.y + b.y) / 2 - 5} text-anchor="middle">${visible(e.predicate)}${e.tense === "was" ? " (was)" : ""}</text></g>`;
      })}
      ${names.map((n) => {
        const p = at.get(n);
        const half = widthOf(n);
        return svg`<g class="name ${shown.picked === n ? "picked" : ""}" tabindex="0" role="button" aria-label=${n} @click=${() => ((shown.picked = shown.picked === n ? "" : n), store.changed())} @keydown=${(e) => e.key === "Enter" && ((shown.picked = n), store.changed())}><rect x=${p.x - half} y=${p.y - 14} width=${half * 2} height="28" rx="14"></rect><text x=${p.x} y=${p.y + 4.500} text-anchor="middle">${visible(n.length > 22 ? n.slice(0, 21) + "…" : n)}</text></g>`;
      })}
    </svg>`}</div>
    <h2>Relations${shown.picked ? html` of ${visible(shown.picked)}` : nothing}</h2>
    <div class="table" tabindex="0" role="region" aria-label="Relations"><table class="wide"><thead><tr><th scope="col">Relation</th><th scope="col">Tense</th><th scope="col">Since</th><th scope="col">Said</th><th scope="col">Trust</th></tr></thead><tbody>
      ${drawn.filter((e) => !shown.picked || e.subject === shown.picked || e.object === shown.picked).map((e) => html`<tr><td><a href="/memory/${e.entry_id}">${visible(`${e.subject} ${e.predicate} ${e.object}`)}</a></td><td>${e.tense}</td><td>${e.from ?? ""}${e.until ? ` until ${e.until}` : ""}</td><td>${new Date(e.said).toLocaleDateString()}</td><td>${e.trust}</td></tr>`)}
    </tbody></table></div>${all.length > drawn.length ? html`<p class="quiet">${all.length - drawn.length} relations are hidden by the filter.</p>` : nothing}`;
}
