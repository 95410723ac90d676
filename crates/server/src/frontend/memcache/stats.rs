//! `stats`, with the names that monitoring of memcached reads.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use afterglow_engine::{DropReason, MissReason, Stats};
use afterglow_memcache::{CLASS, ITEM_OVERHEAD, Reply};

use super::counted::MemcacheCounts;
use super::options::FrontEndAddress;
use super::reactor_state::{Info, MemcacheReactorState};
use super::session::{MemcacheSession, Performed};
use super::shared::MemcacheShared;
use super::sizes::histogram;
use super::stat_settings;
use super::version::version;
use super::watchers::WatchCounts;
use crate::metrics::{Exposition, Kind, MemcacheMetrics};

/// About as many bytes say what there is to say of a connection.
const DESCRIBED: usize = 256;

type Lines = Vec<(String, String)>;

/// Answers `stats` and its kin.
pub fn answer(session: &MemcacheSession, argument: &[u8], reply: &Reply<'_>) -> Performed {
    let front_end = &session.reactor_state.front_end;
    let words: Vec<&[u8]> =
        argument.split(|b| *b == b' ').filter(|word| !word.is_empty()).collect();
    let lines = match words.first().copied().unwrap_or_default() {
        b"" => general(front_end),
        b"settings" => stat_settings::lines(front_end),
        b"items" => items(front_end),
        b"slabs" => slabs(front_end),
        b"sizes" => sizes(front_end),
        b"sizes_enable" | b"sizes_disable" => {
            let wanted = words[0] == b"sizes_enable";
            front_end.limits.track_sizes(wanted);
            session.answers.push(|out| reply.stat(sizes_status(wanted), out));
            if matches!(reply, Reply::Binary(_)) {
                session.answers.push(|out| reply.stats_end(out));
            }
            // As in memcached there is no `END`.
            return Performed::Done;
        }
        b"conns" => return connections(session, reply),
        b"reset" => {
            front_end.reset_counted();
            return instead(session, reply, "RESET");
        }
        b"detail" => {
            // There are no statistics by prefix: asking for none is granted.
            return match words.get(1).copied() {
                Some(b"off") => instead(session, reply, "OK"),
                Some(b"dump") => instead(session, reply, "END"),
                _ => instead(session, reply, "CLIENT_ERROR usage: stats detail on|off|dump"),
            };
        }
        _ => {
            session.answers.push(|out| reply.no_such_stats(out));
            return Performed::Done;
        }
    };
    session.answers.push(|out| write(reply, &lines, out));
    Performed::Done
}

fn instead(session: &MemcacheSession, reply: &Reply<'_>, line: &str) -> Performed {
    session.answers.push(|out| reply.instead_of_stats(line, out));
    Performed::Done
}

fn write(reply: &Reply<'_>, lines: &Lines, out: &mut Vec<u8>) {
    for (name, value) in lines {
        reply.stat((name, value), out);
    }
    reply.stats_end(out);
}

fn line(name: impl Into<String>, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}

/// Figures of the engine, and what this front end counted.
struct Engine {
    stats: Stats,
    counted: MemcacheCounts,
}

impl Engine {
    /// As clients see it: since the last reset.
    fn of(front_end: &MemcacheShared) -> Self {
        let stats = front_end.cache.stats();
        Engine { counted: front_end.counted_now(&stats), stats }
    }

    /// As the metrics have it: since the start.
    fn ever(front_end: &MemcacheShared) -> Self {
        let stats = front_end.cache.stats();
        Engine { counted: front_end.counted_ever(&stats), stats }
    }

    /// About how many objects there are: those that the index knows, and those that are in memory
    /// only.
    fn items(&self) -> u64 {
        self.stats.index_slots_used.max(self.stats.dram_objects)
    }

    /// Bytes in use: segments that are not free, and memory.
    fn bytes(&self) -> u64 {
        (self.stats.segments - self.stats.segments_free) * self.stats.segment_size
            + self.stats.dram_bytes
    }

    /// Bytes there are.
    fn capacity(&self) -> u64 {
        self.stats.segments * self.stats.segment_size + self.stats.dram_capacity
    }
}

