//! Checks across settings: those that contradict each other, and those that are allowed but perhaps
//! not meant.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use crate::ring_link::Secrets;

use super::{
    Config, Size, Span, TablePattern, TablePolicy,
    fault::{Fault, SettingPlace},
    settings::HINT_WINDOW,
};

/// Less leaves no room for an index worth having.
pub const MIN_MEMORY: Size = Size::mib(32);
/// Less cannot be cut into enough segments.
pub const MIN_FLASH: Size = Size::mib(64);

pub(super) fn check(
    config: &Config,
    places: &BTreeMap<&'static str, SettingPlace>,
    faults: &mut Vec<Fault>,
    notes: &mut Vec<String>,
) {
    let mut wrong = |key: &str, message: String| {
        let place = places.get(key).cloned().unwrap_or(SettingPlace::Default);
        faults.push(Fault { place, message });
    };
    front_ends(config, &mut wrong);
    tls(config, &mut wrong);
    memcache(config, &mut wrong);
    ring(config, &mut wrong);
    admin(config, &mut wrong);
    sizes(config, &mut wrong);
    flash_notes(config, places, notes);
    policy_notes(config, notes);
    memcache_notes(config, notes);
}

type Wrong<'a> = dyn FnMut(&str, String) + 'a;

fn front_ends(config: &Config, wrong: &mut Wrong<'_>) {
    let Some(cql) = config.cql else {
        if !config.backend.is_empty() {
            wrong(
                "backend",
                "there is a database and no front end to it: write `--cql 127.0.0.1:9043` too"
                    .into(),
            );
        }
        if !config.has_memcache() {
            wrong(
                "memcache",
                "no front end is open: write `--memcache 127.0.0.1:11211`, or `--cql 127.0.0.1:9043 --backend HOST:9042`"
                    .into(),
            );
        }
        return;
    };
    if config.backend.is_empty() {
        wrong(
            "backend",
            "the CQL front end needs a database behind it: write `--backend 127.0.0.1:9042`".into(),
        );
    }
    if let Some(same) = config.backend.iter().find(|b| b.literal() == Some(cql)) {
        wrong(
            "backend",
            format!(
                "{same} is where Afterglow itself listens: give the database's address, or move --cql"
            ),
        );
    }
    if let Some(file) = &config.backend_credentials
        && let Err(error) = super::credentials::read(file)
    {
        wrong("backend-credentials", error.to_string());
    }
    if cql.ip().is_unspecified() && config.advertise.is_none() {
        wrong(
            "cql",
            format!(
                "{cql} listens on every network, so drivers must be told which address to use: write `--advertise IP`"
            ),
        );
    }
}

/// Whether each option of TLS has those that it needs. The files are looked into where they are
/// opened, also by `check-config`.
fn tls(config: &Config, wrong: &mut Wrong<'_>) {
    let pairs = [
        (&config.memcache_tls_cert, &config.memcache_tls_key, "memcache-tls"),
        (&config.cql_tls_cert, &config.cql_tls_key, "cql-tls"),
        (&config.backend_tls_cert, &config.backend_tls_key, "backend-tls"),
    ];
    for (cert, key, of) in pairs {
        if cert.is_some() != key.is_some() {
            let (there, missing) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            let message =
                format!("TLS needs certificate and key: write `--{of}-{missing} FILE` too");
            wrong(&format!("{of}-{there}"), message);
        }
    }
    let need = |name: &str| format!("it is of use with TLS only: write `--{name} FILE` too");
    if config.cql_tls_client_ca.is_some() && config.cql_tls_cert.is_none() {
        wrong("cql-tls-client-ca", need("cql-tls-cert"));
    }
    if config.backend_tls_ca.is_none() {
        if config.backend_tls_cert.is_some() {
            wrong("backend-tls-cert", need("backend-tls-ca"));
        }
        if !config.backend_tls_verify_host_name {
            wrong("backend-tls-verify-host-name", need("backend-tls-ca"));
        }
    }
    if config.cql.is_none() {
        for (name, given) in [
            ("cql-tls-cert", config.cql_tls_cert.is_some()),
            ("backend-tls-ca", config.backend_tls_ca.is_some()),
        ] {
            if given {
                wrong(name, "there is no CQL front end: write `--cql 127.0.0.1:9043` too".into());
            }
        }
    }
}

