// Parts that several views use: a guard against drawing again, code blocks, badges, labels and tool cards.

import { html, noChange, nothing } from "./lit-html.js";
import { icon } from "./icons.js";
import * as api from "./api.js";
import * as store from "./store.js";
import { age, clientOf, count, grade, json, seconds, visible } from "./format.js";

class Guard {
  get _$AU() {
    return this._$AM?._$AU;
  }

  _$AT(_part, parent) {
    this._$AM = parent;
  }

  _$AS(_part, [keys, make]) {
    if (this.keys && keys.length === this.keys.length && keys.every((k, i) => k === this.keys[i])) return noChange;
    this.keys = keys;
    return make();
  }
}

// guard draws a part again only when one of its keys changed.
export const guard = (keys, make) => ({ _$litDirective$: Guard, values: [keys, make] });

// go opens an address of the page.
export const go = (address) => dispatchEvent(new CustomEvent("conclave:go", { detail: address }));

export function copy(text, what = "Copied.") {
  navigator.clipboard.writeText(text).then(
    () => store.notify(what),
    () => store.notify("Copying failed: the browser does not allow it. Select the text instead.", "error"),
  );
}

// download saves a text as a file of the user.
export function download(name, text, type = "application/json") {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

export const codeView = (text, label) => html`<figure class="code"><figcaption><span>${label}</span><button type="button" class="copy" @click=${() => copy(text)}>Copy</button></figcaption><pre tabindex="0" role="group" aria-label=${label}><code>${text}</code></pre></figure>`;

export const isUntrusted = (labels) => labels?.trust === "untrusted";

export const trustLabel = (labels) => (isUntrusted(labels) ? html`<span class="label" title="May contain instructions of somebody else. A call after it needs the words of your question, or your approval.">untrusted</span>` : nothing);

// untrusted wraps content with the visible edge that all untrusted content has.
export const untrusted = (labels, content) => (isUntrusted(labels) ? html`<div class="untrusted">${content}</div>` : content);

// clientLabel names the client that wrote a text. Its words are untrusted content.
export const clientLabel = (id) => {
  const client = clientOf(id);
  return client ? html`<span class="label" title="A program wrote this, not you: its words permit nothing">asked by ${client === "api" ? "a program over the API" : client}</span>` : nothing;
};

// gradeBadge shows the critic's score as a letter, a number and a colour, and whether the model graded its own answer,
// with which the feedback in memory begins.
export function gradeBadge(score, feedback = "", self = feedback?.startsWith("graded by itself")) {
  const g = grade(score);
  return html`<span class="grade ${g.tone}" title=${feedback}><b>${g.letter}</b> ${score}<span class="sr"> of 5, ${g.words}</span>${self ? " graded by itself" : ""}</span>`;
}

const tones = { answered: "good", failed: "bad", "waiting for you": "warn", running: "run" };

// stateMark shows the state of a question in its word. more says what goes on.
export const stateMark = (word, more = "") => html`<span class="state ${tones[word] ?? ""}">${word}</span>${more && more !== word ? html` <span class="quiet">${more}</span>` : nothing}`;

// questionState is the state of a question, with what a running one does.
export const questionState = (r) => stateMark(store.stateOf(r), store.isRunning(r) ? r.phase : "");

const stateIcons = { done: "check", denied: "close", failed: "close", waiting: "lock" };

// toolCard shows one call: name, arguments and state on a line, everything else when it is opened.
export function toolCard(t) {
  const args = typeof t.args === "object" && t.args ? Object.entries(t.args).map(([k, v]) => `${k}: ${typeof v === "string" ? v : JSON.stringify(v)}`).join(", ") : String(t.args ?? "");
  const name = t.state?.split(" ")[0] ?? "";
  const state = t.state === "running" ? `running ${seconds(Date.now() - t.since)}` : t.state === "done" && t.ms ? `done, ${seconds(t.ms)}` : t.state;
  return html`<details class="card tool ${name}">
    <summary>${icon("tool")}<span class="name">${t.tool}</span> <code class="line">${json(args).slice(0, 160)}</code>
      ${t.layer && t.layer !== "native" && t.layer !== "recall" ? html`<span class="chip" title="The model wrote the call as text; it was recovered">recovered</span>` : nothing}
      ${trustLabel(t.labels)}<span class="state">${stateIcons[name] ? icon(stateIcons[name]) : nothing}${state}</span></summary>
    <div class="body">${callDetails(t)}</div>
  </details>${t.change ? changeLine([t]) : nothing}`;
}

const changed = (calls) => [...new Set(calls.flatMap((t) => t.change?.files ?? []))];

// changeLine says which files a call changed, with buttons that show the difference and take it back.
const changeLine = ([t]) => html`<p class="quiet change">Changed ${count(changed([t]).length, ...(t.tool === "save_memory" ? ["memory", "memories"] : ["file"]))}: ${changed([t]).map((f) => html`<code>${visible(f)}</code> `)}
  <button type="button" class="link" @click=${() => showChange(t)}>show</button>, <button type="button" class="link" @click=${() => undoChange(t)}>undo</button></p>`;

async function showChange(t) {
  await act(async () => {
    const { changes } = await api.get(`/changes?id=${encodeURIComponent(t.change.id)}`);
    const [c] = changes;
    const code = c.files.map((f) => visible(f.diff ?? "")).join("\n");
    await store.confirm({ title: `What ${t.tool} changed`, text: c.sources?.length ? `After reading ${c.sources.map(visible).join(", ")}` : "", code, action: "Close" });
  });
}

// undoChange shows what an undo would restore, and does exactly that when the user agrees.
async function undoChange(t) {
  await act(async () => {
    const plan = await api.post("/changes/undo", { action: "plan", id: t.change.id });
    if (plan.refusals?.length) {
      store.notify(plan.refusals.map((r) => visible(r.text)).join(" "), "error");
      return;
    }
    if (!(await store.confirm({ title: "Undo this change?", code: plan.files.map((f) => visible(f.diff ?? f.path)).join("\n"), action: "Undo" }))) return;
    const done = await api.post("/changes/undo", { action: "apply", id: t.change.id, plan: plan.plan });
    if (done.refusals?.length) store.notify(done.refusals.map((r) => visible(r.text)).join(" "), "error");
    else store.notify("It is as it was.");
  });
}

// callDetails shows the arguments of a call and what came of it.
const callDetails = (t) => html`${codeView(json(t.args ?? {}), "arguments")}
  ${t.output ? codeView(visible(t.output), "output") : nothing}
  ${t.error ? denial(t.error) : nothing}
  ${t.result !== undefined && t.result !== "" ? untrusted(t.labels, codeView(json(t.result), isUntrusted(t.labels) ? "result as the model saw it, untrusted" : "result as the model saw it")) : nothing}
  ${t.artifacts?.length ? html`<p class="quiet">Files: ${t.artifacts.map((a) => html`<code>${visible(a)}</code> `)}</p>` : nothing}`;

// recallCard shows what was recalled for a question, and the recall that the runtime made before the first model call:
// its state, what it found, also when that is nothing, and why it failed. call may be missing.
export const recallCard = (hits, call) => html`<details class="card memory-card">
  <summary>${icon("memory")}<span class="name">${call?.state === "running" ? "Recalling" : `Recalled ${hits.length ? count(hits.length, "memory", "memories") : call?.state === "done" && call.result ? "what you said" : "nothing"}`}</span><span class="line">${hits.map((h) => visible(h.name)).join(", ").slice(0, 120)}</span>
    ${call ? html`<span class="state">${call.state}</span>` : nothing}</summary>
  <div class="body">${recallList(hits)}${call ? callDetails(call) : nothing}</div>
</details>`;

const denial = (e) => html`<div class="failed"><p>${visible(e.text ?? e.message ?? e.code)}</p>${e.denial ? html`<p class="quiet">Layer <code>${e.denial.layer}</code>, rule <code>${e.denial.rule}</code>${e.denial.allowed?.length ? html`. Allowed instead: ${e.denial.allowed.join(", ")}` : nothing}</p>` : nothing}</div>`;

// recallList shows what was recalled, with similarity, age, rank, grade and reward.
export const recallList = (hits) => html`<ul class="recalls">${hits.map(
  (h) => html`<li class=${h.trust === "untrusted" ? "untrusted" : ""}>
    <a href="/memory/${h.id}">${visible(h.name || h.id)}</a> ${trustLabel(h)}
    <span class="meta"><span title="Similarity of the meaning">similarity ${h.similarity.toFixed(2)}</span><span title="Rank with grades, reward and age">rank ${h.score.toFixed(2)}</span><span>${age(h.created)}</span><span>${h.source}</span>${h.critic_score ? gradeBadge(h.critic_score, h.feedback) : nothing}${h.reward ? html`<span>reward ${h.reward > 0 ? "+" : ""}${h.reward.toFixed(1)}</span>` : nothing}</span>
  </li>`,
)}</ul>`;

// personaCard shows the contribution of one persona.
export const personaCard = (d) => html`<details class="card persona ${d.dissents ? "dissent" : ""}">
  <summary>${icon("deliberations")}<span class="name">${d.persona}</span><span class="line">${visible((d.response ?? "").replace(/[*`#]+/g, "")).slice(0, 120)}</span>
    ${(d.tool_calls ?? []).map((c) => html`<span class="chip">${c.tool}</span>`)}
    <span class="state">${d.dissents ? "dissents" : d.status === "working" ? `speaking ${seconds(Date.now() - d.since)}` : d.closing ? "closes" : d.status}</span></summary>
  <div class="body">
    ${d.dissents ? html`<p class="dissent-line"><b>Dissent:</b> ${visible(d.dissent ?? "")}</p>` : nothing}
    ${untrusted(d.labels, html`<p class="prose" dir="auto">${visible(d.response ?? "")}</p>`)}
    ${d.thinking ? html`<details class="thinking"><summary>${icon("think")}Thinking</summary><p class="thought">${visible(d.thinking)}</p></details>` : nothing}
    ${(d.tool_calls ?? []).map((c) => toolCard({ ...c, id: c.call_id, state: c.error ? "failed" : "done" }))}
    <p class="quiet">round ${d.round}${d.model ? `, ${d.model}` : ""}${d.usage?.completion_tokens ? `, ${d.usage.completion_tokens} tokens` : ""}</p>
  </div>
</details>`;

// empty is a view without content: what would be here, and an example to click.
export const empty = (name, title, text, example) => html`<div class="empty-state">${icon(name)}<h2>${title}</h2><p>${text}</p>${example ?? nothing}</div>`;

// loading is the placeholder of a view while the store has not read what it shows, else undefined: an empty list is then a fact.
export const loading = (what) => (store.state.loading.has(what) ? html`<p class="quiet">Loading.</p>` : undefined);

// load keeps the result of one request for a view: {value, error, loading}.
export function loader(read) {
  const box = { value: null, error: "", loading: false };
  box.load = async (...args) => {
    box.loading = true;
    box.error = "";
    store.changed();
    try {
      box.value = await read(...args);
    } catch (e) {
      box.error = e.message;
    }
    box.loading = false;
    store.changed();
  };
  return box;
}

// act runs an action of the user and shows its error.
export async function act(what) {
  try {
    return await what();
  } catch (e) {
    store.notify(e.message, "error");
  }
}
