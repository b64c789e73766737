// Tabs by the pattern of the ARIA practices: arrow keys move, the address names the open one.

import { h } from "./dom.js";
import * as route from "./route.js";

/**
 * Tabs at `host`. `panels` are [name, title, build]; `build(panel, signal)` fills the open panel, its
 * signal ends when another is opened. `inAddress` keeps the choice in the page's address.
 */
export function tabs(host, label, panels, signal, { inAddress = false, first = panels[0][0] } = {}) {
  let open = null;
  const panel = h("div", { role: "tabpanel", class: "panel", tabindex: -1 });
  const buttons = panels.map(([name, title]) =>
    h("button", { type: "button", role: "tab", id: inAddress ? `tab-${name}` : null, "data-tab": name, onclick: () => choose(name) }, title),
  );
  const list = h("div", { role: "tablist", "aria-label": label, onkeydown: move }, buttons);

  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = buttons.findIndex((button) => button.getAttribute("aria-selected") === "true");
    const next = (at + step + panels.length) % panels.length;
    choose(panels[next][0]);
    buttons[next].focus();
    event.preventDefault();
  }

  function choose(name) {
    open?.abort();
    open = new AbortController();
    buttons.forEach((button) => {
      const isOpen = button.dataset.tab === name;
      button.setAttribute("aria-selected", String(isOpen));
      button.tabIndex = isOpen ? 0 : -1;
    });
    if (inAddress) route.note({ tab: name === panels[0][0] ? "" : name });
    const title = panels.find(([each]) => each === name)[1];
    panel.setAttribute("aria-label", title);
    panel.replaceChildren();
    panels.find(([each]) => each === name)[2](panel, AbortSignal.any([signal, open.signal]));
  }

  host.append(list, panel);
  const named = inAddress ? route.current().query.get("tab") : null;
  choose(panels.some(([name]) => name === named) ? named : first);
}
