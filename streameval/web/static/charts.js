// Lines with bands over time: by uPlot, and as a table besides.

import { el, folded, frame, table } from "./dom.js";
import { between, scaled, time } from "./format.js";

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 5]];
const MOST_ROWS = 24;
const DAY_SECONDS = 86_400;
// Seconds between ticks: there is a point a minute.
const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10_080].map((minutes) => 60 * minutes);

export const canDraw = () => typeof window.uPlot === "function";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A chart with its legend and its table; `show` gives it data. */
export class Chart {
  /** `aims`: whether the chart shows the newest bounds and zero, and lets wider ones run out. */
  constructor(id, label, { height = 220, aims = false } = {}) {
    this.plot = null;
    this.shape = "";
    Object.assign(this, { height, aims });
    this.title = el("figcaption", {}, label);
    this.legend = el("ul", { class: "legend" });
    this.canvas = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": label });
    this.numbers = folded(`${id}-table`, "The chart as a table", "span");
    this.empty = el("p", { class: "dim", hidden: "" });
    const parts = [this.title, this.legend, this.empty, this.canvas, this.numbers];
    this.element = el("figure", { class: "chart", id }, ...parts);
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.again());
  }

  /** Show `series` ({name, value, low, high}) over `times` (ms). */
  show(label, unit, times, series) {
    Object.assign(this, { unit, times, series });
    const known = series.some((one) => one.value.some((value) => value !== null));
    this.title.textContent = label;
    this.canvas.setAttribute("aria-label", this.summary(label));
    this.empty.hidden = known;
    this.empty.textContent = "No figure has been kept for this choice yet: it takes a minute or two.";
    this.canvas.hidden = !known || !canDraw();
    this.numbers.hidden = !known;
    this.numbers.update(() => [this.rows(label)]);
    this.tell(times.length - 1);
    if (known && canDraw()) this.draw();
    else if (known) this.numbers.open = true;
  }

  summary(label) {
    const told = this.series.map((one) => `${one.name}: ${this.text(one, lastKnown(one))}`);
    return `${label}. Newest: ${told.join("; ")}. The table below has the numbers.`;
  }

  text(one, index) {
    const at = (values) => values[index] ?? null;
    return between(at(one.value), at(one.low), at(one.high), this.unit);
  }

  /** Write the legend with the figures at one time. */
  tell(index) {
    const items = this.series.map((one, order) => {
      const at = index === this.times.length - 1 ? lastKnown(one) : index;
      return el(
        "li",
        {},
        el("span", { class: `key s${order % 6}`, "aria-hidden": "true" }),
        `${one.name} `,
        el("span", { class: "dim" }, this.text(one, at)),
      );
    });
    this.legend.replaceChildren(...items);
  }

  rows(label) {
    const every = Math.ceil(this.times.length / MOST_ROWS) || 1;
    const kept = this.times.map((_, index) => index).filter((index) => (this.times.length - 1 - index) % every === 0);
    const body = kept.map((index) => [
      time(this.times[index]),
      ...this.series.map((one) => this.text(one, index)),
    ]);
    const holder = frame(`${label}, as a table`);
    holder.append(table(label, ["time", ...this.series.map((one) => one.name)], body.reverse()));
    return holder;
  }

  draw() {
    const columns = this.series.flatMap((one) => [one.value, one.low, one.high]);
    const [scale] = scaled(this.unit);
    const data = [
      this.times.map((at) => at / 1000),
      ...columns.map((column) => column.map((value) => (value === null ? null : value * scale))),
    ];
    const shape = JSON.stringify([this.unit, this.series.map((one) => one.name)]);
    if (this.plot && this.shape === shape) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.shape = shape;
    this.plot = new window.uPlot(this.options(), data, this.canvas);
  }

  options() {
    const [line, dim] = [color("--line"), color("--dim")];
    const axis = { stroke: dim, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const sign = this.unit === "%" ? " %" : "";
    return {
      width: this.canvas.clientWidth || 300,
      height: this.height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, y: this.aims ? { range: () => this.aim() } : {} },
      axes: [
        { ...axis, incrs: TICKS, values: (_, ticks) => ticks.map((tick) => clock(tick, ticks.at(-1) - ticks[0])) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => `${Number(tick.toPrecision(6))}${sign}`) },
      ],
      series: [{}, ...this.series.flatMap((_, order) => lines(order))],
      bands: this.series.map((_, order) => ({
        series: [3 * order + 3, 3 * order + 2],
        fill: `${color(`--s${order % 6}`)}2e`,
      })),
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? this.times.length - 1)] },
    };
  }

  /** The range around zero and the newest bounds: the first, wide ones would hide all others. */
  aim() {
    const [scale] = scaled(this.unit);
    const ends = this.series.filter((one) => lastKnown(one) >= 0).flatMap((one) => {
      const index = lastKnown(one);
      const [low, high] = [one.low[index] * scale, one.high[index] * scale];
      return [low - (high - low), high + (high - low)];
    });
    return [Math.min(0, ...ends), Math.max(0, ...ends)];
  }

  /** Move the cursor by the arrow keys. */
  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.plot) return;
    event.preventDefault();
    const last = this.times.length - 1;
    const index = Math.max(0, Math.min(last, (this.plot.cursor.idx ?? last + 1) + by));
    this.plot.setCursor({ left: this.plot.valToPos(this.times[index] / 1000, "x"), top: this.height / 3 });
  }

  resize() {
    if (this.plot && this.canvas.clientWidth) this.plot.setSize({ width: this.canvas.clientWidth, height: this.height });
  }

  again() {
    this.shape = "";
    if (this.plot) this.draw();
  }
}

/** The time of day (UTC) at a tick; with the date where the axis is longer than a day. */
function clock(seconds, span) {
  const written = new Date(seconds * 1000).toISOString();
  return span > DAY_SECONDS ? `${written.slice(5, 10)} ${written.slice(11, 16)}` : written.slice(11, 16);
}

function lines(order) {
  const stroke = color(`--s${order % 6}`);
  const edge = { stroke: "transparent", width: 0, points: { show: false } };
  // uPlot draws points where they are few: one without neighbours would be no line.
  return [{ stroke, width: 2, dash: DASHES[order % 6], points: { size: 6, fill: stroke } }, edge, edge];
}

function lastKnown(one) {
  return one.value.findLastIndex((value) => value !== null);
}
