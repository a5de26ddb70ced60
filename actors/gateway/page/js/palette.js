// The palette: views, sessions, runs, memories and actions by a few letters.

import { html, nothing } from "./lit-html.js";
import { icon } from "./icons.js";
import * as api from "./api.js";
import * as store from "./store.js";
import { visible } from "./format.js";

const shown = { open: false, text: "", index: 0, views: [], actions: {}, memories: [] };
let timer = 0;

export function open(views, actions) {
  Object.assign(shown, { open: true, text: "", index: 0, views, actions, memories: [] });
  store.changed();
}

function items() {
  const words = shown.text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((w) => text.toLowerCase().includes(w));
  const all = [
    ...Object.values(shown.actions).map((a) => ({ icon: "plus", kind: "action", title: a.title, run: a.run })),
    ...shown.views.map((v) => ({ icon: v.icon ?? v.name, kind: "view", title: v.title, href: "/" + v.name })),
    ...store.state.sessions.map((s) => ({ icon: "chat", kind: "session", title: s.title || "Untitled", href: "/chat/" + s.session_id })),
    ...(words.length ? [...store.state.runs.values()].filter((r) => r.query).map((r) => ({ icon: "runs", kind: "run", title: r.query, href: "/runs/" + r.id })) : []),
  ].filter((i) => has(i.title));
  return [...all.slice(0, 12), ...shown.memories.map((m) => ({ icon: "memory", kind: "memory", title: m.name || m.description || m.id, href: "/memory/" + m.id }))];
}

function onInput(e) {
  Object.assign(shown, { text: e.target.value, index: 0 });
  clearTimeout(timer);
  timer = setTimeout(async () => {
    if (shown.text.trim().length < 2) return;
    try {
      shown.memories = (await api.get("/memory?" + new URLSearchParams({ text: shown.text.trim(), limit: 5 }))).entries ?? [];
    } catch {
      shown.memories = []; // without memory the palette has the rest
    }
    store.changed();
  }, 200);
  store.changed();
}

export function view(go) {
  const list = shown.open ? items() : [];
  const pick = (i) => {
    shown.open = false;
    store.changed();
    if (i?.href) go(i.href);
    else i?.run();
  };
  const onKey = (e) => {
    if (e.key === "ArrowDown") shown.index = Math.min(list.length - 1, shown.index + 1);
    else if (e.key === "ArrowUp") shown.index = Math.max(0, shown.index - 1);
    else if (e.key === "Enter") pick(items()[shown.index]); // not of the last drawing: the keys may be faster
    else return;
    e.preventDefault();
    store.changed();
  };
  return html`<dialog id="palette" aria-label="Search" @close=${() => ((shown.open = false), store.changed())} @click=${(e) => e.target.id === "palette" && e.target.close()}>
    ${shown.open
      ? html`<label class="find">${icon("search")}<input id="palette-text" type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label="Search views, sessions, runs and memories" placeholder="Search views, sessions, runs, memories, actions" autocomplete="off" .value=${shown.text} @input=${onInput} @keydown=${onKey} aria-activedescendant=${list.length ? `p${shown.index}` : nothing} /></label>
          <ul id="palette-list" role="listbox" aria-label="Results">${list.map((i, n) => html`<li id="p${n}" role="option" aria-selected=${n === shown.index} @click=${() => pick(i)} @mousemove=${() => n !== shown.index && ((shown.index = n), store.changed())}>${icon(i.icon)}<span class="title">${visible(i.title)}</span><span class="quiet">${i.kind}</span></li>`)}</ul>
          ${list.length ? nothing : html`<p class="quiet none">Nothing has these words.</p>`}`
      : nothing}
  </dialog>`;
}

export function drawn() {
  const d = document.querySelector("#palette");
  if (shown.open && !d.open) {
    d.showModal();
    d.querySelector("input").focus();
  } else if (!shown.open && d.open) d.close();
}