fn general(front_end: &MemcacheShared) -> Lines {
    let open = front_end.config.metrics.front_end_traffic("memcache");
    let open = open.opened.saturating_sub(open.closed);
    let engine = Engine::of(front_end);
    let MemcacheCounts { commands: counts, traffic, .. } = &engine.counted;
    let usage = rustix_usage();
    let mut lines = vec![
        line("pid", std::process::id()),
        line("uptime", front_end.store.uptime()),
        line("time", front_end.store.now()),
        line("version", version()),
        line("pointer_size", usize::BITS),
        line("rusage_user", usage.0),
        line("rusage_system", usage.1),
        line("max_connections", front_end.limits.connections()),
        line("curr_connections", open),
        line("total_connections", traffic.opened),
        line("rejected_connections", traffic.refused),
        line("connection_structures", open),
    ];
    lines.extend(commands(counts));
    lines.extend(reads_of_flash(&engine.counted));
    lines.extend([
        line("bytes_read", traffic.received),
        line("bytes_written", traffic.sent),
        line("limit_maxbytes", engine.capacity()),
        line("accepting_conns", 1),
        line("listen_disabled_num", 0),
        line("time_in_listen_disabled_us", 0),
        line("threads", front_end.reactors.count()),
        line("conn_yields", counts.conn_yields.get()),
        line("hash_power_level", engine.stats.index_slots.max(1).ilog2()),
        line("hash_bytes", engine.stats.index_bytes),
        line("hash_is_expanding", 0),
        line("bytes", engine.bytes()),
        line("curr_items", engine.items()),
        line("total_items", engine.counted.items),
        line("evictions", engine.counted.evictions),
        line("reclaimed", engine.counted.expired),
    ]);
    if front_end.limits.idle_timeout().is_some() {
        lines.push(line("idle_kicks", counts.idle_connections.get()));
    }
    let WatchCounts { entries, sent, skipped } = engine.counted.watch;
    lines.extend([
        // Nothing is gathered before it is known who wants it, so nothing is dropped there.
        line("log_worker_dropped", 0),
        line("log_worker_written", entries),
        line("log_watcher_skipped", skipped),
        line("log_watcher_sent", sent),
        line("log_watchers", front_end.watchers.len()),
    ]);
    lines.extend(NEVER.map(|name| line(name, 0)));
    // The store on flash counts on, as in memcached.
    let ever = front_end.config.metrics.memcache_total();
    lines.extend(
        flash(&engine, &ever).map(|figure| line(format!("extstore_{}", figure.stat), figure.value)),
    );
    lines
}

/// What a memcached counts that Afterglow never does: nothing crawls, no object moves between
/// queues of one class.
const NEVER: [&str; 9] = [
    "lru_crawler_running",
    "lru_crawler_starts",
    "crawler_reclaimed",
    "crawler_items_checked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "lrutail_reflocked",
];

/// extstore's names for how reads of flash ended.
fn reads_of_flash(counted: &MemcacheCounts) -> [(String, String); 5] {
    let missed = |reason| counted.misses_for(reason);
    [
        line("get_extstore", counted.cold),
        line("get_aborted_extstore", missed(MissReason::Abandoned)),
        line("get_oom_extstore", missed(MissReason::Busy)),
        line("miss_from_extstore", missed(MissReason::Superseded) + missed(MissReason::Collision)),
        line("badcrc_from_extstore", missed(MissReason::Corrupt)),
    ]
}

fn commands(counts: &MemcacheMetrics) -> [(String, String); 24] {
    [
        line("cmd_get", counts.cmd_get.get()),
        line("cmd_set", counts.cmd_set.get()),
        line("cmd_flush", counts.cmd_flush.get()),
        line("cmd_touch", counts.cmd_touch.get()),
        line("cmd_meta", counts.cmd_meta.get()),
        line("get_hits", counts.get_hits.get()),
        line("get_misses", counts.get_misses.get()),
        line("get_expired", counts.get_expired.get()),
        line("get_flushed", counts.get_flushed.get()),
        line("delete_misses", counts.delete_misses.get()),
        line("delete_hits", counts.delete_hits.get()),
        line("incr_misses", counts.incr_misses.get()),
        line("incr_hits", counts.incr_hits.get()),
        line("decr_misses", counts.decr_misses.get()),
        line("decr_hits", counts.decr_hits.get()),
        line("cas_misses", counts.cas_misses.get()),
        line("cas_hits", counts.cas_hits.get()),
        line("cas_badval", counts.cas_badval.get()),
        line("touch_hits", counts.touch_hits.get()),
        line("touch_misses", counts.touch_misses.get()),
        line("store_too_large", counts.store_too_large.get()),
        line("store_no_memory", counts.store_no_memory.get()),
        line("auth_cmds", counts.auth_cmds.get()),
        line("auth_errors", counts.auth_errors.get()),
    ]
}

