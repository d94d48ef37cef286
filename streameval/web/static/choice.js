// What the reader has chosen to see, kept in the address of the page.

import { el } from "./dom.js";
import { words } from "./format.js";

const HOURS = ["1", "6", "24"];
const DIMENSION = "by.";

export class Choice {
  constructor(settings, changed) {
    this.settings = settings;
    this.totalsFirst = (one, other) =>
      (other === settings.total) - (one === settings.total) || (one < other ? -1 : one > other ? 1 : 0);
    this.offered = (value) => (value === settings.total ? "any, together" : value || "each");
    this.changed = changed;
    this.asked = new URLSearchParams(location.search);
    this.selects = new Map();
    this.usual = new Map();
    this.form = el("form", { id: "choice", class: "choice", "aria-label": "What is shown" });
    const names = [...new Set(settings.figures.map(nameOf))];
    const kinds = [...new Set(settings.figures.filter((one) => one.by === "feedback").map((one) => one.key))];
    this.select("window", "Window", settings.windows, settings.windows[0]);
    this.select("basis", "Basis", settings.bases, settings.bases[0]);
    this.select("figure", "Figure of the chart", names, names[0], words);
    this.select("kind", "Kind of feedback", kinds, kinds[0]);
    // Variants stand side by side over all values of further dimensions, until the reader wants others.
    settings.dimensions.forEach((dimension, order) => {
      const usual = order ? settings.total : "";
      const values = [...new Set(["", usual, ...this.wanted(DIMENSION + dimension)])];
      this.select(DIMENSION + dimension, dimension, values, usual, this.offered);
    });
    this.select("hours", "Hours of the chart", HOURS, "6");
    this.form.addEventListener("change", (event) => this.store(event.target));
    this.kindMatters();
  }

  wanted(name) {
    return this.asked.has(name) && this.asked.get(name) ? [this.asked.get(name)] : [];
  }

  select(name, label, values, fallback, shown) {
    const control = el("select", { name });
    this.usual.set(name, fallback);
    fillSelect(control, values, shown);
    const asked = this.asked.get(name);
    control.value = values.includes(asked) ? asked : fallback;
    this.selects.set(name, control);
    this.form.append(el("label", {}, el("span", {}, label), control));
  }

  get(name) {
    return this.selects.get(name).value;
  }

  /** Whether the reader, and not the page, has chosen this. */
  isAsked(name) {
    return this.asked.has(name);
  }

  /** Choose for a reader who has not; tell whether that is a change. */
  suggest(name, value) {
    if (this.isAsked(name) || this.get(name) === value) return false;
    this.selects.get(name).value = value;
    this.usual.set(name, value);
    return true;
  }

  /** The figure of the chart: a row of `settings.figures`. */
  figure() {
    const named = this.settings.figures.filter((one) => nameOf(one) === this.get("figure"));
    return named.find((one) => one.by !== "feedback" || one.key === this.get("kind")) ?? named[0];
  }

  /** Offer the values of the dimensions that there are. */
  offer(rows) {
    for (const dimension of this.settings.dimensions) {
      const control = this.selects.get(DIMENSION + dimension);
      const found = [...new Set(rows.map((row) => row[dimension]))].sort(this.totalsFirst);
      const values = ["", ...new Set([...found, ...(control.value ? [control.value] : [])])];
      if (values.join("\n") !== [...control.options].map((one) => one.value).join("\n")) {
        const held = control.value;
        fillSelect(control, values, this.offered);
        control.value = held;
      }
    }
  }

  /** Whether a row is of the chosen values of the dimensions: each of them, or one, or the total. */
  holds(row) {
    return this.settings.dimensions.every((dimension) => {
      const chosen = this.get(DIMENSION + dimension);
      return chosen ? row[dimension] === chosen : row[dimension] !== this.settings.total;
    });
  }

  /** Name the segment of a row by what is not chosen already. */
  title(row) {
    const left = this.settings.dimensions.filter((name) => !this.get(DIMENSION + name));
    const shown = left.length ? left : this.settings.dimensions;
    const named = (name) => (row[name] === this.settings.total ? `any ${name}` : row[name] || "(none)");
    return shown.map(named).join(" · ") || "all";
  }

  /** Order rows as people read them: totals over the most dimensions first, then by name. */
  compare(one, other) {
    const { dimensions, total } = this.settings;
    const totals = (row) => dimensions.filter((name) => row[name] === total).length;
    return totals(other) - totals(one) || this.title(one).localeCompare(this.title(other));
  }

  store(control) {
    if (control.value !== this.usual.get(control.name)) this.asked.set(control.name, control.value);
    else this.asked.delete(control.name);
    history.replaceState(null, "", `?${this.asked}${location.hash}`);
    this.kindMatters();
    this.changed();
  }

  kindMatters() {
    this.selects.get("kind").disabled = this.figure().by !== "feedback";
  }
}

function nameOf(figure) {
  return figure.by === "k" ? `${figure.figure}@${figure.key}` : figure.figure;
}

function fillSelect(control, values, shown = (value) => value || "all") {
  control.replaceChildren(...values.map((value) => el("option", { value }, shown(value))));
}
