// Addresses of pages: `#/streams/ACCOUNT/NAME?tab=messages`. Each segment is percent-encoded.

export function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean).map(decoded);
  return { path: words, query: new URLSearchParams(query ?? "") };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word; // a stray % that somebody typed
  }
}

/** The address of a page; `query` without its empty values. */
export function to(path, query = {}) {
  const words = path.map((word) => encodeURIComponent(word)).join("/");
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs).toString();
  return `#/${words}${text ? `?${text}` : ""}`;
}

/** Change the query of the address without leaving the page. */
export function note(query) {
  const { path, query: old } = current();
  const merged = { ...Object.fromEntries(old), ...query };
  history.replaceState(null, "", to(path, merged));
}
