//! `stats settings`: memcached's settings, as far as this front end has them.

use afterglow_memcache::ITEM_OVERHEAD;

use super::options::{FrontEndAddress, REQUESTS_PER_EVENT};
use super::shared::MemcacheShared;

/// What `stats settings` says.
pub fn lines(front_end: &MemcacheShared) -> Vec<(String, String)> {
    let config = &front_end.config;
    let stats = front_end.cache.stats();
    let on = |set: bool| if set { "yes" } else { "no" };
    let tls = config.tls.as_ref().map(|tls| {
        let files = tls.files();
        (files.certificates.display().to_string(), files.key.display().to_string())
    });
    let (mut port, mut inter, mut socket) = (0, "NULL".to_string(), "NULL".to_string());
    for address in front_end.addresses.read().iter() {
        match address {
            FrontEndAddress::Tcp(address) => {
                (port, inter) = (address.port(), address.ip().to_string())
            }
            FrontEndAddress::Unix(path) => socket = path.display().to_string(),
        }
    }
    vec![
        line("maxbytes", stats.segments * stats.segment_size + stats.dram_capacity),
        line("maxconns", front_end.limits.connections()),
        line("tcpport", port),
        line("udpport", 0),
        line("inter", inter),
        line("verbosity", front_end.limits.verbosity()),
        line("oldest", 0),
        line("evictions", "on"),
        line("domain_socket", socket),
        line("umask", "700"),
        line("shutdown_command", "no"),
        line("growth_factor", "1.00"),
        line("chunk_size", ITEM_OVERHEAD),
        line("num_threads", front_end.reactors.count()),
        line("num_threads_per_udp", 0),
        line("stat_key_prefix", ":"),
        line("detail_enabled", "no"),
        line("cas_enabled", "yes"),
        line("binding_protocol", "auto-negotiate"),
        line("auth_enabled_sasl", on(config.users.is_some())),
        line("auth_enabled_ascii", on(config.users.is_some())),
        line("item_size_max", config.max_item),
        line("maxconns_fast", "yes"),
        line("reqs_per_event", REQUESTS_PER_EVENT),
        line("slab_reassign", "no"),
        line("slab_automove", 0),
        line("slab_chunk_max", config.max_item),
        line("lru_crawler", "no"),
        line("flush_enabled", on(config.flush_enabled)),
        line("dump_enabled", on(config.dump_enabled)),
        line("lru_maintainer_thread", "no"),
        line("lru_segmented", "yes"),
        line("temp_lru", "no"),
        line(
            "idle_timeout",
            front_end.limits.idle_timeout().map_or(0, |timeout| timeout.as_secs()),
        ),
        line("read_buf_mem_limit", config.buffers),
        line("track_sizes", on(front_end.limits.tracks_sizes())),
        line("inline_ascii_response", "no"),
        line("ext_item_size", 0),
        line("ssl_enabled", on(config.tls.is_some())),
        line(
            "ssl_chain_cert",
            tls.clone().map_or("(null)".into(), |(certificates, _)| certificates),
        ),
        line("ssl_key", tls.map_or("(null)".into(), |(_, key)| key)),
        line("ssl_verify_mode", 0),
        line("ssl_ca_cert", "NULL"),
        line("ssl_min_version", "tlsv1.2"),
    ]
}

fn line(name: impl Into<String>, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}
