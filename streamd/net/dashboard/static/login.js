// The login: a user of the server, or a token.

import { h } from "./dom.js";
import { post } from "./api.js";

export function page(host, { loggedIn }) {
  const user = h("input", { id: "login-user", type: "text", autocomplete: "username" });
  const password = h("input", { id: "login-password", type: "password", autocomplete: "current-password" });
  const token = h("input", { id: "login-token", type: "password", autocomplete: "off" });
  const wrong = h("p", { class: "error", role: "alert" });
  const go = h("button", { type: "submit" }, "Log in");
  const form = h(
    "form",
    { class: "card login" },
    h("h1", null, "Log in"),
    h("p", { class: "muted" }, "With a user of this server, or with a token."),
    h("p", null, h("label", { for: "login-user" }, "User"), user),
    h("p", null, h("label", { for: "login-password" }, "Password"), password),
    h("p", { class: "or" }, "or"),
    h("p", null, h("label", { for: "login-token" }, "Token"), token),
    wrong,
    go,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    wrong.textContent = "";
    try {
      const login = token.value ? { token: token.value } : { user: user.value, password: password.value };
      await post(["session"], login);
      await loggedIn();
    } catch (error) {
      wrong.textContent = error.message;
      password.value = "";
      token.value = "";
    }
    go.disabled = false;
  });
  host.append(form);
  user.focus();
}
