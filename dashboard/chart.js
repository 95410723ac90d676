// One chart: lines or stacked areas over time. Its legend is a list of the latest values. A cursor
// follows pointer and keyboard.

import { clock } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [62, 10, 10, 20];
/** Points further apart than this are not joined: nobody knows what was between them. */
const GAP_SECONDS = 9;
const WAITING = "waiting for the second sample";

/** Makes an element with attributes and children. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function draw(parent, name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

/** The smallest of 1, 2, 2.5, 5 times a power of ten (bytes: of two) that is not below `value`. */
function niceTop(value, isBytes) {
  if (!(value > 0)) return 1;
  if (isBytes) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

/** A logarithmic scale of whole powers of ten around all values above 0, at most six named. */
function decades(values) {
  const known = values.filter((value) => value > 0);
  const low = known.length > 0 ? Math.floor(Math.log10(Math.min(...known))) : 0;
  const high = known.length > 0 ? Math.ceil(Math.log10(Math.max(...known))) : 1;
  const span = Math.max(1, high - low);
  const step = Math.ceil(span / 5);
  const marks = [];
  for (let power = low; power <= low + span; power += step) marks.push(10 ** power);
  return { marks, part: (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / span };
}

/** A chart in a figure of the page. */
export class Chart {
  #figure; #options; #svg; #legend; #moment; #view = null; #at = null;

  /**
   * The options:
   * - `title`, `format` of a value, `stacked`, `isBytes`, `logarithmic`
   * - `top`: the highest value, otherwise the data's; `least`: the top at least
   * - `empty`: the text for points without values
   * - `extra`: an element beside the title
   */
  constructor(figure, options) {
    this.#figure = figure;
    this.#options = options;
    const id = `${figure.id}-title`;
    const title = make("h3", { id }, options.title);
    this.#svg = document.createElementNS(SVG, "svg");
    this.#svg.setAttribute("role", "img");
    this.#svg.setAttribute("tabindex", "0");
    this.#legend = make("ul", { class: "legend" });
    this.#moment = make("p", { class: "moment" });
    figure.setAttribute("aria-labelledby", id);
    figure.append(
      make("figcaption", {}, title, ...(options.extra ? [options.extra] : [])),
      make("div", { class: "plot" }, this.#svg), this.#legend, this.#moment,
    );
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#move(null));
    this.#svg.addEventListener("blur", () => this.#move(null));
    this.#svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#paint()).observe(figure);
  }

  /**
   * Shows `points`, each `{ time, values }` with a value (or null) for each of `series`, each
   * `{ name, color, dash }`, between the times `from` and `to` in seconds.
   */
  show(series, points, from, to) {
    this.#view = { series, points, from, to };
    if (this.#at !== null) this.#at = Math.min(this.#at, points.length - 1);
    this.#paint();
    this.#list();
  }

  #paint() {
    if (!this.#view) return;
    const box = this.#svg.getBoundingClientRect();
    const [width, height] = [Math.max(box.width, 120), Math.max(box.height, 80)];
    const { points, from, to } = this.#view;
    const stack = points.map(({ values }) => this.#stacked(values));
    const { marks, part } = this.#scale(stack.flat().filter((value) => value !== null));
    const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - part(value) * (height - TOP - BOTTOM);
    this.#svg.replaceChildren();
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#axes(width, x, y, marks);
    if (stack.flat().every((value) => value === null)) {
      const place = { class: "empty", x: (LEFT + width) / 2, y: height / 2 };
      draw(this.#svg, "text", place, this.#nothing());
    } else {
      this.#lines(stack, x, y);
    }
    if (this.#at !== null && points[this.#at]) {
      const at = x(points[this.#at].time);
      draw(this.#svg, "line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: height - BOTTOM });
    }
  }

  /** Why nothing is drawn. A point is what happened between two answers of the server. */
  #nothing() {
    return this.#view.points.length === 0 ? WAITING : this.#options.empty;
  }

  /** The values that the axis names, and how high up (0 to 1) a value is. */
  #scale(values) {
    const { least = 0, top: given, isBytes, logarithmic } = this.#options;
    if (logarithmic) return decades(values);
    const top = given ?? niceTop(Math.max(least, ...values), isBytes);
    return { marks: [0, top / 2, top], part: (value) => value / top };
  }

  /** The upper edge of each series. */
  #stacked(values) {
    if (!this.#options.stacked) return values;
    let total = 0;
    return values.map((value) => (value === null ? null : (total += value)));
  }

  #axes(width, x, y, marks) {
    const { from, to } = this.#view;
    for (const value of marks) {
      const at = y(value);
      draw(this.#svg, "line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
      const place = { x: LEFT - 6, y: at + 4, "text-anchor": "end" };
      draw(this.#svg, "text", place, this.#options.format(value));
    }
    const count = width > 420 ? 3 : 2;
    for (let n = 0; n < count; n += 1) {
      const time = from + ((to - from) * n) / (count - 1);
      const anchor = n === 0 ? "start" : n === count - 1 ? "end" : "middle";
      const place = { x: x(time), y: y(marks[0]) + 15, "text-anchor": anchor };
      draw(this.#svg, "text", place, clock(time));
    }
  }

  #lines(stack, x, y) {
    const { series, points } = this.#view;
    for (let n = series.length - 1; n >= 0; n -= 1) {
      const { color, dash } = series[n];
      for (const run of runs(points, stack, n)) {
        const edge = run.map((i) => `${x(points[i].time)},${y(stack[i][n])}`);
        if (this.#options.stacked) {
          const floor = run.toReversed().map((i) => {
            return `${x(points[i].time)},${y(n > 0 ? stack[i][n - 1] : 0)}`;
          });
          const shape = [...edge, ...floor].join(" ");
          draw(this.#svg, "polygon", { class: `area c-${color}`, points: shape });
        } else {
          if (run.length === 1) edge.push(edge[0].replace(/^[\d.]+/, (at) => `${Number(at) + 2}`));
          const line = draw(this.#svg, "polyline", {
            class: `c-${color} series`, points: edge.join(" "),
          });
          if (dash) line.setAttribute("stroke-dasharray", dash);
        }
      }
    }
  }

  /** The legend with the latest values, which is also what is read out. */
  #list() {
    const { series, points } = this.#view;
    const values = points.at(-1)?.values ?? [];
    const told = series.map(({ name }, n) => {
      return `${name} ${this.#write(values[n])}`;
    });
    this.#legend.replaceChildren(...series.map(({ name, color }, n) => {
      const swatch = make("i", { class: `c-${color}`, "aria-hidden": "true" });
      return make("li", {}, swatch, `${name} `, make("b", {}, this.#write(values[n])));
    }));
    const known = told.length > 0 && points.length > 0;
    const now = known ? told.join(", ") : this.#nothing();
    this.#svg.setAttribute("aria-label", `${this.#options.title}, now: ${now}. Arrow keys go back`);
  }

  #write(value) {
    return value === null || value === undefined ? "–" : this.#options.format(value);
  }

  #point(event) {
    const { points, from, to } = this.#view ?? { points: [] };
    if (points.length === 0) return;
    const box = this.#svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const time = from + part * (to - from);
    const far = (i) => Math.abs(points[i].time - time);
    this.#move(points.reduce((best, _, i) => (far(i) < far(best) ? i : best), 0));
  }

  #key(event) {
    const last = (this.#view?.points.length ?? 0) - 1;
    const at = this.#at ?? last + 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#move(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#moment.setAttribute("aria-live", "polite");
    this.#move(Math.min(Math.max(to, 0), last));
  }

  #move(at) {
    this.#at = at;
    const point = at === null ? null : this.#view?.points[at];
    this.#moment.textContent = point
      ? `${clock(point.time)}: ` + this.#view.series
        .map(({ name }, n) => `${name} ${this.#write(point.values[n])}`).join(", ")
      : "";
    this.#paint();
  }
}

/** Indices of points with a value of series `n`, in runs without a gap. */
function runs(points, stack, n) {
  const found = [];
  let before = null;
  points.forEach(({ time }, i) => {
    if (stack[i][n] === null) {
      before = null;
      return;
    }
    if (before === null || time - before > GAP_SECONDS) found.push([]);
    found.at(-1).push(i);
    before = time;
  });
  return found;
}
