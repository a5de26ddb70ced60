// Approvals: calls that wait for the user, with the exact arguments, why each asks, and what happens on yes.

import { html, nothing } from "../lit-html.js";
import { icon } from "../icons.js";
import * as api from "../api.js";
import * as store from "../store.js";
import * as notify from "../notify.js";
import { act, clientLabel, codeView, empty, guard, loader, loading } from "../parts.js";
import { age, clientOf, count, json, seconds, visible } from "../format.js";

const rules = loader(() => api.get("/approvals/rules"));
const past = loader(() => api.get("/approvals?all=1"));

let read = 0; // the newest decision that past and rules have

export function load() {
  read = store.newest("approval.decision.");
  store.loadApprovals();
  rules.load();
  past.load();
}

// Buttons that approve work a second after their request was drawn with its exact arguments, or moved: a click or key that was meant
// for something else must not approve. Whether it is scrolled into view does not count.
const tooFast = 1000;
const positions = new Map(); // of requests that were drawn with their arguments, by id: {top, since}

const isArmed = (a) => isComplete(a) && Date.now() - (positions.get(a.id)?.since ?? Date.now()) >= tooFast;

// measure notes where the requests are on the screen that are drawn with their arguments. With moved, one that is elsewhere than
// before waits again; the user's own scrolling does not count.
function measure(moved) {
  for (const e of document.querySelectorAll("[data-approval]")) {
    if (!e.hasAttribute("data-complete")) {
      positions.delete(e.dataset.approval);
      continue;
    }
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

const notifyWords = { on: "Do not notify me any more", off: "Notify me when a call waits" };

// notifyChoice turns the notifications of this browser on or off.
export const notifyChoice = () =>
  html`${notifyWords[notify.permission()] ? html`<button type="button" class="notify" @click=${() => notify.toggle().then(store.changed)}>${notifyWords[notify.permission()]}</button> ` : notify.permission() === "denied" ? "This browser denies notifications; its settings of this page permit them. " : ""}The title of the page has the number of calls that wait.`;

export function view() {
  const now = store.newest("approval.decision.");
  if (now > read && !past.loading) {
    read = now;
    queueMicrotask(() => (rules.load(), past.load()));
  }
  const all = [...store.state.approvals.values()];
  const decided = (past.value?.approvals ?? []).filter((a) => a.state !== "pending").slice(0, 20);
  return html`<div class="page"><h1>Approvals</h1>
    ${all.length ? cards(all) : loading("approvals") ?? empty("approvals", "No call waits for you", "A call that the words of your question do not cover, and that cannot be undone, appears here and in the chat. Nothing runs until you decide, and a request that expires counts as no answer, not as a denial by you.")}
    ${rules.value?.rules?.length ? html`<h2>Remembered decisions</h2><div class="table" tabindex="0" role="region" aria-label="Remembered decisions"><table class="wide"><thead><tr><th scope="col">Tool</th><th scope="col">Destination</th><th scope="col">Where</th><th scope="col">Since</th><th scope="col"><span class="sr">Action</span></th></tr></thead><tbody>
      ${rules.value.rules.map((r) => html`<tr><td>${r.tool}</td><td><code>${r.sinks.map(visible).join(", ")}</code></td><td>${r.session_id ? html`<a href="/chat/${r.session_id}">one session</a>` : "every session"}</td><td class="nowrap">${age(r.made)}</td><td><button type="button" @click=${() => act(() => api.del("/approvals/rules/" + r.id)).then(load)}>Revoke</button></td></tr>`)}</tbody></table></div>` : nothing}
    ${decided.length ? html`<h2>Decided</h2><div class="table" tabindex="0" role="region" aria-label="Decided"><table class="wide"><thead><tr><th scope="col">Call</th><th scope="col">Outcome</th><th scope="col">By</th><th scope="col">When</th></tr></thead><tbody>
      ${decided.map((a) => html`<tr><td>${a.tool} <code>${visible((a.sinks ?? []).join(", ") || JSON.stringify(a.args)).slice(0, 120)}</code></td><td><span class="state ${a.state === "approved" ? "good" : a.state === "denied" ? "bad" : ""}">${a.state}</span></td><td>${a.by ?? ""}</td><td class="nowrap">${age(a.decided ?? a.asked)}</td></tr>`)}</tbody></table></div>` : nothing}
    <p class="quiet">${notifyChoice()}</p>
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

// cards shows requests; inChat is their form below a question. Calls of one tool, caller and question are on one card when the
// untrusted content and the grants, which it shows once, are those of each.
export function cards(all, inChat = false) {
  const groups = new Map();
  for (const a of all) {
    const key = a.form || !a.query_id ? a.id : JSON.stringify([a.session_id, a.query_id, a.caller, a.tool, a.taint, a.grants]);
    groups.set(key, [...(groups.get(key) ?? []), a]);
  }
  return [...groups.values()].map((g) => (g.length > 1 ? groupCard(g.sort((a, b) => Date.parse(a.asked) - Date.parse(b.asked) || a.id.localeCompare(b.id)), inChat) : card(g[0], inChat)));
}

// card shows one request. It is drawn once a second, so that the focus stays.
function card(a, inChat) {
  return guard([a, a.state, isArmed(a), Math.floor(Date.now() / 1000)], () => draw(a, inChat, !isArmed(a), clientOf(a.session_id)));
}

const most = 20; // calls on one card: more cannot be read at once
const unticked = new Set(); // ids of calls of a card that the user does not want

// groupCard shows requests of one card. Its buttons decide the calls that it was drawn with; Approve works when each ticked call
// isArmed.
function groupCard(all, inChat) {
  const group = all.slice(0, most);
  return guard([inChat, all.length, Math.floor(Date.now() / 1000), ...group.flatMap((a) => [a, isArmed(a), unticked.has(a.id)])], () => drawGroup(group, all.length - group.length, inChat, clientOf(group[0].session_id)));
}

let sending = false; // the decisions about a card

const boxOf = (a) => document.querySelector(`li[data-approval="${CSS.escape(a.id)}"] input`);

// showsTicks reports whether the check boxes of a card show what would be decided. Those that do not, as after the browser restored
// them, are corrected, and their calls wait again.
function showsTicks(group) {
  const wrong = group.filter((a) => boxOf(a)?.checked !== !unticked.has(a.id));
  for (const a of wrong) {
    const box = boxOf(a);
    if (box) box.checked = !unticked.has(a.id);
    positions.delete(a.id);
  }
  return !wrong.length;
}

// decideGroup approves the ticked calls and denies the others, one by one. It approves nothing when the check boxes showed something
// else, and draws them again.
async function decideGroup(group, approves) {
  if (approves && !showsTicks(group)) return store.changed();
  const wanted = group.map((a) => ({ a, approve: approves && !unticked.has(a.id) }));
  if (sending || wanted.some((w) => w.approve && !isArmed(w.a))) return;
  sending = true;
  let approved = 0;
  let denied = 0;
  const failed = [];
  for (const { a, approve } of wanted) {
    try {
      await api.post("/approvals/" + a.id, { approve });
      if (approve) approved++;
      else denied++;
      store.state.approvals.delete(a.id);
      unticked.delete(a.id);
    } catch (e) {
      failed.push(e.message); // also when it was decided elsewhere: the first decision holds
    }
  }
  sending = false;
  store.notify(`${group[0].tool}: ${approved} approved, ${denied} denied.`);
  if (failed.length) store.notify(`${count(failed.length, "decision")} not accepted. ${failed[0]}`, "error");
  store.loadApprovals();
  load();
}

function tick(a, on) {
  if (on) unticked.delete(a.id);
  else unticked.add(a.id);
  store.changed();
}

function drawGroup(group, more, inChat, client) {
  const [first] = group;
  const ticked = group.filter((a) => !unticked.has(a.id));
  const rest = group.length - ticked.length;
  const isOneReason = group.every((a) => a.reason === first.reason);
  const waits = ticked.some((a) => !isArmed(a));
  return html`<article class="approval group" aria-label="Approval of ${count(group.length, "call")} of ${first.tool}">
    <h2>${icon("lock")}<span><b>${first.caller}</b> wants to call <b>${first.tool}</b> ${group.length} times</span> ${clientLabel(first.session_id)}</h2>
    ${isOneReason ? reason(first) : nothing}
    <fieldset><legend>Run these ${count(group.length, "call")} of ${first.tool}?</legend>
    <ol>${group.map(
      (a, i) => html`<li data-approval=${a.id} ?data-complete=${isComplete(a)}>
        <label><input type="checkbox" .checked=${!unticked.has(a.id)} @change=${(e) => tick(a, e.target.checked)} /> Call ${i + 1}</label>
        ${callOf(a)}
        ${isOneReason ? nothing : reason(a)}
        ${details(a)}
      </li>`,
    )}</ol></fieldset>
    ${more ? html`<p><b>${count(more, "call")} more</b> wait${more === 1 ? "s" : ""} and ${more === 1 ? "is" : "are"} not shown. The buttons decide only what is shown; the others follow.</p>` : nothing}
    ${sources(group.at(-1), client, "these calls")}
    <p class="quiet"><b>Each ticked call</b> runs once, exactly as shown. <b>The others</b> are denied, and the model is told so.</p>
    <div class="actions">
      <button type="button" class="primary" ?data-first=${!inChat} @click=${() => decideGroup(group, false)}>Deny all ${group.length}</button>
      <button type="button" ?disabled=${waits || !ticked.length} @click=${() => decideGroup(group, true)}>Approve ${ticked.length}${rest ? `, deny ${rest}` : ""}</button>
      <span class="grow"></span>
      ${links(first, inChat)}
    </div>
    ${expiry(group.reduce((a, b) => (a.expires < b.expires ? a : b)))}
  </article>`;
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
  return html`<article class="approval question" aria-label="Question of ${a.form.from}" data-approval=${a.id} ?data-complete=${isComplete(a)}>
    <h2>${icon("lock")}<span><b>${a.form.from}</b> asks you, during a call of <b>${a.tool}</b></span> ${clientLabel(a.session_id)}</h2>
    <div class="untrusted"><b>Text of the server</b> <span class="label">untrusted</span><p>${visible(a.form.message)}</p></div>
    <p class="quiet">Only this server gets your answer, and what it does with it is not controlled. <b>Never enter a password or a key.</b></p>
    <form @submit=${(e) => answer(a, e)}>
      ${(a.form.fields ?? []).map(fieldOf)}
      <div class="actions">
        <button type="button" class="primary" ?data-first=${!inChat} @click=${() => decide(a, false)}>Decline</button>
        <button type="submit" ?disabled=${waits}>Send the answer</button>
        <span class="grow"></span>
        ${links(a, inChat)}
      </div>
    </form>
    <div class="expiry"><span class="quiet">${leftMs > 0 ? `expires in ${seconds(Math.ceil(leftMs / 1000) * 1000)}` : "expired"}</span></div>
  </article>`;
}

// isComplete reports whether the exact arguments of a request are known; they come after it.
const isComplete = (a) => a.args_text !== undefined;

// callOf shows what a request is about: destinations, the exact arguments, what the call would do.
const callOf = (a) => html`${(a.sinks ?? []).map((s) => destination(a, s))}
  ${a.hosts?.length ? html`<p class="failed">${icon("globe")} Look-alike host: ${a.hosts.map((h) => html`<code>${visible(h.written)}</code> is really <code>${h.punycode}</code> `)}</p>` : nothing}
  ${isComplete(a) ? codeView(marked(a, json(a.args_text)), "exact arguments") : html`<p class="quiet">Loading the exact arguments.</p>`}
  ${a.preview ? codeView(visible(a.preview), "what it would do") : nothing}`;

// reason says in a sentence why a request asks, details for a developer which rule it was.
const reason = (a) => html`<p><b>Why it asks.</b> ${marked(a, a.reason)}</p>`;
const details = (a) => html`<details class="why"><summary>Details</summary><p class="quiet">Layer <code>${a.layer}</code>, rule <code>${a.rule}</code>${a.rules?.length ? html`; asked by <code>${a.rules.join(", ")}</code>` : nothing}. Request <code>${a.id}</code>.</p></details>`;

// sources shows the untrusted content of the session, and what the question permits.
const sources = (a, client, what = "this call") => html`${a.taint?.length ? html`<div class="untrusted"><b>Untrusted content in this session</b> <span class="label">untrusted</span><ul>${a.taint.map((t) => html`<li>${t.query_id ? html`<a href="/runs/${t.query_id}">${t.tool}</a>` : t.tool} read <code>${visible(t.from ?? "")}</code>, ${age(t.time)}${t.flags?.length ? html`, signs of injection: ${t.flags.join(", ")}` : nothing}</li>`)}</ul></div>` : nothing}
  <p><b>What ${client ? "the question" : "your question"} permits.</b> ${a.grants?.length ? html`${a.grants.map((g) => html`<q>${visible(g.clause)}</q> permits ${(g.acts ?? []).join(" or ")}${g.to?.length ? ` to ${g.to.map(visible).join(", ")}` : ""}. `)}None of it covers ${what}.` : client ? `Nothing: ${client} asked, and the words of a program permit no act.` : "Nothing of this kind: the words of your question name no such act."}</p>`;

const links = (a, inChat) => (inChat ? html`<a href="/approvals">Approvals</a>` : a.query_id ? html`<a href="/runs/${a.query_id}">run</a>` : nothing);

function expiry(a) {
  const leftMs = Date.parse(a.expires) - Date.now();
  return html`<div class="expiry"><progress max=${Date.parse(a.expires) - Date.parse(a.asked)} value=${Math.max(0, leftMs)} aria-label="Time left"></progress><span class="quiet">${leftMs > 0 ? `expires in ${seconds(Math.ceil(leftMs / 1000) * 1000)}` : "expired"}</span></div>`;
}

function draw(a, inChat, waits, client) {
  if (a.form) return drawQuestion(a, inChat, waits);
  return html`<article class="approval" aria-label="Approval of ${a.tool}" data-approval=${a.id} ?data-complete=${isComplete(a)}>
    <h2>${icon("lock")}<span><b>${a.caller}</b> wants to call <b>${a.tool}</b></span> ${clientLabel(a.session_id)}</h2>
    ${reason(a)}
    ${details(a)}
    ${callOf(a)}
    ${sources(a, client)}
    <p class="quiet"><b>On yes</b> this exact call runs once and its result goes to the model. <b>On no</b> the model is told that you said no, and continues without it.</p>
    <div class="actions">
      <button type="button" class="primary" ?data-first=${!inChat} @click=${() => decide(a, false)}>Deny</button>
      <button type="button" ?disabled=${waits} @click=${() => decide(a, true)}>Approve once</button>
      ${a.sinks?.length ? html`<button type="button" ?disabled=${waits} title="Calls of ${a.tool} to the same destination in this session" @click=${() => decide(a, true, "session")}>For this session</button>
      <button type="button" ?disabled=${waits} title="Calls of ${a.tool} to the same destination in every session, until you revoke it" @click=${() => decide(a, true, "always")}>Always for this destination</button>` : nothing}
      <span class="grow"></span>
      ${links(a, inChat)}
    </div>
    ${expiry(a)}
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
