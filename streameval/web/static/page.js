// The live page: fetches what any worker knows of all of them, and draws it.

import { el, folded, renew, say } from "./dom.js";
import { listen, read } from "./api.js";
import { Choice } from "./choice.js";
import { canDraw, Chart } from "./charts.js";
import { card } from "./experiments.js";
import { time } from "./format.js";
import { allFigures, byRank, keyFigures } from "./figures.js";
import { anyFailed, checkTable, freshness, state, streamHealth, userForm } from "./service.js";

const API = "api/v1";
const settings = JSON.parse(document.body.dataset.settings);
// Seconds between two looks: figures move each tick, charts have a point a minute.
const EVERY = { figures: settings.refresh_seconds, health: settings.refresh_seconds, experiments: 15, checks: 60, history: 30, maturity: 30 };

// Milliseconds after which workers that were just asked have shared their figures.
const SHARED_SOON = 2500;

const now = () => performance.now() / 1000;
const main = document.getElementById("main");
const choice = new Choice(settings, () => refresh(["figures", "history"]));
const known = {};
const failed = new Map();
const lookedAt = {};
let answeredAt = now();

const parts = build();

function build() {
  const figures = document.getElementById("figures");
  const note = el("p", { class: "dim", id: "note" });
  const asked = el("p", { class: "dim" }, "The workers are asked for their figures.");
  const shown = el("div", { id: "key-figures" }, asked);
  figures.append(choice.form, note, shown);
  const chart = new Chart("history", "Over time");
  const lacking = el(
    "p",
    { class: "warning", hidden: canDraw() ? "" : null },
    "Charts are shown as tables: this installation was built without npm and lacks uPlot. Install npm, then install streameval again.",
  );
  const over = el("section", { "aria-label": "Over time" }, el("h2", {}, "Over time"), lacking, chart.element);
  const more = {
    all: folded("all", "All figures"),
    lists: folded("lists", "List health and ranks"),
    values: folded("values", "Values"),
    stream: folded("stream", "Stream health"),
    checks: folded("checks", "Checks"),
    user: folded("user", "One user"),
  };
  const user = userForm();
  more.user.update(() => user);
  const rest = el("section", { "aria-label": "More" }, ...Object.values(more));
  const trouble = el("p", { class: "warning", id: "trouble", role: "status", hidden: "" });
  main.prepend(trouble);
  main.append(over, rest);
  return { note, shown, chart, more, trouble, cards: new Map() };
}

function paths() {
  const selected = choice.figure();
  const asked = new URLSearchParams({ window: choice.get("window"), basis: choice.get("basis") });
  const drawn = new URLSearchParams(asked);
  drawn.set("section", selected.section);
  drawn.set("figure", selected.figure);
  if (selected.by) drawn.set(selected.by === "feedback" ? "kind" : selected.by, selected.key);
  drawn.set("hours", choice.get("hours"));
  return {
    figures: `${API}/figures?${asked}`,
    maturity: `${API}/figures?section=maturity`,
    health: `${API}/health`,
    experiments: `${API}/experiments`,
    checks: `${API}/checks`,
    history: `${API}/history?${drawn}`,
  };
}