fn memcache(config: &Config, wrong: &mut Wrong<'_>) {
    if let (Some(memcache), Some(cql)) = (config.memcache, config.cql)
        && collide(memcache, cql)
    {
        wrong(
            "memcache",
            format!("{memcache} is the address of the CQL front end already: choose another port"),
        );
    }
    if let Some(timeout) = config.memcache_idle_timeout
        && timeout.get() < LEAST_IDLE_TIMEOUT
    {
        wrong(
            "memcache-idle-timeout",
            format!(
                "with {timeout} connections would be closed as soon as they wait: write at least 1s, or `off` for no limit"
            ),
        );
    }
    if config.memcache_item_size > MAX_ITEM {
        wrong(
            "memcache-item-size",
            format!("{} is too much: at most {MAX_ITEM}", config.memcache_item_size),
        );
    }
    if config.memcache_item_size < MIN_ITEM {
        wrong(
            "memcache-item-size",
            format!("{} is too little: at least {MIN_ITEM}", config.memcache_item_size),
        );
    }
    if config.has_memcache() && config.buffers().get() > config.memory.get() / 2 {
        wrong(
            "memcache-buffers",
            format!("{} is more than half of --memory ({})", config.buffers(), config.memory),
        );
    }
}

/// Connections are looked at once a second.
const LEAST_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest object there can be, its value in parts.
pub const MAX_ITEM: Size = Size::mib(64);
/// Smallest limit on objects that makes sense.
const MIN_ITEM: Size = Size::bytes(1024);

fn ring(config: &Config, wrong: &mut Wrong<'_>) {
    let Some(ring) = config.ring_address else {
        for (name, given) in [
            ("ring-secret", config.ring_secret.is_some()),
            ("ring-advertise", config.ring_advertise.is_some()),
        ] {
            if given {
                let need = "it is of use in a ring only: write `--ring-address HOST:PORT` too";
                wrong(name, need.into());
            }
        }
        return;
    };
    if config.cql.is_none() {
        let need = "a ring is of instances with a CQL front end: write `--cql` and `--backend` too";
        wrong("ring-address", need.into());
    }
    match &config.ring_secret {
        None => wrong(
            "ring-address",
            "links between instances are never open: write `--ring-secret FILE` too".into(),
        ),
        Some(path) => {
            if let Err(error) = Secrets::read(path) {
                wrong("ring-secret", error.to_string());
            }
        }
    }
    if config.planned_restart_grace.is_some() {
        let need = "in a ring the other members write while this one is away: leave it out, and \
                    `afterglow ring leave` before the stop hands the rows over";
        wrong("planned-restart-grace", need.into());
    }
    if config.ring_advertise.is_none() && (ring.ip().is_unspecified() || ring.port() == 0) {
        let message = format!(
            "{ring} is no address that others can reach: write `--ring-advertise HOST:PORT` too"
        );
        wrong("ring-address", message);
    }
    let taken = [("CQL front end", config.cql), ("memcached front end", config.memcache)];
    for (of, address) in taken {
        if address.is_some_and(|address| collide(address, ring)) {
            let message = format!("{ring} is the address of the {of} already: choose another port");
            wrong("ring-address", message);
        }
    }
}

