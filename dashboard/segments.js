// The segments as a map: a cell for each, or for some neighbours where there are very many.

import { make } from "./chart.js";
import { bytes, count } from "./units.js";

/** At most so many cells are drawn. */
const MOST_CELLS = 12000;
/** The colour of a state; of sealed ones the part that is alive decides how full it is. */
const COLORS = {
  free: "free", open: "accent", sealing: "third", sealed: "flash", reclaiming: "miss",
  retired: "bad", checkpoint: "dram",
};
const MEANING = {
  free: "holds nothing", open: "is being filled", sealing: "its last writes are under way",
  sealed: "written; paler: less of it is alive", reclaiming: "is being emptied",
  retired: "writing it failed", checkpoint: "holds the saved index, which has grown",
};

const colorOf = (name) => getComputedStyle(document.body).getPropertyValue(`--${name}`).trim();

/** The map in an element. */
export class SegmentMap {
  #canvas = make("canvas", { role: "img", tabindex: "0" });
  #summary = make("p", { class: "quiet", id: "segments-summary" });
  #moment = make("p", { class: "moment" });
  #table = make("div", { class: "scroll" });
  #map = null; #cells = []; #shape = { columns: 1, size: 8 }; #at = null;

  constructor(element) {
    element.append(this.#summary, this.#canvas, this.#moment, this.#table);
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#tell(null));
    this.#canvas.addEventListener("blur", () => this.#tell(null));
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#paint()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  /** Shows what `/api/v1/segments` answered. */
  show(map) {
    this.#map = map;
    const total = map.states.length;
    const each = Math.max(1, Math.ceil(total / MOST_CELLS));
    this.#cells = [];
    for (let first = 0; first < total; first += each) this.#cells.push(this.#cell(first, each));
    const live = this.#liveBytes();
    this.#summary.textContent = total === 0 ? "The cache is not open." :
      `${count(total)} segments of ${bytes(map.segment_bytes)}, about ${bytes(live)} alive` +
      (each > 1 ? `; a cell stands for ${each} segments` : "");
    this.#canvas.setAttribute("aria-label",
      `Map of segments. ${this.#summary.textContent}. Arrow keys go from one to the next.`);
    this.#legend();
    this.#paint();
  }

  /** Segments from `first` on as one cell: the most frequent state, and what is alive of it. */
  #cell(first, each) {
    const { states, words, live_percent: live } = this.#map;
    const last = Math.min(first + each, states.length);
    const seen = new Map();
    let alive = 0;
    for (let i = first; i < last; i += 1) {
      seen.set(states[i], (seen.get(states[i]) ?? 0) + 1);
      alive += live[i];
    }
    const [digit] = [...seen].reduce((a, b) => (b[1] > a[1] ? b : a));
    return { first, last, state: words[digit], live: alive / (last - first) };
  }

  #liveBytes() {
    const { live_percent: live, filled_percent: filled, segment_bytes: size } = this.#map;
    return live.reduce((n, part, i) => n + (part * filled[i] * size) / 10000, 0);
  }

  #legend() {
    const { words, states } = this.#map;
    const counts = words.map(() => 0);
    for (const digit of states) counts[digit] += 1;
    const rows = words.map((word, n) => {
      const swatch = make("i", { class: `c-${COLORS[word]}`, "aria-hidden": "true" });
      return make("tr", { "data-row": word }, make("th", { scope: "row" }, swatch, ` ${word}`),
        make("td", {}, count(counts[n])),
        make("td", {}, bytes(counts[n] * this.#map.segment_bytes)),
        make("td", { class: "words" }, MEANING[word] ?? ""));
    });
    const head = ["state", "segments", "size", ""].map((t) => make("th", { scope: "col" }, t));
    this.#table.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows)));
  }

  #paint() {
    const width = this.#canvas.parentElement.clientWidth;
    const cells = this.#cells.length;
    if (!this.#map || cells === 0 || width === 0) return;
    const size = Math.max(5, Math.min(18, Math.floor(Math.sqrt((width * 170) / cells))));
    const columns = Math.max(1, Math.floor(width / size));
    this.#shape = { columns, size };
    const scale = window.devicePixelRatio || 1;
    const height = Math.ceil(cells / columns) * size;
    this.#canvas.width = Math.round(width * scale);
    this.#canvas.height = Math.round(height * scale);
    this.#canvas.style.height = `${height}px`;
    const context = this.#canvas.getContext("2d");
    context.scale(scale, scale);
    const colors = Object.fromEntries(Object.values(COLORS).map((c) => [c, colorOf(c)]));
    this.#cells.forEach((cell, i) => {
      const [x, y] = [(i % columns) * size, Math.floor(i / columns) * size];
      context.globalAlpha = 1;
      context.fillStyle = colors.free;
      context.fillRect(x, y, size - 1, size - 1);
      context.globalAlpha = cell.state === "sealed" ? 0.2 + (0.8 * cell.live) / 100 : 1;
      context.fillStyle = colors[COLORS[cell.state]] ?? colors.free;
      context.fillRect(x, y, size - 1, size - 1);
      if (i === this.#at) {
        context.globalAlpha = 1;
        context.strokeStyle = colorOf("text");
        context.lineWidth = 2;
        context.strokeRect(x, y, size - 1, size - 1);
      }
    });
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    const { columns, size } = this.#shape;
    const column = Math.floor((event.clientX - box.left) / size);
    const at = Math.floor((event.clientY - box.top) / size) * columns + column;
    this.#tell(column < columns && at < this.#cells.length ? at : null);
  }

  #key(event) {
    const { columns } = this.#shape;
    const at = this.#at ?? -1;
    const to = {
      ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns, ArrowDown: at + columns,
      Home: 0, End: this.#cells.length - 1,
    }[event.key];
    if (event.key === "Escape") this.#tell(null);
    if (to === undefined || this.#cells.length === 0) return;
    event.preventDefault();
    this.#moment.setAttribute("aria-live", "polite");
    this.#tell(Math.min(Math.max(to, 0), this.#cells.length - 1));
  }

  #tell(at) {
    if (at === this.#at) return;
    this.#at = at;
    const cell = this.#cells[at];
    const names = cell && cell.last - cell.first > 1 ?
      `Segments ${cell.first} to ${cell.last - 1}, mostly` : `Segment ${cell?.first}:`;
    this.#moment.textContent = cell ? `${names} ${cell.state}` +
      (cell.state === "free" ? "" : `, ${Math.round(cell.live)} % of its records alive`) : "";
    this.#paint();
  }
}
