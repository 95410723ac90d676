// The hottest keys, prefixes and tables of each front end.

import { make } from "./chart.js";
import { count, percent, rate, short } from "./units.js";

/** Lists of a front end, with what they are called. */
const LISTS = [["tables", "Tables"], ["prefixes", "Prefixes"], ["keys", "Keys"]];
/** Entries of a list that are shown. */
const MOST = 10;

function table(title, entries) {
  const head = ["", "of requests", "now"].map((text) => make("th", { scope: "col" }, text));
  const rows = entries.slice(0, MOST).map(({ name, part, error, per_second: perSecond }, n) => {
    const doubt = error >= 0.001 ? ` (−${percent(error)})` : "";
    return make("tr", {}, make("th", { scope: "row" }, name ?? `hidden ${n + 1}`),
      make("td", {}, `${percent(part)}${doubt}`), make("td", {}, rate(perSecond)));
  });
  return make("div", { class: "scroll" }, make("table", { "data-hot": title },
    make("caption", {}, title), make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows)));
}

function card({ name, taken, ...lists }, { sampled, keys_shown: shown }) {
  const tables = LISTS.filter(([list]) => lists[list].length > 0)
    .map(([list, title]) => table(title, lists[list]));
  const about = taken === 0 ? "No requests lately." :
    `Of ${count(taken)} samples of the last minutes, one in ${sampled} requests.` +
    (shown ? "" : " Names of keys are hidden: the server shows them with --show-keys.");
  return make("article", { class: "card" }, make("h3", {}, `${name}: hottest`),
    make("p", { class: "quiet" }, about), ...tables);
}

/** Shows what `/api/v1/hotkeys` answered. */
export function showHotKeys(answer) {
  const cards = answer.front_ends.map((front) => card(front, answer));
  document.getElementById("hotkeys").replaceChildren(...cards);
  document.getElementById("hot-bytes").textContent =
    `${short(answer.bytes / 1024)} KiB of memory hold the samples.`;
}
