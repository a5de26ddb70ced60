// Context: the exact messages that the model gets with the next question of a session, and how full its window is.

import { html, nothing, svg } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { codeView } from "../parts.js";
import { count, json, visible } from "../format.js";

const shown = { id: "", context: null, error: "" };

export async function load([id]) {
  shown.id = id ?? "";
  shown.error = "";
  shown.context = null;
  store.changed();
  if (!id) return;
  try {
    shown.context = await api.get(`/sessions/${encodeURIComponent(id)}/context`);
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
}

const kinds = { system: "Instructions", user: "You", assistant: "Answer", tool: "Tool result" };
const number = (n) => n.toLocaleString("en");

// gauge draws the window: the messages by role, the part that is reserved for the reply, and the mark of summaries.
function gauge(c) {
  const share = (n) => `${Math.min(100, (100 * n) / c.window).toFixed(2)}%`;
  let at = 0;
  const parts = c.messages.map((m) => {
    const from = at;
    at += m.tokens;
    return svg`<rect class="part role-${m.role}" x=${share(from)} width=${share(m.tokens)} height="14"></rect>`;
  });
  return html`<svg class="gauge" width="100%" height="26" role="img" aria-label="${number(c.tokens)} of ${number(c.window)} tokens are used">
    ${svg`<rect class="all" width="100%" height="14" rx="4"></rect>${parts}<rect class="reply" x=${share(c.window - c.answer)} width=${share(c.answer)} height="14"></rect>${c.compact_at ? svg`<line class="compact" x1=${share(c.compact_at)} x2=${share(c.compact_at)} y1="0" y2="20"></line>` : nothing}`}
  </svg>
  <p class="legend-line quiet"><span><i class="k role-system"></i>instructions</span><span><i class="k role-user"></i>you</span><span><i class="k role-assistant"></i>answers</span><span><i class="k role-tool"></i>tool results</span><span><i class="k reply"></i>kept free for the reply</span>${c.compact_at ? html`<span><i class="k compact"></i>the oldest turns are summarized beyond this</span>` : nothing}</p>`;
}

const message = (m, i, total) => html`<details class="message role-${m.role}">
  <summary><i class="k role-${m.role}"></i><b>${i === total - 1 ? "Next question" : m.tool_name || (m.tool_calls?.length ? "Tool call" : (kinds[m.role] ?? m.role))}</b><span class="line">${i === total - 1 ? "what you write next" : visible(m.content).slice(0, 160) || (m.tool_calls ?? []).map((c) => `${c.name} ${json(c.arguments, 0)}`).join(", ")}</span><span class="n quiet">${number(m.tokens)}</span></summary>
  ${m.content ? codeView(visible(m.content), m.role) : nothing}${(m.tool_calls ?? []).map((c) => codeView(json(c.arguments), `call ${c.name}`))}
</details>`;

export function view() {
  if (!shown.id) return html`<div class="page"><h1>Context</h1><p>Open a session in the <a href="/chat">chat</a> and choose "Context" there.</p></div>`;
  if (shown.error) return html`<div class="page"><h1>Context</h1><p class="failed">${shown.error}</p></div>`;
  const c = shown.context;
  if (!c) return html`<div class="page"><h1>Context</h1><p class="quiet">Loading.</p></div>`;
  const missing = [c.summarized && `${count(c.summarized, "earlier turn")} replaced by a summary`, c.dropped && `${count(c.dropped, "earlier turn")} left out because the session is long`, c.omitted && `${count(c.omitted, "turn")} left out because the window is full`].filter(Boolean);
  return html`<div class="page ops-page">
    <p class="crumb"><a href="/chat/${shown.id}">Back to the session</a></p>
    <h1>Context</h1>
    <p class="lead">What ${c.model || "the model"} gets with your next question: about ${count(c.tokens, "token")}${c.window ? ` of ${number(c.window)}, ${Math.round((100 * c.tokens) / c.window)} %` : ""}. Tool definitions and recalled memories are added when you ask.</p>
    ${c.window ? gauge(c) : nothing}
    ${missing.length ? html`<p class="banner warn inset" role="status"><b>Not all of it is there.</b> ${missing.join("; ")}.</p>` : html`<p class="quiet">Nothing is truncated or summarized.</p>`}
    <h2 class="split"><span>${count(c.messages.length, "message")}</span><span class="quiet">tokens</span></h2>
    ${c.messages.map((m, i) => message(m, i, c.messages.length))}
  </div>`;
}
