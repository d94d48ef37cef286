// The JSON of any worker: fetched again only where its ETag is another one.

const known = new Map();
const MOST_KNOWN = 40;

/** The document of a path; the very same object as before where nothing has changed. */
export async function read(path, headers = {}) {
  const before = known.get(path);
  const asked = before ? { ...headers, "If-None-Match": before.etag } : headers;
  const response = await fetch(path, { cache: "no-store", headers: asked });
  if (response.status === 304) return before.body;
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null) {
    throw new Error(body?.error ?? `${path.split("?")[0]} answers ${response.status}`);
  }
  const etag = response.headers.get("ETag");
  if (etag && !headers.Authorization) {
    if (known.size >= MOST_KNOWN) known.delete(known.keys().next().value);
    known.set(path, { etag, body });
  }
  return body;
}

/** Call `changed` when a worker tells of new figures; return whether it can be relied upon now. */
export function listen(path, changed) {
  let source = null;
  let followed = "";
  const follow = () => {
    source?.close();
    followed = path();
    source = new EventSource(followed);
    source.addEventListener("changed", changed);
  };
  follow();
  return () => {
    if (path() !== followed) follow();
    return source.readyState === EventSource.OPEN;
  };
}
