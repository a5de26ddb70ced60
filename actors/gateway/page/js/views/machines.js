// Machines: other machines that run actors of this system, with their links, and the browsers that are logged in.

import { html, nothing } from "../lit-html.js";
import * as api from "../api.js";
import * as store from "../store.js";
import { act, codeView, empty } from "../parts.js";
import { age, browserName, visible } from "../format.js";

const shown = { machines: null, logins: null, error: "" };
let timer = 0;

export async function load() {
  clearTimeout(timer);
  try {
    shown.logins = (await api.get("/logins")).logins;
    shown.machines = (await api.get("/machines")).machines;
    shown.error = "";
  } catch (e) {
    shown.error = e.message;
  }
  store.changed();
  timer = setTimeout(() => location.pathname.startsWith("/machines") && load(), 5000);
}

const link = (m) => {
  if (!m.added) return html`<span class="state warn">invited</span><span class="what">until ${new Date(m.invited_until).toLocaleString()}</span>`;
  if (m.up) return html`<span class="state good">connected</span><span class="what">for ${age(m.connected).replace(" ago", "")}</span>`;
  return html`<span class="state bad">link down</span><span class="what">${m.last_seen ? `last seen ${age(m.last_seen)}` : "not seen since this start"}</span>`;
};

const row = (m) => html`<tr>
  <th scope="row">${m.name}<span class="what">${m.address ?? ""}</span></th>
  <td>${link(m)}</td>
  <td>${m.actors.map((a) => html`<span class="chip">${a}</span> `)}</td>
  <td>${m.names.length ? m.names.join(", ") : html`<span class="quiet">–</span>`}${m.models?.reason ? html`<span class="what">${m.models.reason}</span>` : nothing}</td>
  <td class="n">${m.models ? `${m.models.queue} of ${m.models.slots}` : "–"}</td>
  <td class="n">${m.rtt_ns ? `${(m.rtt_ns / 1e6).toFixed(1)} ms` : "–"}</td>
</tr>`;

async function revoke(l) {
  const text = l.current ? "It is logged out at once. conclave open prints a new link." : "It is logged out at once, and its requests end.";
  if (!(await store.confirm({ title: l.current ? "Log this browser out?" : `Log ${browserName(l.browser)} out?`, text, action: "Log out", danger: true }))) return;
  await act(() => api.del("/logins/" + l.id));
  if (!l.current) load();
}

const browsers = () => html`<section><h2>Browsers</h2>
  <p class="quiet">Logged in with a link of <code>conclave open</code>, each for 30 days. A login that you do not know: log it out, and replace the token with <code>conclave open --new-token</code>.</p>
  <div class="table" tabindex="0" role="region" aria-label="Browsers"><table class="wide ops"><thead><tr><th scope="col">Browser</th><th scope="col">Reached as</th><th scope="col">Logged in</th><th scope="col">Last used</th><th scope="col"><span class="sr">Log out</span></th></tr></thead><tbody>
    ${(shown.logins ?? []).map((l) => html`<tr><th scope="row"><span title=${l.browser}>${visible(browserName(l.browser))}</span>${l.current ? html`<span class="what">this browser</span>` : nothing}</th><td>${visible(l.host)}</td><td class="nowrap">${age(l.created)}</td><td class="nowrap">${l.current ? "now" : age(l.used)}</td><td class="act"><button type="button" @click=${() => revoke(l)}>Log out</button></td></tr>`)}
  </tbody></table></div></section>`;

export function view() {
  if (shown.error && !shown.machines) return html`<div class="page"><h1>Machines</h1><p class="failed">${shown.error}</p></div>`;
  if (!shown.machines) return html`<div class="page wide-page"><h1>Machines</h1><p class="quiet">Loading.</p></div>`;
  return html`<div class="page wide-page ops-page"><h1>Machines</h1>
    ${shown.machines.length
      ? html`<p class="lead">Each machine has a key of its own and may do what its actors need, no more.</p>
          <div class="table" tabindex="0" role="region" aria-label="Machines"><table class="wide ops"><thead><tr><th scope="col">Machine</th><th scope="col">Link</th><th scope="col">Actors</th><th scope="col">Models</th><th scope="col" class="n">Queue</th><th scope="col" class="n">Round trip</th></tr></thead><tbody>${shown.machines.map(row)}</tbody></table></div>
          <p class="quiet">Invite, rotate and revoke in a terminal: <code>conclave machines --help</code></p>`
      : empty("machines", "Only this machine", "A second machine can run the models or the web tools, with a key that allows only that. Make an invitation here and join there.", html`<div class="left">${codeView("conclave invite gpu-box --actors model", "on this machine")}${codeView("conclave join -", "on the other one: it reads the token from its input")}</div>`)}
    ${browsers()}
  </div>`;
}
