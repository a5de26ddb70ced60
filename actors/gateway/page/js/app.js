// The shell of the page: addresses, navigation, keys, palette, banners, dialogs. Each view is a module with a function
// view(path) that returns a template, and optionally load(path), called when the view is opened, drawn(path), called after each
// drawing, and stop(path), called for Escape.

import { html, nothing, render } from "./lit-html.js";
import { icon } from "./icons.js";
import * as store from "./store.js";
import * as palette from "./palette.js";
import * as notify from "./notify.js";
import { setTheme, theme, themes } from "./theme.js";
import { visible } from "./format.js";
import { sessionList } from "./views/sessions.js";
import * as chat from "./views/chat.js";
import * as runs from "./views/runs.js";
import * as approvals from "./views/approvals.js";
import * as memory from "./views/memory.js";
import * as tasks from "./views/tasks.js";
import * as bus from "./views/bus.js";
import * as decisions from "./views/decisions.js";
import * as deliberations from "./views/deliberations.js";

// lazy is a view whose module is loaded when it is opened first.
function lazy(name) {
  let module = null;
  const get = (path) => import(`./views/${name}.js`).then((m) => ((module = m), m.load?.(path), store.changed()), () => store.notify("This view could not be loaded. Open it again when the connection is back.", "error"));
  return { load: (path) => (module ? module.load?.(path) : get(path)), view: (path) => module?.view(path) ?? html`<div class="page"><p class="quiet">Loading.</p></div>`, drawn: (path) => module?.drawn?.(path), stop: (path) => module?.stop?.(path) };
}

const views = [
  { name: "chat", title: "Chat", key: "c", module: chat },
  { name: "approvals", title: "Approvals", key: "a", module: approvals, badge: () => store.state.approvals.size },
  { name: "tasks", title: "Tasks", key: "t", module: tasks },
  { name: "memory", title: "Memory", key: "m", module: memory },
  { name: "settings", title: "Settings", key: "s", module: lazy("preferences") },
  { name: "runs", title: "Runs", key: "r", module: runs },
  { name: "agents", title: "Agents", key: "p", module: lazy("agents") },
  { name: "bus", title: "Bus", key: "b", module: bus },
  { name: "decisions", title: "Decisions", key: "d", module: decisions },
  { name: "deliberations", title: "Deliberations", key: "e", module: deliberations },
  { name: "models", title: "Models", key: "o", module: lazy("models") },
  { name: "machines", title: "Machines", key: "h", module: lazy("machines") },
  { name: "doctor", title: "Doctor", key: "x", module: lazy("doctor") },
  { name: "context", title: "Context", module: lazy("context"), hidden: true }, // opened from the chat
];
const mainViews = 5; // those that are always in the rail; on a phone four are in the bar

let current = views[0];
let path = [];
let more = false; // the menu of a phone is open

// go opens an address of the page.
export function go(address, replace = false) {
  if (address !== location.pathname) history[replace ? "replaceState" : "pushState"](null, "", address);
  open();
}

function open() {
  const [name, ...rest] = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  current = views.find((v) => v.name === name) ?? views[0];
  path = rest;
  more = false;
  current.module.load?.(path);
  store.changed();
}

// onClick opens a link of the page without loading it again. A link to another host is opened after a question that shows its whole
// address, which can carry private data; only an answer that is labelled trusted and public needs none.
function onClick(e) {
  const out = e.target.closest?.("a[target='_blank']");
  if (out && !out.closest("[data-trusted]")) {
    e.preventDefault();
    confirmLink(out.href);
    return;
  }
  const a = e.target.closest?.("a[href^='/']");
  if (!a || a.target || e.defaultPrevented || e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0 || a.hasAttribute("download")) return;
  e.preventDefault();
  go(a.getAttribute("href"));
}

async function confirmLink(address) {
  if (await store.confirm({ title: "Open this address?", text: visible(address), action: "Open" })) window.open(address, "_blank", "noopener,noreferrer");
}

const keys = () => [
  ["Ctrl K", "search views, sessions, runs, memories and actions"],
  ["any letter", "writes into the box of the chat"],
  ["n", "new session, outside of the chat"],
  ["/", "search, outside of the chat"],
  ["Enter, Shift Enter", "send, new line"],
  ["Ctrl Enter", "stop the answer and send now"],
  ["Esc", "stop the answer, close a dialog"],
  ["↑", "the last question again, in an empty box"],
  ...views.filter((v) => v.key).map((v) => [`g ${v.key}`, `open ${v.title}, outside of the chat`]),
  ["+ − 0", "zoom a run"],
  ["?", "this list, outside of the chat"],
];
let afterG = 0;

