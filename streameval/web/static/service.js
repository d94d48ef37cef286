// The state in one line, stream health by partition, checks with their advice, one user's counters.

import { el, frame, stacked, table } from "./dom.js";
import { duration, NOTHING, plain, time, words } from "./format.js";
import { read } from "./api.js";

// Figures are behind when events of the last minute are missing, and stale when no answer comes.
const BEHIND_SECONDS = 60;
const STALE_SECONDS = 20;

const COUNTS = ["accepted", "rejected", "duplicates", "unattributed", "waiting", "ignored"];
const MARKS = { passed: ["✓", "good"], failed: ["✕", "bad"], warns: ["!", "warn"], "no answer": ["?", "warn"] };

/** One line for somebody who has a second: its kind and its words. */
export function state(health, data, silentSeconds) {
  if (silentSeconds > STALE_SECONDS) {
    return ["bad", `Stale: no answer for ${duration(silentSeconds)}, the figures are older`];
  }
  if (!health) return null;
  if (!health.ready) return ["bad", `Not well: ${health.reason}`];
  if (health.lag !== 0 && health.behind_seconds > BEHIND_SECONDS) {
    return ["warn", `Behind by ${duration(health.behind_seconds)}: events wait to be read`];
  }
  const age = (health.at - (data?.partitions?.made_at ?? health.at)) / 1000;
  if (age > BEHIND_SECONDS) return ["warn", `Serving, but the figures are ${duration(age)} old`];
  if (health.rejected.is_much) return ["warn", `Serving, but ${health.rejected.message}`];
  return ["good", "Serving, up to date"];
}

/** What the figures cover. */
export function freshness(health, data) {
  const parts = [];
  if (health) parts.push(`topic ${health.topic}`, `group ${health.group}`);
  if (data?.partitions) {
    const { shown, of } = data.partitions;
    parts.push(`figures of ${shown.length} of ${of} partitions`);
  }
  if (health?.workers) parts.push(`${health.workers.length} ${health.workers.length === 1 ? "worker" : "workers"}`);
  if (data?.at) parts.push(`up to ${time(data.at)}`);
  const { message, latest, is_much: isMuch } = health?.rejected ?? {};
  if (message && !isMuch) parts.push(message);
  if (latest) parts.push(`latest rejected: ${latest}`);
  return parts.join(" · ");
}

const ofTime = (value) => (value === null || value === undefined ? NOTHING : duration(value));
const PARTITION = {
  state: plain,
  lag: plain,
  behind_seconds: ofTime,
  watermark: time,
  committed_offset: plain,
  open_slates: plain,
  users: plain,
  checkpoint_age_seconds: ofTime,
  worker: plain,
};

/** Exact counts of the log, and a row for each partition and worker. */
export function streamHealth(health, data) {
  const total = (count) =>
    typeof count === "object" ? Object.values(count).reduce((sum, one) => sum + one, 0) : count;
  const drawn = [];
  if (data?.events) {
    const counts = COUNTS.filter((name) => name in data.events).map((name) => [name, total(data.events[name])]);
    if (health) counts.push(["lag", health.lag]);
    drawn.push(
      el("dl", {}, ...counts.map(([name, count]) => el("div", {}, el("dt", {}, name), el("dd", {}, plain(count))))),
    );
  }
  if (!health) return drawn;
  const columns = Object.keys(PARTITION);
  const partitions = frame("Partitions");
  const rows = health.partitions.map((row) => [
    `partition ${row.partition}`,
    ...columns.map((name) => PARTITION[name](row[name])),
  ]);
  const heads = columns.map((name) => words(name.replace("_seconds", "")));
  partitions.append(table("Partitions of the topic", ["partition", ...heads], rows));
  const workers = frame("Workers");
  const ofWorkers = (health.workers ?? []).map((one) => [
    one.name,
    one.leader ? "leader" : "follower",
    one.reason ?? one.remark ?? "ready",
    ofTime(one.uptime_seconds),
    one.version,
  ]);
  workers.append(table("Workers of the group", ["worker", "role", "state", "up", "version"], ofWorkers));
  return [...drawn, partitions, workers];
}

const isFailing = (check) => check.state === "failed" || check.state === "warns";

/** Whether one of the checks has failed. */
export function anyFailed(checks) {
  return checks.some(isFailing);
}

export function checkTable(checks) {
  if (!checks.length) return [el("p", { class: "dim" }, "No check has run yet: the leader runs them with each snapshot.")];
  const rows = [...checks]
    .sort((one, other) => isFailing(other) - isFailing(one))
    .map((check) => {
      const [mark, kind] = MARKS[check.state] ?? ["–", "dim"];
      return [
        words(check.name),
        el("span", { class: kind }, `${mark} ${check.state}`),
        plain(check.value),
        time(check.ended),
        el("span", { class: "prose" }, check.message || NOTHING),
      ];
    });
  const holder = stacked(frame("Checks"));
  holder.append(table("The last run of each check", ["check", "outcome", "value", "ended", "finding and advice"], rows));
  return [holder];
}

/** A form that shows one user's counters. The token stays in the memory of this page. */
export function userForm() {
  const id = el("input", { name: "id", required: "", autocomplete: "off", spellcheck: "false" });
  const token = el("input", { name: "token", type: "password", required: "", autocomplete: "off" });
  const found = el("div", { "aria-live": "polite" });
  const form = el(
    "form",
    { class: "choice", "aria-label": "Look up a user" },
    el("label", {}, el("span", {}, "User id"), id),
    el("label", {}, el("span", {}, "Token"), token),
    el("button", {}, "Show"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const path = `api/v1/users/${encodeURIComponent(id.value)}`;
    try {
      const counters = await read(path, { Authorization: `Bearer ${token.value}` });
      found.replaceChildren(userTable(counters));
    } catch (error) {
      found.replaceChildren(el("p", { class: "warning" }, error.message));
    }
  });
  return [form, found];
}

/** Names and numbers, however deep they lie. */
function* flat(value, name = "") {
  if (value === null || typeof value !== "object") yield [words(name), plain(value)];
  else for (const [key, inner] of Object.entries(value)) yield* flat(inner, name ? `${name} · ${key}` : key);
}

function userTable(counters) {
  const holder = frame("Counters of the user");
  holder.append(table(`Counters of ${counters.user_id}`, ["counter", "value"], [...flat(counters)]));
  return holder;
}