/// A figure of extstore: its name in `stats`, that of memcached's exporter, and what it is.
struct Figure {
    stat: &'static str,
    metric: &'static str,
    kind: Kind,
    help: &'static str,
    value: u64,
}

/// extstore's figures, pages being segments.
fn flash(engine: &Engine, counts: &MemcacheMetrics) -> [Figure; 13] {
    let (stats, totals) = (&engine.stats, &engine.stats.totals);
    let used = stats.segments - stats.segments_free;
    let figure = |kind, stat, metric, value, help| Figure { stat, metric, kind, help, value };
    let count = |stat, metric, value, help| figure(Kind::Counter, stat, metric, value, help);
    let gauge = |stat, metric, value, help| figure(Kind::Gauge, stat, metric, value, help);
    let reclaimed = totals.segments_reclaimed;
    let in_flight = counts.flash_reads.get().saturating_sub(counts.flash_reads_done.get());
    let (lost, dropped) = ("compact_lost", DropReason::Reclaimed);
    [
        count(
            lost,
            "compact_lost_total",
            totals.copies_lost,
            "Objects in memory whose copy on flash went.",
        ),
        count("page_evictions", "pages_evicted_total", reclaimed, "Segments reclaimed."),
        count("page_reclaims", "pages_reclaimed_total", reclaimed, "Segments that became free."),
        gauge("pages_free", "pages_free", stats.segments_free, "Segments that are free."),
        gauge("pages_used", "pages_used", used, "Segments that are not free."),
        count(
            "objects_evicted",
            "objects_evicted_total",
            of_all(stats, dropped),
            "Objects reclaimed on flash.",
        ),
        count("objects_read", "objects_read_total", totals.device_reads, "Reads of flash."),
        gauge(
            "objects_used",
            "objects_used",
            stats.index_slots_used,
            "Objects that the index knows.",
        ),
        count(
            "bytes_written",
            "bytes_written_total",
            totals.record_bytes,
            "Bytes of objects written.",
        ),
        count("bytes_read", "bytes_read_total", counts.flash_bytes.get(), "Bytes read from flash."),
        gauge(
            "bytes_used",
            "bytes_used",
            used * stats.segment_size,
            "Bytes of segments that are not free.",
        ),
        gauge(
            "limit_maxbytes",
            "bytes_limit",
            stats.segments * stats.segment_size,
            "Bytes of all segments.",
        ),
        gauge("io_queue", "io_queue_depth", in_flight, "Reads of flash under way."),
    ]
}

/// Copies on flash dropped for that reason.
fn of_all(stats: &Stats, reason: DropReason) -> u64 {
    DropReason::ALL
        .iter()
        .position(|known| *known == reason)
        .map_or(0, |at| stats.totals.dropped[at])
}

