// Tiles, tables and facts: the same figures as text.

import { make } from "./chart.js";
import { readPath } from "./charts.js";
import * as figures from "./figures.js";
import {
  byteRate, bytes, clock, count, duration, micros, percent, rate, short, words,
} from "./units.js";

const at = (id) => document.getElementById(id);

/** A bar of parts of one, each `[part, colour]`; what is left is free. */
function bar(label, ...parts) {
  const element = make("span", { class: "bar", role: "img", "aria-label": label });
  for (const [part, color] of parts) {
    const piece = make("i", { class: `c-${color}` });
    piece.style.width = `${Math.min(100, (part ?? 0) * 100).toFixed(2)}%`;
    element.append(piece);
  }
  return element;
}

function tile(name, value, detail, ...more) {
  return make("div", { class: "tile", "data-tile": name }, make("dt", {}, name),
    make("dd", {}, make("span", { class: "value" }, value), ...more,
      make("div", { class: "detail" }, detail)));
}

/** The figures that come first, of the time between two answers. */
export function tiles(step) {
  const { to } = step;
  const read = figures.reads(step);
  const [p50, p99] = figures.percentiles(step, readPath, [0.5, 0.99]);
  const wrote = figures.written(step);
  const perSecond = figures.requests(step) / figures.seconds(step);
  const open = to.front_ends.reduce((n, one) => n + one.connections_open, 0);
  const all = [
    tile("Hit ratio", percent(read.ratio),
      `DRAM ${percent(read.dramPart)}, flash ${percent(read.flashPart)}` +
        (to.ring ? `, other instances ${percent(read.ringPart)}` : ""),
      bar("hits by tier", [read.dramPart, "dram"], [read.flashPart, "flash"],
        [read.ringPart, "third"])),
    tile("Requests", rate(perSecond), `${count(open)} connections open`),
    tile("Read latency p99", micros(p99), `half within ${micros(p50)}`),
    tile("Flash writes", byteRate(wrote.total / figures.seconds(step)),
      wrote.amplification === null ? "no new objects" :
        `write amplification ${wrote.amplification.toFixed(2)}`),
  ];
  if (to.cache) all.push(...occupancy(to.cache));
  if (to.lease) all.push(tile("Lease", words(to.lease.state), leaseDetail(to.database)));
  if (to.ring) all.push(ringTile(to.ring));
  at("tiles").replaceChildren(...all);
}

function occupancy({ dram, flash }) {
  const dramPart = dram.used_bytes / Math.max(1, dram.capacity_bytes);
  const used = flash.segments - flash.segments_free;
  const flashPart = used / Math.max(1, flash.segments);
  return [
    tile("DRAM", bytes(dram.used_bytes),
      `${percent(dramPart)} of ${bytes(dram.capacity_bytes)}, ${short(dram.objects)} objects`,
      bar("DRAM in use", [dramPart, "dram"])),
    tile("Flash", bytes(used * flash.segment_bytes),
      `${percent(flashPart)} of ${bytes(flash.segments * flash.segment_bytes)}`,
      bar("flash in use", [flashPart, "flash"])),
  ];
}

function leaseDetail(database) {
  const ready = database?.connections_ready ?? 0;
  return ready > 0 ? `${count(ready)} connections to the database`
    : make("span", { class: "warn" }, "the database is away");
}

const owned = ({ me, members }) => members.find(({ id }) => id === me)?.shards ?? 0;
const unlinked = ({ members }) => members.filter(({ linked }) => linked === false).length;

function ringTile(ring) {
  const away = unlinked(ring);
  const lacksLease = ring.lease_seconds <= 0 && !ring.left;
  const detail = ring.left ? "this instance has left"
    : lacksLease ? "no lease: reads pass through"
      : `${count(owned(ring))} of ${count(ring.shards)} shards here`;
  const bad = lacksLease || away > 0 || ring.unowned > 0;
  return tile("Ring", `${count(ring.members.length)} members`,
    bad ? make("span", { class: "warn" }, away > 0 ? `no link to ${count(away)}` : detail)
      : detail, bar("shards here", [owned(ring) / Math.max(1, ring.shards), "dram"]));
}

