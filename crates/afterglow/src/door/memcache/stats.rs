//! `stats`, with the names that monitoring of memcached reads.

use std::rc::Rc;

use afterglow_engine::{DropReason, Stats};
use afterglow_memcache::{ITEM_OVERHEAD, Reply};

use super::here::{Here, Info};
use super::perform::Session;
use super::{Door, DoorAddress};
use crate::metrics::MemcacheMetrics;

/// The one slab class that all objects are in.
const CLASS: u32 = 1;

type Lines = Vec<(String, String)>;

/// Answers `stats` and its kin.
pub fn answer(session: &Session, argument: &[u8], reply: &Reply<'_>) {
    let door = &session.here.door;
    let words: Vec<&[u8]> = argument.split(|b| *b == b' ').filter(|word| !word.is_empty()).collect();
    let lines = match words.first().copied().unwrap_or_default() {
        b"" => general(door),
        b"settings" => settings(door),
        b"items" => items(door),
        b"slabs" => slabs(door),
        b"sizes" => vec![line("sizes_status", "disabled")],
        b"conns" => return connections(session, reply),
        b"reset" => return instead(session, reply, "RESET"),
        b"detail" => {
            // There are no statistics by prefix: asking for none is granted.
            return match words.get(1).copied() {
                Some(b"off") => instead(session, reply, "OK"),
                Some(b"dump") => instead(session, reply, "END"),
                _ => instead(session, reply, "CLIENT_ERROR usage: stats detail on|off|dump"),
            };
        }
        b"cachedump" => return instead(session, reply, "CLIENT_ERROR stats cachedump not allowed"),
        _ => return session.answers.push(|out| reply.no_such_stats(out)),
    };
    session.answers.push(|out| write(reply, &lines, out));
}