/// Adds to the metrics what the front end alone knows, under the names of memcached's exporter.
pub fn expose(front_end: &MemcacheShared, out: &mut Exposition) {
    let engine = Engine::ever(front_end);
    let MemcacheCounts { commands: counts, traffic, .. } = &engine.counted;
    let mut gauge = |name: &str, help: &str, value: u64| out.single(name, Kind::Gauge, help, value);
    gauge("memcached_up", "1: the memcached front end is open.", 1);
    gauge("memcached_accepting_connections", "1: the memcached front end takes connections.", 1);
    gauge(
        "memcached_uptime_seconds",
        "Seconds since the front end was opened.",
        front_end.store.uptime(),
    );
    gauge(
        "memcached_time_seconds",
        "The front end's clock, in seconds since 1970.",
        front_end.store.now(),
    );
    let connections = traffic.opened.saturating_sub(traffic.closed);
    gauge("memcached_current_connections", "Connections open now.", connections);
    gauge(
        "memcached_max_connections",
        "Connections at once, at most.",
        front_end.limits.connections() as u64,
    );
    gauge("memcached_current_items", "Objects, about: those the index knows.", engine.items());
    gauge(
        "memcached_current_bytes",
        "Bytes of flash and memory in use for objects.",
        engine.bytes(),
    );
    gauge("memcached_limit_bytes", "Bytes of flash and memory for objects.", engine.capacity());
    gauge(
        "memcached_malloced_bytes",
        "Bytes of memory in use for objects.",
        engine.stats.dram_bytes,
    );
    let mut counter =
        |name: &str, help: &str, value: u64| out.single(name, Kind::Counter, help, value);
    counter("memcached_connections_total", "Connections ever taken.", traffic.opened);
    counter("memcached_connections_rejected_total", "Connections turned away.", traffic.refused);
    counter("memcached_read_bytes_total", "Bytes received from clients.", traffic.received);
    counter("memcached_written_bytes_total", "Bytes sent to clients.", traffic.sent);
    counter("memcached_items_total", "Objects ever stored.", engine.counted.items);
    counter(
        "memcached_items_evicted_total",
        "Objects dropped to make room.",
        engine.counted.evictions,
    );
    counter(
        "memcached_items_reclaimed_total",
        "Objects dropped because they had expired.",
        engine.counted.expired,
    );
    out.header("memcached_version", Kind::Gauge, "The version clients are told.");
    out.sample("memcached_version", &[("version", &version())], 1);
    for (mode, seconds) in ["user", "system"].into_iter().zip(<[String; 2]>::from(rustix_usage())) {
        let name = format!("memcached_process_{mode}_cpu_seconds_total");
        out.single(&name, Kind::Counter, "Processor time used.", seconds);
    }
    for figure in flash(&engine, counts) {
        out.single(
            &format!("memcached_extstore_{}", figure.metric),
            figure.kind,
            figure.help,
            figure.value,
        );
    }
    expose_class(&engine, out);
}

/// The figures of the one slab class.
fn expose_class(engine: &Engine, out: &mut Exposition) {
    let slab = CLASS.to_string();
    let hot = engine.stats.dram_objects;
    for (name, help, value) in [
        ("current_items", "Objects, about: those the index knows.", engine.items()),
        ("hot_items", "Objects in memory.", hot),
        ("cold_items", "Objects on flash alone.", engine.items().saturating_sub(hot)),
        ("mem_requested_bytes", "Bytes of flash and memory in use for objects.", engine.bytes()),
    ] {
        let name = format!("memcached_slab_{name}");
        out.header(&name, Kind::Gauge, help);
        out.sample(&name, &[("slab", &slab)], value);
    }
    const HITS: &str = "memcached_slab_lru_hits_total";
    out.header(HITS, Kind::Counter, "Hits in memory (hot) and on flash (cold).");
    for (lru, hits) in [("hot", engine.counted.hot), ("cold", engine.counted.cold)] {
        out.sample(HITS, &[("slab", &slab), ("lru", lru)], hits);
    }
}

/// User and system time in seconds, as memcached prints them.
fn rustix_usage() -> (String, String) {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> =
        text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds = |at: usize| {
        let used: u64 = fields.get(at).and_then(|field| field.parse().ok()).unwrap_or(0);
        format!("{}.{:06}", used / ticks, used % ticks * 1_000_000 / ticks)
    };
    (seconds(11), seconds(12))
}

fn sizes_status(tracked: bool) -> (&'static str, &'static str) {
    ("sizes_status", if tracked { "enabled" } else { "disabled" })
}

fn sizes(front_end: &MemcacheShared) -> Lines {
    if !front_end.limits.tracks_sizes() {
        let (name, status) = sizes_status(false);
        return vec![line(name, status)];
    }
    let counts = histogram(front_end, &front_end.cache.stats());
    counts.into_iter().map(|(size, count)| line(size.to_string(), count)).collect()
}

/// What is not known of objects on flash is left out, not given as 0: their ages, and whether those
/// that went were ever read.
fn items(front_end: &MemcacheShared) -> Lines {
    let engine = Engine::of(front_end);
    let MemcacheCounts { commands: counts, hot, cold, evictions, expired, .. } = &engine.counted;
    let of = |what: &str, value: u64| line(format!("items:{CLASS}:{what}"), value);
    vec![
        of("number", engine.items()),
        of("number_hot", engine.stats.dram_objects),
        of("number_warm", 0),
        of("number_cold", engine.items().saturating_sub(engine.stats.dram_objects)),
        of("age_hot", engine.stats.dram_oldest_ms / 1000),
        of("age_warm", 0),
        of("mem_requested", engine.bytes()),
        of("evicted", *evictions),
        of("outofmemory", counts.store_no_memory.get()),
        of("tailrepairs", 0),
        of("reclaimed", *expired),
        of("crawler_reclaimed", 0),
        of("crawler_items_checked", 0),
        of("lrutail_reflocked", 0),
        of("moves_to_cold", 0),
        of("moves_to_warm", 0),
        of("moves_within_lru", 0),
        of("direct_reclaims", 0),
        of("hits_to_hot", *hot),
        of("hits_to_warm", 0),
        of("hits_to_cold", *cold),
        of("hits_to_temp", 0),
    ]
}

