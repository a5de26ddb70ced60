// Decisions: what the broker allowed, denied and asked about, from the event log.

import { html, nothing } from "../lit-html.js";
import * as store from "../store.js";
import { empty, loading, trustLabel } from "../parts.js";
import { clock, count, json, seconds } from "../format.js";

const shown = { only: "" };

// decisionsOf returns the decisions in the events, newest first.
function decisionsOf(events) {
  const calls = new Map();
  const asked = new Map(); // call by approval
  for (const ev of events) {
    const p = ev.payload ?? {};
    const approval = ev.subject.startsWith("approval.") ? ev.subject.split(".")[2] : "";
    if (approval && p.call_id) asked.set(approval, p.call_id);
    const id = p.call_id ?? asked.get(approval);
    if (!id) continue;
    const c = calls.get(id) ?? { id, tool: p.tool, caller: p.caller, args: p.args, query: ev.query, at: ev.time, decision: "", outcome: "" };
    if (ev.subject.startsWith("tool.request.")) Object.assign(c, { decision: c.decision || "allowed", args: p.args, caller: p.caller });
    else if (ev.subject.startsWith("approval.request.")) Object.assign(c, { decision: "asked", layer: p.layer, rule: p.rule, reason: p.reason, args: p.args });
    else if (ev.subject.startsWith("approval.decision.")) c.decision = p.state === "approved" ? "approved by you" : p.state === "denied" ? "denied by you" : p.state;
    else if (ev.subject.startsWith("tool.result.")) {
      Object.assign(c, { ms: p.ms, labels: p.labels });
      if (p.error) {
        c.outcome = p.error.code;
        c.reason ??= p.error.text;
        if (p.error.denial) Object.assign(c, { decision: c.decision && c.decision !== "allowed" ? c.decision : "denied", layer: p.error.denial.layer, rule: p.error.denial.rule });
      } else c.outcome = "returned";
    } else continue;
    calls.set(id, c);
  }
  return [...calls.values()].reverse();
}

const tone = (d) => (d.startsWith("denied") ? "bad" : d === "allowed" || d.startsWith("approved") ? "good" : "warn");

export function view() {
  const all = decisionsOf(store.state.log);
  const list = all.filter((d) => !shown.only || tone(d.decision) === shown.only);
  return html`<div class="page wide-page"><h1>Decisions</h1>
    <div class="bar"><label>Show <select aria-label="Show" @change=${(e) => ((shown.only = e.target.value), store.changed())}><option value="">every decision</option><option value="good">what was allowed</option><option value="bad">what was denied</option><option value="warn">what waits or expired</option></select></label><span class="quiet">${store.state.loading.has("events") ? "" : `${count(list.length, "decision")} of the broker. `}The audit log has the complete record: <code>conclave audit</code>.</span></div>
    ${list.length
      ? html`<div class="table" tabindex="0" role="region" aria-label="Decisions"><table class="wide log-table"><thead><tr><th scope="col">Time</th><th scope="col">Caller</th><th scope="col">Call</th><th scope="col">Decision</th><th scope="col">Outcome</th><th scope="col">Question</th></tr></thead><tbody>
          ${list.slice(0, 300).map((d) => html`<tr><td class="num">${clock(d.at)}</td><td class="caller">${d.caller}</td><td><b>${d.tool}</b> <code class="args">${json(d.args ?? {}, 0).slice(0, 160)}</code></td><td><span class="state ${tone(d.decision)}">${d.decision}</span>${d.rule ? html`<br /><span class="quiet">${d.layer}, ${d.rule}</span>` : nothing}${d.reason && tone(d.decision) !== "good" ? html`<br /><span class="quiet">${json(d.reason)}</span>` : nothing}</td><td>${d.outcome ? html`${d.outcome} ${trustLabel(d.labels)}` : nothing}${d.ms ? html` <span class="quiet nowrap">${seconds(d.ms)}</span>` : nothing}</td><td>${d.query ? html`<a href="/runs/${d.query}">run</a>` : nothing}</td></tr>`)}
        </tbody></table></div>`
      : loading("events") ?? empty("decisions", "No decision yet", "Every tool call goes through the broker, which allows it, denies it or asks you. Each decision appears here and is in the audit log before the tool runs.", html`<a class="button primary" href="/chat">Ask: What time is it in Tokyo?</a>`)}
  </div>`;
}