fn instead(session: &Session, reply: &Reply<'_>, line: &str) {
    session.answers.push(|out| reply.instead_of_stats(line, out));
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

/// Figures of the engine that belong to this door.
struct Engine {
    stats: Stats,
    evictions: u64,
    expired: u64,
}

impl Engine {
    fn of(door: &Door) -> Self {
        let stats = door.cache.stats();
        Engine { evictions: evictions(&stats), expired: expired(&stats), stats }
    }

    /// About how many objects there are: those that the index knows, and those that are in memory only.
    fn items(&self) -> u64 {
        self.stats.index_slots_used.max(self.stats.dram_objects)
    }

    /// Bytes in use: segments that are not free, and memory.
    fn bytes(&self) -> u64 {
        (self.stats.segments - self.stats.segments_free) * self.stats.segment_size + self.stats.dram_bytes
    }

    /// Bytes there are.
    fn capacity(&self) -> u64 {
        self.stats.segments * self.stats.segment_size + self.stats.dram_capacity
    }
}

/// Objects that were dropped for that reason.
fn dropped(stats: &Stats, reason: DropReason) -> u64 {
    let namespace = stats.namespaces.iter().find(|namespace| namespace.name == super::NAMESPACE);
    let place = DropReason::ALL.iter().position(|known| *known == reason);
    place.map_or(0, |at| namespace.map_or(0, |n| n.dropped[at]) + stats.totals.dropped[at])
}

/// Objects dropped because they had expired.
pub fn expired(stats: &Stats) -> u64 {
    dropped(stats, DropReason::Dead)
}

/// Objects dropped to make room, or for want of it.
pub fn evictions(stats: &Stats) -> u64 {
    DropReason::ALL.iter().map(|reason| dropped(stats, *reason)).sum::<u64>() - expired(stats)
}

fn general(door: &Door) -> Lines {
    let counts = door.config.metrics.memcache_total();
    let traffic = door.config.metrics.door_traffic("memcache");
    let engine = Engine::of(door);
    let usage = rustix_usage();
    let mut lines = vec![
        line("pid", std::process::id()),
        line("uptime", door.store.uptime()),
        line("time", door.store.now()),
        line("version", super::version()),
        line("pointer_size", usize::BITS),
        line("rusage_user", usage.0),
        line("rusage_system", usage.1),
        line("max_connections", door.config.max_connections),
        line("curr_connections", traffic.opened.saturating_sub(traffic.closed)),
        line("total_connections", traffic.opened),
        line("rejected_connections", traffic.refused),
        line("connection_structures", traffic.opened.saturating_sub(traffic.closed)),
    ];
    lines.extend(commands(&counts));
    lines.extend([
        line("bytes_read", traffic.received),
        line("bytes_written", traffic.sent),
        line("limit_maxbytes", engine.capacity()),
        line("accepting_conns", 1),
        line("listen_disabled_num", 0),
        line("threads", door.reactors.count()),
        line("conn_yields", 0),
        line("hash_power_level", engine.stats.index_slots.max(1).ilog2()),
        line("hash_bytes", engine.stats.index_bytes),
        line("hash_is_expanding", 0),
        line("bytes", engine.bytes()),
        line("curr_items", engine.items()),
        line("total_items", door.store.total_items.load(std::sync::atomic::Ordering::Relaxed)),
        line("evictions", engine.evictions),
        line("reclaimed", engine.expired),
    ]);
    lines.extend(flash(&engine.stats));
    lines
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

/// extstore's names for what is on flash.
fn flash(stats: &Stats) -> [(String, String); 7] {
    let used = stats.segments - stats.segments_free;
    [
        line("extstore_pages_free", stats.segments_free),
        line("extstore_pages_used", used),
        line("extstore_page_evictions", stats.totals.segments_reclaimed),
        line("extstore_objects_read", stats.totals.device_reads),
        line("extstore_bytes_written", stats.totals.record_bytes),
        line("extstore_bytes_used", used * stats.segment_size),
        line("extstore_limit_maxbytes", stats.segments * stats.segment_size),
    ]
}

/// User and system time in seconds, as memcached prints them.
fn rustix_usage() -> (String, String) {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds = |at: usize| {
        let used: u64 = fields.get(at).and_then(|field| field.parse().ok()).unwrap_or(0);
        format!("{}.{:06}", used / ticks, used % ticks * 1_000_000 / ticks)
    };
    (seconds(11), seconds(12))
}

fn settings(door: &Door) -> Lines {
    let config = &door.config;
    let stats = door.cache.stats();
    let on = |set: bool| if set { "yes" } else { "no" };
    let (mut port, mut inter, mut socket) = (0, "NULL".to_string(), "NULL".to_string());
    for address in door.addresses.read().iter() {
        match address {
            DoorAddress::Tcp(address) => (port, inter) = (address.port(), address.ip().to_string()),
            DoorAddress::Unix(path) => socket = path.display().to_string(),
        }
    }
    vec![
        line("maxbytes", stats.segments * stats.segment_size + stats.dram_capacity),
        line("maxconns", config.max_connections),
        line("tcpport", port),
        line("udpport", 0),
        line("inter", inter),
        line("verbosity", 0),
        line("oldest", 0),
        line("evictions", "on"),
        line("domain_socket", socket),
        line("umask", "700"),
        line("shutdown_command", "no"),
        line("growth_factor", "1.00"),
        line("chunk_size", ITEM_OVERHEAD),
        line("num_threads", door.reactors.count()),
        line("stat_key_prefix", ":"),
        line("detail_enabled", "no"),
        line("cas_enabled", "yes"),
        line("binding_protocol", "auto-negotiate"),
        line("auth_enabled_sasl", on(config.users.is_some())),
        line("auth_enabled_ascii", on(config.users.is_some())),
        line("item_size_max", config.max_item),
        line("maxconns_fast", "yes"),
        line("slab_reassign", "no"),
        line("slab_automove", 0),
        line("lru_crawler", "no"),
        line("flush_enabled", "yes"),
        line("dump_enabled", "no"),
        line("lru_maintainer_thread", "no"),
        line("lru_segmented", "yes"),
        line("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs())),
        line("read_buf_mem_limit", config.buffers),
        line("ssl_enabled", on(config.tls.is_some())),
        line("ext_path", "yes"),
    ]
}

fn items(door: &Door) -> Lines {
    let engine = Engine::of(door);
    let name = |what: &str| format!("items:{CLASS}:{what}");
    vec![
        line(name("number"), engine.items()),
        line(name("number_hot"), engine.stats.dram_objects),
        line(name("number_warm"), 0),
        line(name("number_cold"), engine.items().saturating_sub(engine.stats.dram_objects)),
        line(name("age_hot"), 0),
        line(name("age_warm"), 0),
        line(name("age"), 0),
        line(name("mem_requested"), engine.bytes()),
        line(name("evicted"), engine.evictions),
        line(name("evicted_nonzero"), 0),
        line(name("evicted_time"), 0),
        line(name("outofmemory"), 0),
        line(name("tailrepairs"), 0),
        line(name("reclaimed"), engine.expired),
        line(name("expired_unfetched"), 0),
        line(name("evicted_unfetched"), 0),
        line(name("evicted_active"), 0),
        line(name("crawler_reclaimed"), 0),
        line(name("crawler_items_checked"), 0),
        line(name("lrutail_reflocked"), 0),
        line(name("moves_to_cold"), 0),
        line(name("moves_to_warm"), 0),
        line(name("moves_within_lru"), 0),
        line(name("direct_reclaims"), 0),
    ]
}

fn slabs(door: &Door) -> Lines {
    let counts = door.config.metrics.memcache_total();
    let engine = Engine::of(door);
    let stats = &engine.stats;
    let name = |what: &str| format!("{CLASS}:{what}");
    vec![
        line(name("chunk_size"), ITEM_OVERHEAD),
        line(name("chunks_per_page"), stats.segment_size / ITEM_OVERHEAD as u64),
        line(name("total_pages"), stats.segments),
        line(name("total_chunks"), stats.segments * (stats.segment_size / ITEM_OVERHEAD as u64)),
        line(name("used_chunks"), engine.bytes() / ITEM_OVERHEAD as u64),
        line(name("free_chunks"), stats.segments_free * (stats.segment_size / ITEM_OVERHEAD as u64)),
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
        line("total_malloced", engine.bytes()),
    ]
}

/// Connections live on their reactors, so these are asked one after the other.
fn connections(session: &Session, reply: &Reply<'_>) {
    let slot = session.answers.reserve(&[], false, 0);
    let (here, reply) = (session.here.clone(), reply.clone().into_owned());
    compio::runtime::spawn(async move {
        let mut lines = listeners(&here);
        for reactor in 0..here.door.reactors.count() {
            let door = here.door.clone();
            let there = here
                .door
                .reactors
                .run_on(reactor, move || async move { described(&Here::of(&door), reactor) });
            lines.extend(there.await.unwrap_or_default());
        }
        slot.answer(|out| write(&reply, &lines, out));
    })
    .detach();
}

fn listeners(here: &Rc<Here>) -> Lines {
    let addresses = here.door.addresses.read();
    let one = |(number, address): (usize, &DoorAddress)| {
        [
            line(format!("{number}:addr"), address),
            line(format!("{number}:state"), "conn_listening"),
            line(format!("{number}:secs_since_last_cmd"), here.door.store.uptime()),
        ]
    };
    addresses.iter().enumerate().flat_map(one).collect()
}

fn described(here: &Here, reactor: usize) -> Lines {
    let now = here.door.store.now();
    let one = |info: Rc<Info>| {
        // Listeners are numbered below 10; reactors tell their connections apart by a million.
        let number = 10 + reactor as u64 * 1_000_000 + info.id;
        let state = match (info.writing_since.get(), info.answers.is_complete()) {
            (Some(_), _) => "conn_mwrite",
            (None, false) => "conn_io_queue",
            (None, true) => "conn_read",
        };
        [
            line(format!("{number}:addr"), &info.peer),
            line(format!("{number}:listen_addr"), &info.listener),
            line(format!("{number}:state"), state),
            line(format!("{number}:secs_since_last_cmd"), now.saturating_sub(info.last_request.get())),
        ]
    };
    here.connections().into_iter().flat_map(one).collect()
}
