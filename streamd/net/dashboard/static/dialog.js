// Questions before something is done. Whoever says yes types the name of the thing.

import { h, note } from "./dom.js";
import { post } from "./api.js";

/**
 * Ask, and post to `words` when the name was typed.
 *
 * `fields` are further inputs: [name, label, type, value, toBody]. Resolves to true if it was done.
 */
export function confirmed({ title, text, name, words, fields = [], verb = title }) {
  return new Promise((resolve) => {
    const typed = h("input", { type: "text", id: "confirm-name", autocomplete: "off", spellcheck: "false", required: true });
    const extra = fields.map(([key, label, type, value]) => [key, h("input", { type, id: `confirm-${key}`, value, required: true }), label]);
    const wrong = h("p", { class: "error", role: "alert" });
    const yes = h("button", { type: "submit", class: "danger", disabled: true }, verb);
    let isDone = false;
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", { id: "confirm-title" }, title),
      h("p", null, text),
      extra.map(([key, input, label]) => h("p", null, h("label", { for: `confirm-${key}` }, label), input)),
      h("p", null, h("label", { for: "confirm-name" }, "Type ", h("code", null, name), " to confirm"), typed),
      wrong,
      h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), yes),
    );
    const dialog = h("dialog", { "aria-labelledby": "confirm-title" }, form);
    typed.addEventListener("input", () => {
      yes.disabled = typed.value !== name;
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (typed.value !== name || yes.disabled) return;
      yes.disabled = true;
      wrong.textContent = "";
      try {
        const body = { confirm: name };
        for (const [at, [key, input]] of extra.entries()) body[key] = fields[at][4](input.value);
        const done = await post(words, body);
        isDone = true;
        dialog.close();
        const silent = done.unreached ?? [];
        if (silent.length) note(`${title}: no answer from ${silent.join(", ")}`, "warn");
        else note(`${title}: ${done.nodes ? `begun at ${done.nodes.join(", ")}` : "done"}`);
      } catch (error) {
        wrong.textContent = error.message;
        yes.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      before?.focus();
      resolve(isDone);
    });
    const before = document.activeElement;
    document.body.append(dialog);
    dialog.showModal();
    (extra[0]?.[1] ?? typed).focus();
  });
}
