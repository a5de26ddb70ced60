// The shell of the page: addresses, navigation, keys, banners. Each view is a module with a function view(path) that returns a
// template, and optionally load(path), called when the view is opened.

import { html, nothing, render } from "./lit-html.js";
import * as store from "./store.js";
import * as chat from "./views/chat.js";
import * as runs from "./views/runs.js";
import * as approvals from "./views/approvals.js";
import * as memory from "./views/memory.js";
import * as tasks from "./views/tasks.js";

const views = [
  { name: "chat", title: "Chat", key: "c", icon: "✎", module: chat },
  { name: "runs", title: "Runs", key: "r", icon: "≡", module: runs },
  { name: "approvals", title: "Approvals", key: "a", icon: "✓", module: approvals, badge: () => store.state.approvals.size },
  { name: "memory", title: "Memory", key: "m", icon: "◫", module: memory },
  { name: "tasks", title: "Tasks", key: "t", icon: "☰", module: tasks },
];

let current = views[0];
let path = [];

// go opens an address of the page.
export function go(address, replace = false) {
  if (address !== location.pathname) history[replace ? "replaceState" : "pushState"](null, "", address);
  open();
}

function open() {
  const [name, ...rest] = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  current = views.find((v) => v.name === name) ?? views[0];
  path = rest;
  document.title = `${current.title} · Conclave`;
  current.module.load?.(path);
  store.changed();
}

// link handles a click on a link of the page without loading it again.
function onClick(e) {
  const a = e.target.closest?.("a[href^='/']");
  if (!a || a.target || e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0 || a.hasAttribute("download")) return;
  e.preventDefault();
  go(a.getAttribute("href"));
}

const keys = [
  ["g then c, r, a, m, t", "open chat, runs, approvals, memory, tasks"],
  ["n", "new session"],
  ["/", "write"],
  ["Esc", "stop the answer, close a dialog"],
  ["Enter, Shift+Enter", "send, new line"],
  ["?", "this list"],
];
let afterG = 0;

function onKey(e) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (e.key === "Escape" && current.module.stop?.(path)) {
    e.preventDefault();
    return;
  }
  if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
  const v = views.find((x) => x.key === e.key);
  if (v && Date.now() - afterG < 1200) {
    e.preventDefault();
    go("/" + v.name);
  } else if (e.key === "g") afterG = Date.now();
  else if (e.key === "n") {
    e.preventDefault();
    go("/chat");
  } else if (e.key === "/") {
    e.preventDefault();
    document.querySelector("textarea")?.focus();
  } else if (e.key === "?") document.querySelector("#keys").showModal();
}

const navigation = () => html`
  <nav class="rail" aria-label="Views">
    <a class="brand" href="/chat"><span aria-hidden="true" class="mark"></span>Conclave</a>
    <ul class="views">
      ${views.map((v) => {
        const n = v.badge?.() ?? 0;
        return html`<li><a href="/${v.name}" aria-current=${v === current ? "page" : nothing}><span class="icon" aria-hidden="true">${v.icon}</span><span>${v.title}</span>${n ? html`<span class="badge">${n}</span>` : nothing}</a></li>`;
      })}
    </ul>
    ${chat.sessionList(path, current.name === "chat")}
    <p class="foot"><button type="button" class="quiet" @click=${() => document.querySelector("#keys").showModal()}>Keys: ?</button></p>
  </nav>`;

// banners tell what keeps the system from its best, with what to do.
function banners() {
  const h = store.state.health;
  const out = [];
  if (store.state.connection !== "open") out.push(html`<p class="banner warn" role="status"><b>Reconnecting.</b> Running answers continue; the page shows them as soon as the connection is back.</p>`);
  for (const text of h?.degraded ?? []) out.push(html`<p class="banner warn"><b>Note.</b> ${text}</p>`);
  return out;
}

const shell = () => html`
  ${navigation()}
  <main id="main" tabindex="-1" class="view-${current.name}">
    <div class="banners">${banners()}</div>
    ${current.module.view(path)}
  </main>
  <div class="notices" role="status" aria-live="polite">
    ${store.state.notices.map((n) => html`<p class="notice ${n.kind}">${n.text} <button type="button" class="quiet" aria-label="Close the message" @click=${() => store.dismiss(n.id)}>×</button></p>`)}
  </div>
  <dialog id="keys" aria-labelledby="keys-title">
    <h2 id="keys-title">Keys</h2>
    <dl>${keys.map(([k, what]) => html`<dt><kbd>${k}</kbd></dt><dd>${what}</dd>`)}</dl>
    <form method="dialog"><button class="primary">Close</button></form>
  </dialog>`;

const root = document.querySelector("#app");
root.replaceChildren();
const draw = () => {
  render(shell(), root);
  current.module.drawn?.(path);
};
store.subscribe(draw);
addEventListener("popstate", open);
document.addEventListener("click", onClick);
document.addEventListener("keydown", onKey);
addEventListener("conclave:go", (e) => go(e.detail));
store.start();
open();
setInterval(() => {
  if ([...store.state.runs.values()].some((r) => !r.response && !r.failed)) store.changed(); // running seconds
}, 500);
