// Light or dark, as chosen in this browser.

import * as store from "./store.js";

export const themes = ["system", "light", "dark"];

export const theme = () => localStorage.getItem("theme") ?? "system";

export function setTheme(to) {
  localStorage.setItem("theme", to);
  document.documentElement.toggleAttribute("data-theme", to !== "system");
  if (to !== "system") document.documentElement.dataset.theme = to;
  store.changed();
}
