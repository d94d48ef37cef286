// Numbers and times as people read them.

export const NOTHING = "–";

/** Decimals for an interval of this half width: one digit of it, or two where it begins with 1 to 3. */
function decimals(half) {
  if (!(half > 0)) return 0;
  const exponent = Math.floor(Math.log10(half));
  const lead = half / 10 ** exponent;
  return Math.min(6, Math.max(0, (lead < 3.55 ? 1 : 0) - exponent));
}

export function plain(value) {
  if (value === null || value === undefined) return NOTHING;
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toString();
}

/** What a unit multiplies by, and its sign: shares in per cent, differences in points. */
export function scaled(unit) {
  return { "%": [100, " %"], points: [100, " points"] }[unit] ?? [1, ""];
}

/** A figure, and the two ends of an interval around it in brackets; "" where it has none. */
export function withEnds(value, low, high, unit) {
  if (value === null || low === null || high === null) return [number(value, unit), ""];
  const [scale, sign] = scaled(unit);
  const digits = decimals(((high - low) / 2) * scale);
  const [written, ...ends] = [value, low, high].map((one) => (one * scale).toFixed(digits));
  return [`${written}${sign}`, `(${ends.join(" to ")})`];
}

export function between(...interval) {
  return withEnds(...interval).join(" ").trimEnd();
}

export function number(value, unit) {
  if (value === null || value === undefined) return NOTHING;
  const [scale, sign] = scaled(unit);
  return `${Number((value * scale).toPrecision(4))}${sign}`;
}

/** A signed number with as many decimals as its interval bears. */
export function signed(value, width, scale) {
  const text = Math.abs(value * scale).toFixed(decimals(width * scale));
  const sign = Number(text) === 0 ? "" : value > 0 ? "+" : "−";
  return sign + text;
}

export function time(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return NOTHING;
  return `${new Date(milliseconds).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** A duration in its largest unit, rounded down: people hear news of it once a unit. */
export function duration(seconds) {
  const left = Math.max(0, Math.floor(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min`;
  if (left < 86400) return `${Math.floor(left / 3600)} h`;
  return `${Math.floor(left / 86400)} d`;
}

export function words(name) {
  const known = { ndcg: "NDCG", map: "MAP", mrr: "MRR", latency_ms_mean: "mean latency (ms)" };
  const [stem, cutoff] = name.split("@");
  return (known[stem] ?? stem.replaceAll("_", " ")) + (cutoff ? `@${cutoff}` : "");
}
