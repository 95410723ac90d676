// The page: asks the server, keeps what it said for some minutes, and draws.

import { charts } from "./charts.js";
import { ask, every } from "./client.js";
import { History } from "./history.js";
import { showHotKeys } from "./hotkeys.js";
import { SegmentMap } from "./segments.js";
import * as tables from "./tables.js";
import { clock, duration, words } from "./units.js";

/** Pauses between questions. */
const OVERVIEW_MS = 2000;
const SEGMENTS_MS = 5000;
const HOT_KEYS_MS = 5000;
/** So many segments are asked for less often: their answer is large. */
const MANY_SEGMENTS = 20000;
const MANY_SEGMENTS_MS = 30000;

/** Charts show what this page has seen, which is no more than this. */
const LONGEST_CHART_SECONDS = 900;

const history = new History();
const drawCharts = charts();
const map = new SegmentMap(document.getElementById("segments"));
let awaySince = null;
let segments = 0;

/** The seconds that are shown; 0 for all since the start of the process. */
function range() {
  return Number(document.querySelector("#range input:checked").value);
}

function draw() {
  if (!history.latest) return;
  const seconds = range();
  const step = seconds > 0 ? history.window(seconds) : { from: null, to: history.latest };
  tables.tiles(step);
  tables.frontEnds(step);
  tables.reasons(step);
  tables.state(step);
  drawCharts(history, seconds || LONGEST_CHART_SECONDS);
}

function pill(state, text) {
  const status = document.getElementById("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

function here(overview) {
  awaySince = null;
  document.body.classList.remove("away");
  document.getElementById("away").hidden = true;
  const { readiness, readiness_reason: reason, version, started, now } = overview;
  pill(readiness, reason ? `${words(readiness)}: ${reason}` : words(readiness));
  document.getElementById("identity").textContent =
    `${location.host}, version ${version}, up ${duration(now - started)}`;
}

function away(error) {
  awaySince ??= Date.now() / 1000;
  document.body.classList.add("away");
  pill("away", "away");
  const banner = document.getElementById("away");
  const why = error instanceof TypeError ? "it cannot be reached" : error.message;
  const text = `No answer from ${location.host} since ${clock(awaySince)} (${why}). ` +
    "What is shown is from before; this page goes on asking.";
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = false;
}

document.getElementById("range").addEventListener("change", draw);

every(() => OVERVIEW_MS, async () => {
  const overview = await ask("/api/v1/overview");
  history.add(overview);
  here(overview);
  draw();
}, away);

// That the server is away is noticed above.
every(() => (segments > MANY_SEGMENTS ? MANY_SEGMENTS_MS : SEGMENTS_MS), async () => {
  const answer = await ask("/api/v1/segments");
  segments = answer.states.length;
  map.show(answer);
}, () => {});

every(() => HOT_KEYS_MS, async () => showHotKeys(await ask("/api/v1/hotkeys")), () => {});