const draw = {
  figures(data) {
    if (!data.partitions.shown.length) {
      setTimeout(() => refresh(["figures"]), SHARED_SOON);
      return;
    }
    choice.offer([...(data.ranking ?? []), ...(data.lists ?? [])]);
    const { holder, hidden, any, few } = keyFigures(data, settings, choice);
    const basis = choice.get("basis");
    const told = {
      matured: "Matured figures can no longer change: compare by them.",
      live: "Live figures are fresh, and low while feedback is still coming in.",
      nowcast: "Nowcasts are live figures with the feedback that is still to come.",
    };
    const rest = hidden ? ` ${hidden} more are not shown: choose values of the dimensions.` : "";
    parts.note.textContent = any
      ? `A 95 % interval stands in brackets: the truth lies within it 95 times in 100, at one look. ${told[basis]}${rest}${fewUsers(few)}`
      : `No ${basis} figures in this window yet.`;
    if (basis !== "matured" && parts.matures) parts.note.textContent += ` ${parts.matures}`;
    renew(parts.shown, any ? [holder] : []);
    parts.more.all.update(() => allFigures(data, ["rates", "ranking"], settings, choice));
    parts.more.lists.update(() => [...allFigures(data, ["lists"], settings, choice), ...byRank(data, settings, choice)]);
    parts.more.values.update(() => allFigures(data, ["values"], settings, choice));
    for (const section of ["lists", "values"]) {
      parts.more[section].hidden = !settings.figures.some((figure) => figure.section === section);
    }
  },
  maturity(data) {
    const matures = (row) => row.maturity > 0;
    const told = data.maturity.some(matures) ? "" : (parts.matures ?? firstMatured(data));
    if (parts.matures !== told) {
      parts.matures = told;
      if (known.figures) draw.figures(known.figures);
    }
    // Whoever asks for all windows has the workers share them all: once the choice is made, nobody does.
    const [smallest] = settings.windows;
    if (data.maturity.some((row) => row.window === smallest && matures(row))) EVERY.maturity = Infinity;
    // The smallest window with figures, matured ones if it has any, unless the reader wants others.
    const holds = (window, basis) =>
      data.maturity.some((row) => row.window === window && (basis !== "matured" || matures(row)));
    const windows = choice.isAsked("window") ? [choice.get("window")] : settings.windows;
    const bases = choice.isAsked("basis") ? [choice.get("basis")] : ["matured", "live"];
    const window = windows.find((name) => bases.some((basis) => holds(name, basis)));
    const basis = bases.find((one) => holds(window, one));
    if (window && [choice.suggest("window", window), choice.suggest("basis", basis)].some(Boolean)) {
      refresh(["figures", "history"]);
    }
  },
  health(data) {
    parts.more.stream.update(() => streamHealth(data, known.figures));
  },
  experiments(data) {
    drawExperiments(data.experiments);
  },
  checks(data) {
    const wasFailing = parts.failing;
    parts.failing = anyFailed(data.checks);
    parts.more.checks.update(() => checkTable(data.checks));
    if (parts.failing && !wasFailing) parts.more.checks.open = true;
  },
  history(data) {
    const selected = choice.figure();
    const series = data.series.filter((one) => choice.holds(one.labels) && ofFigure(one.labels, selected));
    const named = series
      .map((one) => ({ ...one, name: choice.title(one.labels) }))
      .sort((one, other) => choice.compare(one.labels, other.labels))
      .slice(0, settings.max_segments);
    const label = `${selected.label}, ${choice.get("window")} ${choice.get("basis")}, times in UTC, bands are 95 % intervals`;
    parts.chart.show(label, selected.unit, data.times, named);
  },
};

/** Say which segments have fewer users than their intervals need. */
function fewUsers(titles) {
  if (!titles.length) return "";
  return ` Fewer than ${settings.enough_users} users: ${titles.join(", ")}. Their intervals may hold less often than 95 times in 100, where a few users make most of the traffic.`;
}

const ofFigure = (labels, figure) =>
  !figure.by || !(figure.by in labels) || String(labels[figure.by]) === String(figure.key);

/** Say when figures mature at the latest: what is shown now can no longer change then. */
function firstMatured(data) {
  if (!data.at || !data.maturity.length) return undefined;
  return `The first matured figures come by ${time(data.at + settings.horizon)} at the latest.`;
}