/** A table: `[name, total, a second]` rows; what never happened is left out. */
function reasonTable(caption, counts, recent, seconds) {
  const rows = Object.entries(counts).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const head = ["", "in all", "now"].map((text) => make("th", { scope: "col" }, text));
  const body = rows.map(([word, n]) => make("tr", { "data-row": word },
    make("th", { scope: "row" }, words(word)), make("td", {}, count(n)),
    make("td", {}, rate((recent[word] ?? 0) / seconds))));
  if (rows.length === 0) return make("p", { class: "quiet" }, `${caption}: none so far`);
  return make("div", { class: "scroll" }, make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

/** What went, was missed, passed by or was refused, by reason: in all and in the time shown. */
export function reasons(step) {
  const all = { from: null, to: step.to };
  const seconds = figures.seconds(step);
  const [gone, going] = [figures.evictions(all), figures.evictions(step)];
  at("evictions").replaceChildren(
    reasonTable("Copies dropped from flash", gone.fromFlash, going.fromFlash, seconds),
    reasonTable("Dropped on the way out of DRAM", gone.fromMemory, going.fromMemory, seconds),
  );
  const told = (id, caption, of) => {
    at(id).replaceChildren(reasonTable(caption, of(all), of(step), seconds));
  };
  told("misses", "Reads that found nothing", (s) => figures.reasons(s, "misses"));
  told("passes", "Reads that the cache had no part in", (s) => figures.reasons(s, "passes"));
  told("refused", "Objects that were not stored", (s) => figures.ofNamespaces(s, "refused"));
  at("passes-card").hidden = !step.to.database;
}

/** Each front end: its requests by kind, its connections and bytes. */
export function frontEnds(step) {
  const seconds = figures.seconds(step);
  const tables = figures.frontEnds(step).map(({ now, before }) => {
    const recent = figures.less(now.requests, before?.requests);
    const rows = Object.entries(now.requests).map(([kind, n]) => {
      return [words(kind), kind, count(n), rate(recent[kind] / seconds)];
    });
    const received = now.received_bytes - (before?.received_bytes ?? 0);
    const sent = now.sent_bytes - (before?.sent_bytes ?? 0);
    rows.push(
      ["received", "received", bytes(now.received_bytes), byteRate(received / seconds)],
      ["sent", "sent", bytes(now.sent_bytes), byteRate(sent / seconds)],
      ["connections", "connections", count(now.connections), `${count(now.connections_open)} open`],
      ["errors of ours", "errors", count(now.errors), ""],
    );
    const head = ["", "in all", "now"].map((text) => make("th", { scope: "col" }, text));
    return make("div", { class: "scroll" }, make("table", { "data-front-end": now.name },
      make("caption", {}, now.name), make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows.map(([name, row, total, lately]) => make("tr", { "data-row": row },
        make("th", { scope: "row" }, name), make("td", {}, total), make("td", {}, lately))))));
  });
  at("front-ends").replaceChildren(...tables);
}

/** A list of `[name, value, bad]`. */
function facts(id, list) {
  at(id).replaceChildren(...list.flatMap(([name, value, bad]) => [
    make("dt", {}, name), make("dd", { "data-fact": name, ...(bad && { class: "warn" }) }, value),
  ]));
}

/** What stands rather than flows: cache, database, lease, process. */
export function state(step) {
  const { to } = step;
  if (to.cache) facts("cache-state", cacheFacts(step, to.cache));
  at("database-card").hidden = !to.database;
  if (to.database) facts("database-state", databaseFacts(to));
  at("ring-card").hidden = !to.ring;
  if (to.ring) {
    facts("ring-state", ringFacts(to.ring));
    at("ring-members").replaceChildren(ringMembers(to.ring));
  }
  const cpu = (to.cpu_seconds - (step.from?.cpu_seconds ?? 0)) / figures.seconds(step);
  facts("process-state", [
    ["Version", to.version],
    ["Started", `${clock(to.started)}, ${duration(to.now - to.started)} ago`],
    ["Processor", `${percent(cpu)} of a core`],
    ["Memory", to.resident_bytes === null ? "–" : bytes(to.resident_bytes)],
  ]);
}

function cacheFacts(step, { dram, flash, index, journal, loading, load_parts, load_parts_done }) {
  const errors = flash.read_errors + flash.write_errors;
  const reads = figures.deviceReads(step) / figures.seconds(step);
  return [
    ["Index", `${short(index.slots_used)} of ${short(index.slots)} slots, ${bytes(index.bytes)}`],
    ["Not on flash yet",
      `${bytes(dram.unsaved_bytes)}, oldest ${dram.unsaved_seconds.toFixed(1)} s`,
      dram.unsaved_seconds > 10],
    ["Device reads", `${count(flash.reads)}, now ${rate(reads)}`],
    ["Device errors", count(errors), errors > 0],
    ["Segments reclaimed", count(flash.segments_reclaimed)],
    ["Segments retired", count(flash.segments_retired), flash.segments_retired > 0],
    ["Journal", `${percent(journal.entries_used / Math.max(1, journal.entries))} in use` +
      (journal.poisoned ? ", lacks an entry: a crash now costs the cache" : ""), journal.poisoned],
    ["Checkpoints", `${count(journal.checkpoints)}` +
      (journal.checkpoint_running ? ", one is being written" : "") +
      (journal.checkpoint_failures > 0 ? `, ${count(journal.checkpoint_failures)} failed` : "")],
    ["Loading", loading ? `${count(load_parts_done)} of ${count(load_parts)} parts` : "done"],
  ];
}

function ringFacts(ring) {
  return [
    ["Name", ring.name],
    ["Map", `version ${count(ring.version)}`],
    ring.left ? ["Left", "restart this instance to have it join again"]
      : ["May serve its shards", ring.lease_seconds > 0
        ? `for ${ring.lease_seconds.toFixed(1)} s` : "not now", ring.lease_seconds <= 0],
    ["Shards here", `${count(owned(ring))} of ${count(ring.shards)}`],
    ["Shards of nobody", count(ring.unowned), ring.unowned > 0],
    ...(ring.changes_refused ? [["Changes", "refused by the database", true]] : []),
  ];
}

/** Each member with its shards, and whether there is a link to it. */
function ringMembers({ me, members }) {
  const heads = ["member", "zone", "shards", "state"];
  const head = heads.map((text) => make("th", { scope: "col" }, text));
  const rows = members.map(({ id, address, zone, shards, state, linked, clock_drifts: drifts }) => {
    const away = `${linked === false ? ", no link" : ""}${drifts ? ", its clock drifts" : ""}`;
    const bad = linked === false || drifts || state !== "active";
    return make("tr", { "data-row": address },
      make("th", { scope: "row" }, id === me ? `${address} (this)` : address),
      make("td", {}, zone), make("td", {}, count(shards)),
      make("td", { ...(bad && { class: "warn" }) }, `${words(state)}${away}`));
  });
  return make("div", { class: "scroll" }, make("table", {}, make("caption", {}, "Members"),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function databaseFacts({ database, lease }) {
  const { connections_ready: ready, connecting, in_flight: waiting } = database;
  const list = [
    ["Connections", `${count(ready)} ready, ${count(connecting)} being made`, ready === 0],
    ["Requests", `${count(database.requests)} sent, ${count(waiting)} wait for an answer`],
    ["Without answer", count(database.unanswered)],
    ["Lost or failed connections",
      count(Object.values(database.failures).reduce((a, b) => a + b, 0))],
  ];
  if (lease) {
    list.push(
      ["Lease of exclusive tables", words(lease.state), ["waiting", "held_by_other"]
        .includes(lease.state)],
      ["Lease events", `${count(lease.acquired)} acquired, ${count(lease.renewed)} renewed, ` +
        `${count(lease.lost)} lost`],
    );
  }
  return list;
}
