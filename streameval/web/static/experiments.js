// How experiments stand: sentences, bounds of each figure as a forest plot, bounds over time.

import { el, frame, stacked, table } from "./dom.js";
import { NOTHING, number, signed } from "./format.js";
import { whisker } from "./figures.js";

const NAMED = new Set(["primary", "guardrail"]);
const MARKS = { better: "▲ better", worse: "▼ worse", "no difference shown": "● no difference shown" };
const KINDS = { better: "good", worse: "bad" };

/** Everything about one experiment but its chart. */
export function card(found, settings) {
  const named = found.experiments.filter((row) => NAMED.has(row.role));
  const said = found.experiments.length ? found.sentences : ["No arm has a final slate yet."];
  const parts = [
    el("h3", {}, found.name),
    ...said.map((sentence) => el("p", { class: "said" }, sentence)),
    ...found.beside.map((sentence) => el("p", { class: "dim" }, sentence)),
    ...[...found.warnings, ...(found.remarks ?? [])].map((warning) => el("p", { class: "warning" }, warning)),
  ];
  if (named.length) parts.push(forest(found.name, named, settings));
  const rest = found.experiments.filter((row) => !NAMED.has(row.role));
  return { parts, rest: rest.length ? () => [forest(`${found.name}, exploratory`, rest, settings)] : null };
}

/** Differences with their bounds, as shares of the control's figure so that rows share a scale. */
function forest(name, rows, settings) {
  const scale = reach(rows);
  const sided = `−${number(scale, "%")} · 0 · +${number(scale, "%")} of the control`;
  const heads = ["figure", sided, "difference, bounds", "control → arm"];
  const holder = stacked(frame(`Experiment ${name}`));
  const promise = NAMED.has(rows[0].role)
    ? "The bounds hold at every look, over all named figures together."
    : "Each bound holds at every look, but not all of them together.";
  const caption = `${name}: difference of each arm from the control. ${promise}`;
  holder.append(table(caption, heads, rows.map((row) => forestRow(row, scale, settings))));
  holder.classList.add("forest");
  return holder;
}

function forestRow(row, scale, settings) {
  const figure = settings.metrics[row.metric] ?? { label: row.metric, points: false };
  const part = (value) => (value === null || !row.control_value ? null : value / Math.abs(row.control_value));
  const kind = KINDS[row.verdict] ?? "open";
  const mark = { low: part(row.low), value: part(row.difference), high: part(row.high), kind };
  if (mark.high === null) mark.low = null;
  const about = `${row.arm} against ${row.control}, ${row.role}`;
  return [
    [figure.label, el("small", {}, about)],
    whisker([mark], [-scale, scale]),
    [
      el("span", { class: kind }, MARKS[row.verdict] ?? `… ${row.verdict}`),
      el("small", {}, bounds(row, figure.points)),
    ],
    `${number(row.control_value)} → ${number(row.value)}`,
  ];
}

/** The difference with its bounds: shares and scores in points, hundredths, as the sentences say. */
function bounds(row, inPoints) {
  const scale = inPoints ? 100 : 1;
  if (row.difference === null) return NOTHING;
  if (row.low === null || row.high === null) return signed(row.difference, Math.abs(row.difference), scale);
  const width = (row.high - row.low) / 2;
  const [value, low, high] = [row.difference, row.low, row.high].map((one) => signed(one, width, scale));
  const of = row.bounds === "all lists" ? "" : `, ${row.bounds}`;
  return `${value}${inPoints ? " points" : ""} (${low} to ${high}${of})`;
}

/** Half of the scale: all bounds, but for rows far wider than the primary figure, or than most. */
function reach(rows) {
  const bounded = rows.filter((row) => row.low !== null && row.high !== null && row.control_value);
  const widths = (some) =>
    some
      .map((row) => Math.max(Math.abs(row.low), Math.abs(row.high)) / Math.abs(row.control_value))
      .sort((one, other) => one - other);
  const widest = widths(bounded);
  if (!widest.length) return 0.1;
  const primary = widths(bounded.filter((row) => row.role === "primary")).at(-1);
  const wanted = Math.min(widest.at(-1), 3 * (primary ?? widest[Math.floor((widest.length - 1) / 2)]));
  const digit = 10 ** Math.floor(Math.log10(wanted || 0.1));
  return Math.ceil((wanted || 0.1) / digit) * digit;
}