function onKey(e) {
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") {
    e.preventDefault();
    palette.open(views.filter((v) => !v.hidden), actions);
    return;
  }
  if (e.defaultPrevented || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (e.key === "Escape" && (more || current.module.stop?.(path))) {
    more = false;
    store.changed();
    e.preventDefault();
    return;
  }
  if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
  const box = document.querySelector("#question");
  if (box && e.key.length === 1 && e.key !== " ") { // a letter is typed, wherever the focus is: it goes into the box
    box.focus();
    return;
  }
  const v = views.find((x) => x.key === e.key);
  if (v && Date.now() - afterG < 1200) {
    e.preventDefault();
    go("/" + v.name);
  } else if (e.key === "g") afterG = Date.now();
  else if (e.key === "n") {
    e.preventDefault();
    actions.new.run();
  } else if (e.key === "/") {
    e.preventDefault();
    document.querySelector("main input[type=search], input[type=search]")?.focus();
  } else if (e.key === "?") showKeys();
}

const showKeys = () => document.querySelector("#keys").showModal();

const actions = {
  new: { title: "New session", run: () => go("/chat") },
  theme: { title: "Change between light and dark", run: () => setTheme(themes[(themes.indexOf(theme()) + 1) % themes.length]) },
  keys: { title: "Show the keys", run: () => showKeys() },
};

const link = (v) => {
  const n = v.badge?.() ?? 0;
  return html`<li><a href="/${v.name}" aria-current=${v === current || (current.hidden && v === views[0]) ? "page" : nothing}>${icon(v.icon ?? v.name)}<span>${v.title}</span>${n ? html`<span class="badge">${n}<span class="sr"> waiting</span></span>` : nothing}</a></li>`;
};

const navigation = () => html`
  <nav class="rail ${more ? "more" : ""}" aria-label="Views">
    <div class="rail-head"><a class="brand" href="/chat"><span aria-hidden="true" class="mark"></span>Conclave</a><span class="grow"></span><button type="button" class="ghost" title="Search (Ctrl K)" aria-label="Search views, sessions and actions" @click=${() => palette.open(views.filter((v) => !v.hidden), actions)}>${icon("search")}</button></div>
    <ul class="views main-views">
      ${views.slice(0, mainViews).map(link)}
      <li class="more-item"><button type="button" aria-expanded=${more} @click=${() => ((more = !more), store.changed())}>${icon("more")}<span>More</span></button></li>
    </ul>
    <details class="system" ?open=${more || (views.indexOf(current) >= mainViews && !current.hidden) || localStorage.getItem("system") === "open"}>
      <summary @click=${(e) => localStorage.setItem("system", e.target.parentElement.open ? "closed" : "open")}>System</summary>
      <ul class="views">${views.slice(mainViews).filter((v) => !v.hidden).map(link)}</ul>
    </details>
    ${sessionList(path, current.name === "chat")}
    <div class="foot">
      <span class="status ${store.state.connection}"><span class="dot"></span>${{ open: "connected", lost: "reconnecting", out: "logged out" }[store.state.connection] ?? "connecting"}</span><span class="grow"></span>
      <button type="button" class="ghost" aria-label="Theme: ${theme()}" title="Theme: ${theme()}" @click=${actions.theme.run}>${icon("theme")}</button>
      <button type="button" class="ghost" aria-label="Keys" title="Keys (?)" @click=${showKeys}>${icon("keys")}</button>
    </div>
  </nav>`;

// banners tell what keeps the system from its best, with what to do.
function banners() {
  const out = [];
  if (store.state.connection === "lost") out.push(html`<p class="banner warn" role="status"><b>Reconnecting.</b> Running answers continue; the page shows them as soon as the connection is back.</p>`);
  for (const text of store.state.health?.degraded ?? []) {
    const [what, ...rest] = text.split(": ");
    const named = rest.length && /^[a-z ]{2,24}$/.test(what);
    out.push(html`<p class="banner warn"><b>${named ? what[0].toUpperCase() + what.slice(1) : "Note"}.</b> ${commands(named ? rest.join(": ") : text)}</p>`);
  }
  return out;
}

