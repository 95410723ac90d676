// The charts of the page: what each draws of the answers of the last minutes.

import { Chart, make } from "./chart.js";
import * as figures from "./figures.js";
import { byteRate, count, micros, percent, rate, words } from "./units.js";

const PARTS = [0.5, 0.99, 0.999];
const COLORS = ["dram", "flash", "miss", "third", "fourth", "accent", "pass"];
/** The path of latency that is chosen first: all reads that the cache answered or missed. */
const ALL_READS = "reads";

const figure = (name) => document.getElementById(`chart-${name}`);

/** Makes all charts; the function returned draws them anew from a history. */
export function charts() {
  const drawn = [reads(), requests(), latency(), writes(), device()];
  return (history, seconds) => {
    const steps = history.steps(seconds);
    const to = history.latest.now;
    for (const one of drawn) one(steps, to - seconds, to, history);
  };
}

/** Draws `series` with `values(step)` for every step. */
function plot(chart, series, steps, from, to, values) {
  const points = steps.map((step) => ({ time: step.to.now, values: values(step) }));
  chart.show(series, points, from, to);
}

function reads() {
  const chart = new Chart(figure("reads"), {
    title: "Reads by where the answer came from", format: percent, stacked: true, top: 1,
    empty: "no reads in this time",
  });
  const series = [
    { name: "DRAM", color: "dram", part: "dramPart" },
    { name: "flash", color: "flash", part: "flashPart" },
    { name: "other instances", color: "third", part: "ringPart" },
    { name: "miss", color: "miss", part: "missPart" },
  ];
  return (steps, from, to) => {
    const inRing = steps.some((step) => step.to.ring);
    const shown = series.filter(({ part }) => inRing || part !== "ringPart");
    plot(chart, shown, steps, from, to, (step) => {
      const all = figures.reads(step);
      return shown.map(({ part }) => all[part]);
    });
  };
}

function requests() {
  const chart = new Chart(figure("requests"), {
    title: "Requests by front end and kind", format: rate, empty: "no requests in this time",
  });
  return (steps, from, to) => {
    const labels = [...new Set(steps.flatMap((step) => figures.requestsByKind(step)
      .filter(([, n]) => n > 0).map(([label]) => label)))];
    const series = labels.map((label, n) => ({
      name: words(label), color: COLORS[n % COLORS.length],
      dash: n >= COLORS.length ? "5 3" : undefined,
    }));
    plot(chart, series, steps, from, to, (step) => {
      const counts = new Map(figures.requestsByKind(step));
      return labels.map((label) => (counts.get(label) ?? 0) / figures.seconds(step));
    });
  };
}

function latency() {
  const choice = make("select", { "aria-label": "Requests whose latency is shown" },
    make("option", { value: ALL_READS }, "all reads"));
  const chart = new Chart(figure("latency"), {
    title: "Latency", format: micros, logarithmic: true, empty: "no such requests in this time", extra: choice,
  });
  const series = [
    { name: "p50", color: "dram" }, { name: "p99", color: "third", dash: "7 3" },
    { name: "p99.9", color: "miss", dash: "2 3" },
  ];
  let again = () => {};
  choice.addEventListener("change", () => again());
  return (steps, from, to, history) => {
    offer(choice, history.latest);
    again = () => plot(chart, series, steps, from, to,
      (step) => figures.percentiles(step, chosen(choice.value), PARTS));
    again();
  };
}

/** Adds a choice for each path that a request has taken. */
function offer(choice, overview) {
  const known = new Set([...choice.options].map((option) => option.value));
  for (const { name, latency: paths } of overview.front_ends) {
    for (const path of Object.keys(paths)) {
      const value = `${name}/${path}`;
      if (!known.has(value)) choice.append(make("option", { value }, `${name}: ${path}`));
    }
  }
}

/** Whether a front end's path is meant by a choice. */
function chosen(choice) {
  if (choice === ALL_READS) return readPath;
  return (name, path) => `${name}/${path}` === choice;
}

/** Whether that path is one of reads that the cache had a part in. */
export function readPath(_, path) {
  return ["dram", "flash", "miss"].includes(path);
}

function writes() {
  const chart = new Chart(figure("writes"), {
    title: "Written to flash", format: byteRate, isBytes: true, stacked: true,
    least: 1024, empty: "nothing written",
  });
  const series = [
    { name: "objects", color: "flash" }, { name: "reinserted", color: "third" },
    { name: "metadata and padding", color: "miss" },
  ];
  return (steps, from, to) => plot(chart, series, steps, from, to, (step) => {
    const { fresh, reinserted, overhead } = figures.written(step);
    return [fresh, reinserted, overhead].map((n) => n / figures.seconds(step));
  });
}

function device() {
  const chart = new Chart(figure("device"), {
    title: "Device queue", format: count, least: 10, empty: "the cache is not open",
  });
  const series = [
    { name: "reads under way", color: "dram" },
    { name: "writes waiting", color: "miss", dash: "5 3" },
  ];
  return (steps, from, to) => plot(chart, series, steps, from, to, ({ to: now }) => [
    figures.readsInFlight(now), now.cache?.flash.chunks_waiting ?? null,
  ]);
}
