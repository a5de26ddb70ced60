// Approvals: calls that wait for the user, with the exact arguments, why each asks, and what happens on yes.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, clientLabel, codeView, empty, guard, loader } from "../parts.js";
import { age, clientOf, json, seconds, visible } from "../format.js";

const rules = loader(() => api.get("/approvals/rules"));
const past = loader(() => api.get("/approvals?all=1"));

let read = 0; // the newest decision that past and rules have

export function load() {
  read = store.newest("approval.decision.");
  store.loadApprovals();
  rules.load();
  past.load();
}

// Buttons that approve work a second after their request appeared or moved, and only when its exact arguments are known: a click or
// key that was meant for something else must not approve.
const tooFast = 1000;
const positions = new Map(); // by id: {top, since}

const isArmed = (a) => a.args_text !== undefined && Date.now() - (positions.get(a.id)?.since ?? Date.now()) >= tooFast;

// measure notes where the requests are on the screen. With moved, one that is elsewhere than before waits again; the user's own
// scrolling does not count.
function measure(moved) {
  for (const e of document.querySelectorAll("[data-approval]")) {
    const top = e.getBoundingClientRect().top;
    const known = positions.get(e.dataset.approval);
    if (!known || (moved && Math.abs(known.top - top) > 4)) {
      positions.set(e.dataset.approval, { top, since: Date.now() });
      setTimeout(store.changed, tooFast + 20);
    } else known.top = top;
  }
  for (const id of positions.keys()) if (!store.state.approvals.has(id)) positions.delete(id);
}
addEventListener("scroll", () => measure(false), true);

// confirmAlways asks with the rule that an approval for every session writes.
const confirmAlways = (a) =>
  store.confirm({ title: "Always allow this?", text: `Every call of ${a.tool} to ${a.sinks.map(visible).join(" and ")} will run without asking, in every session, until you revoke it under Approvals.`, action: "Always allow", danger: true });

async function decide(a, approve, remember = "") {
  if (approve && !isArmed(a)) return;
  if (remember === "always" && !(await confirmAlways(a))) return;
  await act(async () => {
    const done = await api.post("/approvals/" + a.id, { approve, remember });
    store.notify(approve ? `${a.tool} was approved${done.remember ? `, remembered for ${done.remember === "always" ? "every session" : "this session"}` : ""}.` : a.form ? "The question was declined." : `${a.tool} was denied. Nothing was run.`);
    store.state.approvals.delete(a.id);
  });
  load();
}

export function view() {
  const now = store.newest("approval.decision.");
  if (now > read && !past.loading) {
    read = now;
    queueMicrotask(() => (rules.load(), past.load()));
  }
  const all = [...store.state.approvals.values()];
  const decided = (past.value?.approvals ?? []).filter((a) => a.state !== "pending").slice(0, 20);
  return html`<div class="page"><h1>Approvals</h1>
    ${all.length ? all.map((a) => card(a)) : empty("approvals", "No call waits for you", "When a call could send or change something that the words of your question do not cover, it appears here and in the chat. Nothing runs until you decide, and a request that expires counts as no answer, not as a denial by you.")}
    ${rules.value?.rules?.length ? html`<h2>Remembered decisions</h2><div class="table" tabindex="0" role="region" aria-label="Remembered decisions"><table class="wide"><thead><tr><th scope="col">Tool</th><th scope="col">Destination</th><th scope="col">Where</th><th scope="col">Since</th><th scope="col"><span class="sr">Action</span></th></tr></thead><tbody>
      ${rules.value.rules.map((r) => html`<tr><td>${r.tool}</td><td><code>${r.sinks.map(visible).join(", ")}</code></td><td>${r.session_id ? html`<a href="/chat/${r.session_id}">one session</a>` : "every session"}</td><td class="nowrap">${age(r.made)}</td><td><button type="button" @click=${() => act(() => api.del("/approvals/rules/" + r.id)).then(load)}>Revoke</button></td></tr>`)}</tbody></table></div>` : nothing}
    ${decided.length ? html`<h2>Decided</h2><div class="table" tabindex="0" role="region" aria-label="Decided"><table class="wide"><thead><tr><th scope="col">Call</th><th scope="col">Outcome</th><th scope="col">By</th><th scope="col">When</th></tr></thead><tbody>
      ${decided.map((a) => html`<tr><td>${a.tool} <code>${visible((a.sinks ?? []).join(", ") || JSON.stringify(a.args)).slice(0, 120)}</code></td><td><span class="state ${a.state === "approved" ? "good" : a.state === "denied" ? "bad" : ""}">${a.state}</span></td><td>${a.by ?? ""}</td><td class="nowrap">${age(a.decided ?? a.asked)}</td></tr>`)}</tbody></table></div>` : nothing}
  </div>`;
}