function drawExperiments(cards) {
  let section = document.getElementById("experiments");
  if (!section && cards.length) {
    const title = el("h2", { id: "experiments-title" }, "Experiments");
    section = el("section", { id: "experiments", "aria-labelledby": "experiments-title" }, title);
    document.getElementById("figures").before(section);
  }
  for (const found of cards) {
    if (!parts.cards.has(found.name)) parts.cards.set(found.name, article(found.name, section));
    const { body, more } = parts.cards.get(found.name);
    const drawn = card(found, settings);
    renew(body, drawn.parts);
    more.hidden = !drawn.rest;
    if (drawn.rest) more.update(drawn.rest);
  }
}

function article(name, section) {
  const body = el("div");
  const more = folded(`exploratory-${parts.cards.size}`, "Exploratory figures, which promise nothing together", "span");
  const chart = new Chart(`bounds-${parts.cards.size}`, "Bounds over time", { height: 150, aims: true });
  chart.element.hidden = true;
  section.append(el("article", {}, body, chart.element, more));
  return { body, more, chart };
}

/** Draw how the bounds of the primary figure narrowed, where a history of them is kept. */
async function boundsOverTime(found) {
  const held = parts.cards.get(found.name);
  const primary = found.experiments.find((row) => row.role === "primary");
  if (!held || !primary) return;
  const asked = new URLSearchParams({ metric: primary.metric });
  const { history: arms } = await read(`${API}/experiments/${encodeURIComponent(found.name)}?${asked}`);
  const times = [...new Set(arms.flatMap((one) => one.times))].sort((one, other) => one - other);
  const series = arms.map((one) => ({
    name: `${one.arm} against ${primary.control}`,
    value: along(times, one, "difference"),
    low: along(times, one, "low"),
    high: along(times, one, "high"),
  }));
  const { label, points } = settings.metrics[primary.metric] ?? { label: primary.metric, points: false };
  const unit = points ? "points" : "";
  held.chart.element.hidden = !series.length;
  if (series.length) held.chart.show(`Difference in ${label}, with bounds that hold at every look, times in UTC`, unit, times, series);
}

/** The numbers of one arm at the times of all arms; null where it has none. */
function along(times, arm, name) {
  const known = new Map(arm.times.map((at, index) => [at, arm[name][index]]));
  return times.map((at) => known.get(at) ?? null);
}

/** Fetch what is due, and draw what has changed. */
async function refresh(forced = []) {
  const wanted = paths();
  const due = Object.keys(EVERY).filter(
    (name) => forced.includes(name) || now() - (lookedAt[name] ?? -Infinity) >= EVERY[name] - 0.5,
  );
  await Promise.all(due.map((name) => look(name, wanted[name])));
  tell();
}

async function look(name, path) {
  lookedAt[name] = now();
  try {
    const found = await read(path);
    answeredAt = now();
    failed.delete(name);
    if (path !== paths()[name]) return; // the reader has chosen something else meanwhile
    const changed = known[name] !== found;
    known[name] = found;
    if (changed) draw[name](found);
    if (changed && name === "experiments") await Promise.all(found.experiments.map(boundsOverTime));
  } catch (error) {
    failed.set(name, error.message);
  }
}

function tell() {
  const told = state(known.health, known.figures, now() - answeredAt);
  const line = document.getElementById("state");
  if (told) {
    line.className = told[0];
    say(line, told[1]);
  }
  say(document.getElementById("freshness"), freshness(known.health, known.figures));
  const reasons = [...new Set(failed.values())].join("; ");
  parts.trouble.hidden = !reasons;
  say(parts.trouble, reasons && `Not everything could be fetched: ${reasons}`);
}

function start() {
  let news = true;
  const isTold = listen(
    () => `${API}/stream?window=${encodeURIComponent(choice.get("window"))}`,
    () => { news = true; },
  );
  const visit = () => {
    if (document.hidden) return;
    if (isTold() && !news) lookedAt.figures = now();
    news = false;
    refresh();
  };
  setInterval(visit, settings.refresh_seconds * 1000);
  document.addEventListener("visibilitychange", visit);
  visit();
}

start();
