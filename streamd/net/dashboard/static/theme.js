// The scheme of colours that was chosen here last, before anything is painted.
{
  let chosen = "";
  try {
    chosen = localStorage.getItem("streamd-theme") ?? "";
  } catch {
    chosen = ""; // a browser that keeps nothing: the system's scheme
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