// destination shows an address in full: the host large, as the browser would resolve it, and invisible characters as their code.
function destination(a, sink) {
  let host = "";
  try {
    host = new URL(sink).host; // ASCII: look-alike letters become punycode
  } catch {
    host = "";
  }
  return html`<div class="sink">${host ? html`<b class="host-name">${host}</b>` : nothing}<code>${marked(a, sink)}</code></div>`;
}

// marked is a text in which the look-alike letters of hosts are followed by their code.
function marked(a, text) {
  let out = visible(text);
  for (const h of a.hosts ?? []) out = out.replaceAll(h.written, h.written.replace(/[^\x00-\x7f]/gu, (c) => `${c}⟦U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`));
  return out;
}

// card shows one request; inChat is its form below a question. It is drawn once a second, so that the focus stays.
export function card(a, inChat = false) {
  return guard([a, a.state, isArmed(a), Math.floor(Date.now() / 1000)], () => draw(a, inChat, !isArmed(a), clientOf(a.session_id)));
}

// answer sends the values of the fields of a question to the server that asks.
async function answer(a, event) {
  event.preventDefault();
  if (!isArmed(a)) return;
  const values = {};
  for (const f of a.form.fields ?? []) {
    const input = event.target.elements["field " + f.name];
    if (f.type === "boolean") values[f.name] = input.checked;
    else if (input.value !== "") values[f.name] = f.type === "string" ? input.value : Number(input.value);
  }
  await act(async () => {
    await api.post("/approvals/" + a.id, { approve: true, values });
    store.notify(`Your answer was sent to ${a.form.from}.`);
    store.state.approvals.delete(a.id);
  });
  load();
}

// fieldOf draws a field of a question. No field hides what is typed: a server must not ask for a password.
function fieldOf(f) {
  const name = "field " + f.name;
  const input = f.choices?.length
    ? html`<select name=${name} ?required=${f.required}>${f.required ? nothing : html`<option value=""></option>`}${f.choices.map((c) => html`<option value=${c}>${visible(c)}</option>`)}</select>`
    : f.type === "boolean"
      ? html`<input type="checkbox" name=${name} />`
      : f.type === "string"
        ? html`<input type="text" name=${name} autocomplete="off" ?required=${f.required} />`
        : html`<input type="number" name=${name} step=${f.type === "integer" ? "1" : "any"} ?required=${f.required} />`;
  return html`<label class="field">${visible(f.title || f.name)}${f.required ? " (required)" : ""} ${f.description ? html`<span class="quiet">${visible(f.description)}</span>` : nothing} ${input}</label>`;
}

// drawQuestion shows the question of a running call to the user. Its text is that of the server.
function drawQuestion(a, inChat, waits) {
  const leftMs = Date.parse(a.expires) - Date.now();
  return html`<article class="approval question" aria-label="Question of ${a.form.from}" data-approval=${a.id}>
    <h2>${icon("lock")}<span><b>${a.form.from}</b> asks you, during a call of <b>${a.tool}</b></span> ${clientLabel(a.session_id)}</h2>
    <div class="untrusted"><b>Text of the server</b> <span class="label">untrusted</span><p>${visible(a.form.message)}</p></div>
    <p class="quiet">Only this server gets your answer, and what it does with it is not controlled. <b>Never enter a password or a key.</b></p>
    <form @submit=${(e) => answer(a, e)}>
      ${(a.form.fields ?? []).map(fieldOf)}
      <div class="actions">
        <button type="button" class="primary" ?data-first=${!inChat} @click=${() => decide(a, false)}>Decline</button>
        <button type="submit" ?disabled=${waits}>Send the answer</button>
        <span class="grow"></span>
        ${inChat ? html`<a href="/approvals">Approvals</a>` : a.query_id ? html`<a href="/runs/${a.query_id}">run</a>` : nothing}
      </div>
    </form>
    <div class="expiry"><span class="quiet">${leftMs > 0 ? `expires in ${seconds(Math.ceil(leftMs / 1000) * 1000)}` : "expired"}</span></div>
  </article>`;
}