fn slabs(front_end: &MemcacheShared) -> Lines {
    let engine = Engine::of(front_end);
    let (stats, counts) = (&engine.stats, &engine.counted.commands);
    let name = |what: &str| format!("{CLASS}:{what}");
    vec![
        line(name("chunk_size"), ITEM_OVERHEAD),
        line(name("chunks_per_page"), stats.segment_size / ITEM_OVERHEAD as u64),
        line(name("total_pages"), stats.segments),
        line(name("total_chunks"), stats.segments * (stats.segment_size / ITEM_OVERHEAD as u64)),
        line(name("used_chunks"), engine.bytes() / ITEM_OVERHEAD as u64),
        line(
            name("free_chunks"),
            stats.segments_free * (stats.segment_size / ITEM_OVERHEAD as u64),
        ),
        line(name("free_chunks_end"), 0),
        line(name("get_hits"), counts.get_hits.get()),
        line(name("cmd_set"), counts.cmd_set.get()),
        line(name("delete_hits"), counts.delete_hits.get()),
        line(name("incr_hits"), counts.incr_hits.get()),
        line(name("decr_hits"), counts.decr_hits.get()),
        line(name("cas_hits"), counts.cas_hits.get()),
        line(name("cas_badval"), counts.cas_badval.get()),
        line(name("touch_hits"), counts.touch_hits.get()),
        line("active_slabs", 1),
        line("total_malloced", engine.stats.dram_bytes),
    ]
}

/// Connections live on their reactors, so these are asked one after the other.
fn connections(session: &MemcacheSession, reply: &Reply<'_>) -> Performed {
    let bytes = session.reactor_state.front_end.connections.load(Ordering::Acquire) * DESCRIBED;
    if !session.answers.has_room(bytes) {
        return Performed::Blocked;
    }
    let slot = session.answers.reserve(&[], false, bytes);
    let (reactor_state, reply) = (session.reactor_state.clone(), reply.clone().into_owned());
    compio::runtime::spawn(async move {
        let mut lines = listeners(&reactor_state);
        for reactor in 0..reactor_state.front_end.reactors.count() {
            let front_end = reactor_state.front_end.clone();
            let there = reactor_state.front_end.reactors.run_on(reactor, move || async move {
                described(&MemcacheReactorState::of(&front_end))
            });
            lines.extend(there.await.unwrap_or_default());
        }
        slot.answer(|out| write(&reply, &lines, out));
    })
    .detach();
    Performed::Done
}

fn listeners(reactor_state: &Rc<MemcacheReactorState>) -> Lines {
    let addresses = reactor_state.front_end.addresses.read();
    let one = |(number, address): (usize, &FrontEndAddress)| {
        [
            line(format!("{number}:addr"), address),
            line(format!("{number}:state"), "conn_listening"),
            line(format!("{number}:secs_since_last_cmd"), reactor_state.front_end.store.uptime()),
        ]
    };
    addresses.iter().enumerate().flat_map(one).collect()
}

fn described(reactor_state: &MemcacheReactorState) -> Lines {
    let now = reactor_state.front_end.seconds();
    let one = |info: Rc<Info>| {
        // The number by which those who watch know it. Listeners are numbered from 0: there are at
        // most two, and no socket has 0 or 1.
        let number = info.answers.cfd();
        let state = match (info.writing_since.get(), info.answers.is_complete()) {
            _ if info.watching.get() => "conn_watch",
            (Some(_), _) => "conn_mwrite",
            (None, false) => "conn_io_queue",
            (None, true) => "conn_read",
        };
        [
            line(format!("{number}:addr"), &info.peer),
            line(format!("{number}:listen_addr"), &info.listener),
            line(format!("{number}:state"), state),
            line(
                format!("{number}:secs_since_last_cmd"),
                now.saturating_sub(info.last_request.get()),
            ),
        ]
    };
    reactor_state.connections().into_iter().flat_map(one).collect()
}
