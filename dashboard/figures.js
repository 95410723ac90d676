// What happened between two answers of the server. `from` may be null: then it is all since the
// start of the process.

const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);

/** Counts by word, `to` less `from`. */
export function less(to, from) {
  return Object.fromEntries(
    Object.entries(to ?? {}).map(([word, n]) => [word, Math.max(0, n - (from?.[word] ?? 0))]),
  );
}

/** Seconds between two answers. */
export function seconds({ from, to }) {
  return Math.max(0.001, to.now - (from?.now ?? to.started));
}

/** The front ends of both answers, side by side. */
export function frontEnds({ from, to }) {
  return to.front_ends.map((now) => ({
    now,
    before: from?.front_ends.find((one) => one.name === now.name) ?? null,
  }));
}

/** Sums one member of all front ends, by its words. */
function overFrontEnds(step, member) {
  const total = {};
  for (const { now, before } of frontEnds(step)) {
    for (const [word, n] of Object.entries(less(now[member], before?.[member]))) {
      total[word] = (total[word] ?? 0) + n;
    }
  }
  return total;
}

/** Reads by where their answer came from, and the parts of hits in all that could be hits. */
export function reads(step) {
  const hits = overFrontEnds(step, "hits");
  const [dram, flash] = [(hits.dram ?? 0) + (hits.buffer ?? 0), hits.flash ?? 0];
  const ring = hits.ring ?? 0;
  const misses = sum(overFrontEnds(step, "misses"));
  const passes = sum(overFrontEnds(step, "passes"));
  const lookups = dram + flash + ring + misses;
  const part = (n) => (lookups > 0 ? n / lookups : null);
  return {
    dram, flash, ring, misses, passes, lookups, ratio: part(dram + flash + ring),
    dramPart: part(dram), flashPart: part(flash), ringPart: part(ring), missPart: part(misses),
  };
}

/** Reasons of misses or passes, over all front ends. */
export function reasons(step, member) {
  return overFrontEnds(step, member);
}

/** Requests of all front ends. */
export function requests(step) {
  return sum(overFrontEnds(step, "requests"));
}

/** Requests by front end and kind, as `[label, count]`. */
export function requestsByKind(step) {
  return frontEnds(step).flatMap(({ now, before }) =>
    Object.entries(less(now.requests, before?.requests)).map(([kind, n]) => [
      `${now.name} ${kind}`, n,
    ]),
  );
}

/** Buckets of latency over those front ends and paths that `wanted` accepts, by bound. */
function buckets(step, wanted) {
  const counts = new Map();
  for (const { now, before } of frontEnds(step)) {
    for (const [path, { buckets: all }] of Object.entries(now.latency)) {
      if (!wanted(now.name, path)) continue;
      const old = new Map(before?.latency[path]?.buckets ?? []);
      for (const [bound, n] of all) {
        const more = n - (old.get(bound) ?? 0);
        if (more > 0) counts.set(bound, (counts.get(bound) ?? 0) + more);
      }
    }
  }
  // No bound: beyond all bounds.
  return [...counts].sort(([a], [b]) => (a ?? Infinity) - (b ?? Infinity));
}

/**
 * The upper bounds in microseconds below which these parts of requests were answered; null where
 * there were none. At most a quarter too high, as buckets are that wide.
 */
export function percentiles(step, wanted, parts) {
  const all = buckets(step, wanted);
  const total = all.reduce((n, [, count]) => n + count, 0);
  if (total === 0) return parts.map(() => null);
  const largest = all.findLast(([bound]) => bound !== null)?.[0] ?? 1;
  return parts.map((part) => {
    let left = Math.ceil(total * part);
    const found = all.find(([, count]) => (left -= count) <= 0);
    return found?.[0] ?? largest;
  });
}

/** Bytes written to flash by kind, and how much more that is than the objects were. */
export function written(step) {
  const bytes = less(step.to.cache?.written_bytes, step.from?.cache?.written_bytes);
  const { record = 0, reinserted = 0, metadata = 0, padding = 0, journal = 0 } = bytes;
  const overhead = metadata + padding + (bytes.kill_log ?? 0);
  const fresh = Math.max(0, record - reinserted);
  return {
    fresh, reinserted, overhead, journal,
    total: record + overhead,
    amplification: fresh > 0 ? (record + overhead) / fresh : null,
  };
}

/** Objects that went although nobody removed them, by reason: from flash, and out of memory. */
export function evictions(step) {
  const fromFlash = less(step.to.cache?.flash_dropped, step.from?.cache?.flash_dropped);
  return { fromFlash, fromMemory: ofNamespaces(step, "dropped") };
}

/** Sums one member of all namespaces, by its words. */
export function ofNamespaces({ from, to }, member) {
  const total = {};
  for (const now of to.cache?.namespaces ?? []) {
    const before = from?.cache?.namespaces.find((one) => one.name === now.name);
    for (const [word, n] of Object.entries(less(now[member], before?.[member]))) {
      total[word] = (total[word] ?? 0) + n;
    }
  }
  return total;
}

/** Reads of devices between the answers. */
export function deviceReads({ from, to }) {
  return Math.max(0, (to.cache?.flash.reads ?? 0) - (from?.cache?.flash.reads ?? 0));
}

/** Reads of flash for clients that are under way. */
export function readsInFlight(overview) {
  return overview.front_ends.reduce((n, one) => n + one.flash_reads_in_flight, 0);
}