// commands draws the commands in a message as code that can be copied.
const commands = (text) => text.split(/(conclave [a-z]+(?: [a-z_]+)*|ollama pull [\w.:/-]+)/).map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

let asked = null; // the question of the open dialog: its close event may come after the next question

function answer(value) {
  const q = store.state.question;
  store.state.question = null;
  store.changed();
  q?.resolve(value);
}

const questionDialog = (q) => html`<dialog id="ask" aria-labelledby="ask-title" @cancel=${() => answer(false)} @close=${() => store.state.question === asked && answer(false)}>
  ${q
    ? html`<form method="dialog" @submit=${(e) => (e.preventDefault(), answer(q.value === undefined ? true : e.target.elements.value.value.trim()))}>
        <h2 id="ask-title">${q.title}</h2>${q.text ? html`<p>${q.text}</p>` : nothing}${q.code ? html`<pre>${q.code}</pre>` : nothing}
        ${q.value === undefined ? nothing : html`<label class="sr" for="ask-value">${q.title}</label><input id="ask-value" name="value" .value=${q.value} autocomplete="off" />`}
        <p class="actions"><span class="grow"></span><button type="button" @click=${() => answer(false)}>Cancel</button><button class=${q.danger ? "danger" : "primary"}>${q.action}</button></p>
      </form>`
    : html`<h2 id="ask-title" class="sr">Question</h2>`}
</dialog>`;

// loginCard says how a browser gets in. What was written stays in the box of the chat.
const loginCard = () => html`<div class="page"><h1>You are logged out</h1>
  <p>This browser has no login any more: it has expired, or it was revoked. What you wrote is kept.</p>
  <p>Run <code>conclave open</code> in a terminal of this machine and open the link that it prints in this browser. This page then goes on by itself.</p></div>`;

const shell = () => html`
  <a class="skip" href="#main" @click=${(e) => (e.preventDefault(), e.stopPropagation(), document.querySelector("#main").focus())}>Skip to the content</a>
  ${navigation()}
  <main id="main" tabindex="-1" class="view-${current.name}">
    <div class="banners">${banners()}</div>
    ${store.state.connection === "out" ? loginCard() : current.module.view(path)}
  </main>
  <div class="notices" role="status" aria-live="polite">
    ${store.state.notices.map((n) => html`<p class="notice ${n.kind}"><span>${n.text}</span><button type="button" class="ghost" aria-label="Close the message" @click=${() => store.dismiss(n.id)}>${icon("close")}</button></p>`)}
  </div>
  ${questionDialog(store.state.question)} ${palette.view(go)}
  <dialog id="keys" aria-labelledby="keys-title">
    <h2 id="keys-title">Keys</h2>
    <dl>${keys().map(([k, what]) => html`<dt>${k.split(" ").map((x) => html`<kbd>${x}</kbd> `)}</dt><dd>${what}</dd>`)}</dl>
    <form method="dialog"><button class="primary">Close</button></form>
  </dialog>`;

const root = document.querySelector("#app");
root.replaceChildren();
const draw = () => {
  render(shell(), root);
  const waiting = store.state.approvals.size;
  document.title = `${waiting ? `(${waiting}) ` : ""}${current.title} · Conclave`;
  if (!store.state.loading.has("approvals")) notify.tell(store.state.approvals, () => go("/approvals"));
  if (store.state.connection !== "out") current.module.drawn?.(path);
  const dialog = document.querySelector("#ask");
  if (store.state.question && !dialog.open) {
    asked = store.state.question;
    dialog.showModal();
  }
  if (!store.state.question && dialog.open) dialog.close();
  palette.drawn();
};
for (const v of views) store.state.views.add(v.name);
setTheme(theme());
store.subscribe(draw);
addEventListener("popstate", open);
document.addEventListener("click", onClick);
document.addEventListener("auxclick", (e) => e.button === 1 && onClick(e)); // the middle button opens links too
document.addEventListener("keydown", onKey);
addEventListener("resize", store.changed);
addEventListener("conclave:go", (e) => go(e.detail));
store.start();
open();
setInterval(() => {
  if (store.state.approvals.size || [...store.state.runs.values()].some(store.isRunning)) store.changed(); // running seconds
}, 500);
