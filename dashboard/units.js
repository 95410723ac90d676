// Numbers with their units, as people read them.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Three figures at least of a number below 1,000: 0.12, 3.45, 67.8, 901. */
function few(value) {
  const digits = value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits);
}

/** A count, whole: 1,234,567. */
export function count(value) {
  return NUMBER.format(value);
}

/** A large number with the letter of its thousands: 12.3 k. A whole one below 10,000 is whole. */
export function short(value) {
  if (Number.isInteger(value) && value < 1e4) return count(value);
  for (const [letter, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (value >= size) return `${few(value / (letter === "k" ? 1e3 : size))} ${letter}`;
  }
  return value >= 100 ? count(value) : few(value);
}

/** So many a second. */
export function rate(value) {
  return value === null ? "–" : `${short(value)}/s`;
}

/** Bytes: 64.0 MiB. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? count(value) : few(value)} ${units[unit]}`;
}

/** Bytes a second. */
export function byteRate(value) {
  return value === null ? "–" : `${bytes(value)}/s`;
}

/** A part of one in percent. */
export function percent(value) {
  if (value === null) return "–";
  return `${(value * 100).toFixed(value > 0.9995 || value === 0 ? 0 : 1)} %`;
}

/** A short time from microseconds: 12 µs, 3.45 ms, 1.20 s. */
export function micros(value) {
  if (value === null) return "–";
  if (value < 1000) return `${few(value)} µs`;
  return value < 1e6 ? `${few(value / 1e3)} ms` : `${few(value / 1e6)} s`;
}

/** A long time from seconds, in its two largest units: 3 d 4 h. */
export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [word, size] = units[first];
  const rest = Math.floor((seconds % size) / (units[first + 1]?.[1] ?? 1));
  const second = units[first + 1] && rest > 0 ? ` ${rest} ${units[first + 1][0]}` : "";
  return `${Math.floor(seconds / size)} ${word}${second}`;
}

/** The time of day of seconds since 1970. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A word of a metrics label for people: `held_by_other` as "held by other". */
export function words(label) {
  return label.replaceAll("_", " ");
}
