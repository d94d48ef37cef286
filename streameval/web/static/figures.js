// Figures of segments side by side, and every figure as a table.

import { el, frame, stacked, svg, table } from "./dom.js";
import { number, plain, withEnds, words } from "./format.js";

const SECTIONS = { rates: "Rates", ranking: "Ranking", values: "Values", lists: "Lists" };

// More marks in a row are no picture any more.
const MOST_COMPARED = 4;

const isError = (field) => /_(stderr|low|high)$/.test(field);

/** A line from `low` to `high` with a mark at the value, on a scale that several may share.

Where a line leaves the scale it ends in an arrow. */
export function whisker(marks, [from, to]) {
  const height = 14 * marks.length;
  const at = (value) => `${Math.max(0, Math.min(100, ((value - from) / (to - from || 1)) * 100))}%`;
  const drawing = svg("svg", { height, class: "whisker", "aria-hidden": "true" });
  const line = (kind, one, other, top, bottom) =>
    drawing.append(svg("line", { class: kind, x1: at(one), x2: at(other), y1: top, y2: bottom }));
  const arrow = (kind, x, y, sign) =>
    drawing.append(
      svg("svg", { class: kind, x, y, overflow: "visible" }, svg("path", { d: `M ${-7 * sign} -5 L 0 0 L ${-7 * sign} 5` })),
    );
  marks.forEach(({ low, value, high, kind }, row) => {
    const y = 14 * row + 7;
    if (low !== null) line(kind, low, high, y, y);
    if (low !== null && low < from) arrow(kind, "0%", y, -1);
    if (high !== null && high > to) arrow(kind, "100%", y, 1);
    if (value !== null) drawing.append(svg("circle", { class: kind, cx: at(value), cy: y, r: 4 }));
  });
  return drawing;
}

/** The rows of a choice's segments by their title. */
function segments(rows, choice) {
  const found = new Map();
  for (const row of rows) if (choice.holds(row)) found.set(choice.title(row), row);
  return found;
}

/** The key figures: a row each, a column for each segment, and a picture to compare them. */
export function keyFigures(data, settings, choice) {
  const wanted = settings.figures.filter((figure) => figure.is_key);
  const rows = wanted.map((figure) => [figure, segments(rowsOf(data, figure), choice)]);
  const every = segments([...(data.ranking ?? []), ...(data.lists ?? [])], choice);
  const titles = [...every.keys()].sort((one, other) => choice.compare(every.get(one), every.get(other)));
  const shown = titles.slice(0, settings.max_segments);
  const body = rows
    .filter(([figure, found]) => [...found.values()].some((row) => row[figure.figure] !== null))
    .map(([figure, found]) => keyRow(figure, shown.map((title) => found.get(title))));
  const heads = ["figure", ...shown.map(keyed), el("span", { class: "compared" }, "compared")];
  const counted = shown.map((title) => plain(every.get(title).slates));
  const exposed = segments(data.rates ?? [], choice);
  const few = shown.filter((title) => (exposed.get(title)?.users ?? 0) < settings.enough_users);
  if (shown.length > MOST_COMPARED) for (const row of [heads, ...body]) row.pop();
  const holder = stacked(frame("Key figures"));
  const caption = `${choice.get("window")}, ${choice.get("basis")}`;
  holder.append(table(caption, heads, [...body, ["slates", ...counted, ...(shown.length > MOST_COMPARED ? [] : [""])]]));
  return { holder, hidden: titles.length - shown.length, any: body.length > 0, few };
}

export function rowsOf(data, figure) {
  return (data[figure.section] ?? []).filter((row) => !figure.by || row[figure.by] === figure.key);
}

function keyed(title, index) {
  return el("span", {}, el("span", { class: `key s${index % 6}`, "aria-hidden": "true" }), title);
}

function keyRow(figure, rows) {
  const marks = rows.map((row, index) => ({
    value: row?.[figure.figure] ?? null,
    low: row?.[`${figure.figure}_low`] ?? null,
    high: row?.[`${figure.figure}_high`] ?? null,
    kind: `s${index % 6}`,
  }));
  const ends = marks.flatMap(({ low, value, high }) => [low, value, high]).filter((end) => end !== null);
  const scale = ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  const cells = marks.map(({ value, low, high }) => cell(value, low, high, figure.unit));
  return [figure.label, ...cells, el("div", { class: "compared" }, whisker(marks, scale))];
}

function cell(...interval) {
  const [value, ends] = withEnds(...interval);
  return ends ? [`${value} `, el("small", {}, ends)] : value;
}

/** A table for each of some sections: a row for each segment and kind or cutoff. */
export function allFigures(data, names, settings, choice) {
  const drawn = names
    .filter((name) => data[name]?.length)
    .map((name) => sectionTable(name, data[name].filter((row) => choice.holds(row)), settings, choice));
  return drawn.length ? drawn : [el("p", { class: "dim" }, "Nothing in this window yet.")];
}

function sectionTable(name, rows, settings, choice) {
  const title = SECTIONS[name] ?? name;
  const held = new Set(["window", "basis", "feedback", "k", "rank", ...settings.dimensions]);
  const fields = Object.keys(rows[0] ?? {}).filter((field) => !held.has(field) && !isError(field));
  const units = new Map(settings.figures.map((one) => [one.figure, one.unit]));
  const hasError = (field) => `${field}_stderr` in (rows[0] ?? {});
  fields.sort((one, other) => hasError(other) - hasError(one));
  const body = rows.map((row) => [
    nameOf(row, choice),
    ...fields.map((field) =>
      hasError(field) ? cell(row[field], row[`${field}_low`], row[`${field}_high`], units.get(field)) : plain(row[field]),
    ),
  ]);
  const holder = frame(title);
  const caption = `${title}: ${choice.get("window")}, ${choice.get("basis")}`;
  holder.append(table(caption, ["of", ...fields.map(words)], body));
  return holder;
}

function nameOf(row, choice) {
  const key = row.feedback ?? (row.k === undefined ? null : `@${row.k}`);
  return key === null ? choice.title(row) : `${choice.title(row)} · ${key}`;
}

/** Positives by the rank of their item: what each place of a list is worth. */
export function byRank(data, settings, choice) {
  const rows = (data.ranks ?? []).filter((row) => choice.holds(row));
  if (!rows.length) return [];
  const holder = frame("Ranks");
  const body = rows.map((row) => [
    `${nameOf(row, choice)} · rank ${row.rank}`,
    row.impressions ? number(row.positives / row.impressions, "%") : "–",
    plain(row.positives),
    plain(row.impressions),
  ]);
  const caption = `Positives per impression by rank: ${choice.get("window")}, ${choice.get("basis")}`;
  holder.append(table(caption, ["of", "rate", "positives", "impressions"], body));
  return [holder];
}