function draw(a, inChat, waits, client) {
  if (a.form) return drawQuestion(a, inChat, waits);
  const total = Date.parse(a.expires) - Date.parse(a.asked);
  const leftMs = Date.parse(a.expires) - Date.now();
  return html`<article class="approval" aria-label="Approval of ${a.tool}" data-approval=${a.id}>
    <h2>${icon("lock")}<span><b>${a.caller}</b> wants to call <b>${a.tool}</b></span> ${clientLabel(a.session_id)}</h2>
    ${(a.sinks ?? []).map((s) => destination(a, s))}
    ${a.hosts?.length ? html`<p class="failed">${icon("globe")} Look-alike host: ${a.hosts.map((h) => html`<code>${visible(h.written)}</code> is really <code>${h.punycode}</code> `)}</p>` : nothing}
    <p><b>Why it asks.</b> ${marked(a, a.reason)} <span class="quiet">Layer <code>${a.layer}</code>, rule <code>${a.rule}</code>.</span></p>
    ${a.args_text === undefined ? html`<p class="quiet">Loading the exact arguments.</p>` : codeView(marked(a, json(a.args_text)), "exact arguments")}
    ${a.preview ? codeView(visible(a.preview), "what it would do") : nothing}
    ${a.taint?.length ? html`<div class="untrusted"><b>Untrusted content in this session</b> <span class="label">untrusted</span><ul>${a.taint.map((t) => html`<li>${t.query_id ? html`<a href="/runs/${t.query_id}">${t.tool}</a>` : t.tool} read <code>${visible(t.from ?? "")}</code>, ${age(t.time)}${t.flags?.length ? html`, signs of injection: ${t.flags.join(", ")}` : nothing}</li>`)}</ul></div>` : nothing}
    <p><b>What ${client ? "the question" : "your question"} permits.</b> ${a.grants?.length ? html`${a.grants.map((g) => html`<q>${visible(g.clause)}</q> permits ${(g.acts ?? []).join(" or ")}${g.to?.length ? ` to ${g.to.map(visible).join(", ")}` : ""}. `)}None of it covers this call.` : client ? `Nothing: ${client} asked, and the words of a program permit no act.` : "Nothing of this kind: the words of your question name no such act."}</p>
    <p class="quiet"><b>On yes</b> this exact call runs once and its result goes to the model. <b>On no</b> the model is told that you said no, and continues without it.</p>
    <div class="actions">
      <button type="button" class="primary" ?data-first=${!inChat} @click=${() => decide(a, false)}>Deny</button>
      <button type="button" ?disabled=${waits} @click=${() => decide(a, true)}>Approve once</button>
      ${a.sinks?.length ? html`<button type="button" ?disabled=${waits} title="Calls of ${a.tool} to the same destination in this session" @click=${() => decide(a, true, "session")}>For this session</button>
      <button type="button" ?disabled=${waits} title="Calls of ${a.tool} to the same destination in every session, until you revoke it" @click=${() => decide(a, true, "always")}>Always for this destination</button>` : nothing}
      <span class="grow"></span>
      ${inChat ? html`<a href="/approvals">Approvals</a>` : a.query_id ? html`<a href="/runs/${a.query_id}">run</a>` : nothing}
    </div>
    <div class="expiry"><progress max=${total} value=${Math.max(0, leftMs)} aria-label="Time left"></progress><span class="quiet">${leftMs > 0 ? `expires in ${seconds(Math.ceil(leftMs / 1000) * 1000)}` : "expired"}</span></div>
  </article>`;
}

let focused = "";

// drawn notes where the requests are, and focuses Deny of the first one, once. In the chat it only measures.
export function drawn(path, inChat = false) {
  measure(true);
  if (inChat) return;
  const first = [...store.state.approvals.keys()][0];
  if (!first || first === focused) return;
  focused = first;
  document.querySelector("button[data-first]")?.focus();
}