fn admin(config: &Config, wrong: &mut Wrong<'_>) {
    let Some(admin) = config.admin else { return };
    if !admin.ip().is_loopback() && !config.admin_allow_remote {
        wrong(
            "admin",
            format!(
                "other machines can reach {admin}, which has no password and no TLS: listen on \
                 127.0.0.1:{}, or write `--admin-allow-remote` if the network keeps strangers out",
                admin.port()
            ),
        );
    }
    if config.cql.is_some_and(|cql| collide(cql, admin)) {
        wrong(
            "admin",
            format!("{admin} is the address of the CQL front end already: choose another port"),
        );
    }
    if config.memcache.is_some_and(|memcache| collide(memcache, admin)) {
        wrong(
            "admin",
            format!(
                "{admin} is the address of the memcached front end already: choose another port"
            ),
        );
    }
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port()
        && a.port() != 0
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn sizes(config: &Config, wrong: &mut Wrong<'_>) {
    if config.memory < MIN_MEMORY {
        wrong("memory", format!("{} is too little memory: at least {MIN_MEMORY}", config.memory));
    }
    if config.flash.is_empty() && config.flash_size < MIN_FLASH {
        wrong(
            "flash-size",
            format!("{} is too little flash: at least {MIN_FLASH}", config.flash_size),
        );
    }
    if config.write_budget.is_some_and(|budget| budget.get() == 0) {
        wrong(
            "write-budget",
            "with 0 bytes a second nothing could be cached: write `none` for no limit".into(),
        );
    }
    let mut seen = HashSet::new();
    for flash in &config.flash {
        if let Some(size) = flash.size.filter(|size| *size < MIN_FLASH) {
            wrong(
                "flash",
                format!(
                    "{size} is too little flash for {}: at least {MIN_FLASH}",
                    flash.path.display()
                ),
            );
        }
        if !seen.insert(&flash.path) {
            wrong("flash", format!("{} is named twice", flash.path.display()));
        }
    }
}

fn flash_notes(
    config: &Config,
    places: &BTreeMap<&'static str, SettingPlace>,
    notes: &mut Vec<String>,
) {
    if !config.flash.is_empty() && places.contains_key("flash-size") {
        notes.push("flash-size has no effect: flash says where to cache".into());
    }
    let Some(flash) = config.flash_total() else { return };
    if flash < config.memory {
        notes.push(format!("flash ({}) is smaller than memory ({})", flash, config.memory));
    }
}

fn memcache_notes(config: &Config, notes: &mut Vec<String>) {
    let open = config.memcache.filter(|address| !address.ip().is_loopback());
    if let Some(address) = open.filter(|_| config.memcache_auth_file.is_none()) {
        notes.push(format!(
            "{address} can be reached from other machines, and whoever reaches the memcached front end may read and change \
             everything in it: see memcache-auth-file, memcache-tls-cert"
        ));
    }
}

/// Notes the rules that an earlier one leaves no table.
fn shadowed<R: fmt::Display>(
    setting: &str,
    rules: &[R],
    pattern: impl Fn(&R) -> &TablePattern,
    notes: &mut Vec<String>,
) {
    for (i, rule) in rules.iter().enumerate() {
        if let Some(first) = rules[..i].iter().find(|first| pattern(first).covers(pattern(rule))) {
            notes.push(format!(
                "{setting} `{rule}` never holds: `{first}` before it matches the same tables"
            ));
        }
    }
}

fn policy_notes(config: &Config, notes: &mut Vec<String>) {
    if config.cql.is_none() {
        return;
    }
    let rules = &config.table_policy.rules;
    shadowed("table-policy", rules, |rule| &rule.pattern, notes);
    shadowed("table-write-level", &config.table_write_level.rules, |rule| &rule.pattern, notes);
    let (hold, hints) = (config.unknown_outcome_hold, Span::new(HINT_WINDOW));
    if hold < hints {
        notes.push(format!(
            "unknown-outcome-hold ({hold}) is shorter than the {hints} for which a database keeps \
             hints by default: unless its max_hint_window is as short, a late hint may leave a \
             cached row stale"
        ));
    }
    if !rules.iter().any(|rule| rule.policy == TablePolicy::Exclusive) {
        notes.push(
            "no table is `exclusive`: nothing stays cached for longer than its max-staleness, so a large flash tier earns little"
                .into(),
        );
    }
}
