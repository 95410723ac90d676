//! The one table of settings: flags, environment variables, the file and `check-config` are all
//! made from it.
//!
//! To add a setting: a field in [`Config`](super::Config) with its default, and an entry here.

mod policy;
mod ring;
mod tls;

use std::path::PathBuf;

use super::{
    key::{Group, SettingKey, Shape},
    put::{
        all, one, paths, put, put_connections, put_list, put_listen, put_optional_path, put_path,
        put_reactors, put_switch, put_unless, refused, some,
    },
};

/// The setting of that name.
pub fn find(name: &str) -> Option<&'static SettingKey> {
    KEYS.iter().find(|key| key.name == name)
}

/// The name that was probably meant, when one is near.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-").to_ascii_lowercase();
    let distance = |key: &SettingKey| strsim::damerau_levenshtein(&name, key.name);
    let key = KEYS.iter().min_by_key(|key| distance(key))?;
    (distance(key) <= (key.name.len() / 3).max(1)).then_some(key.name)
}

/// Every setting, in the order `--help` lists them.
pub static KEYS: &[SettingKey] = &{
    const ROOMS: [&[SettingKey]; 4] = [OTHERS, tls::KEYS, policy::KEYS, ring::KEYS];
    const COUNT: usize = ROOMS[0].len() + ROOMS[1].len() + ROOMS[2].len() + ROOMS[3].len();
    let mut all = [OTHERS[0]; COUNT];
    let (mut at, mut room, mut key) = (0, 0, 0);
    while at < all.len() {
        if key == ROOMS[room].len() {
            (room, key) = (room + 1, 0);
        }
        all[at] = ROOMS[room][key];
        (at, key) = (at + 1, key + 1);
    }
    all
};

/// Those without a room of their own.
const OTHERS: &[SettingKey] = &[
    SettingKey {
        name: "cql",
        group: Group::FrontEnds,
        shape: Shape::Text,
        value_name: "ADDRESS",
        example: "127.0.0.1:9043",
        help: "Open the CQL front end: drivers connect here instead of to the database. With \
               port 0 the system chooses a port",
        live: false,
        set: |c, v| put_listen(&mut c.cql, v),
        get: |c| some(c.cql),
    },
    SettingKey {
        name: "backend",
        group: Group::FrontEnds,
        shape: Shape::List,
        value_name: "HOST:PORT",
        example: "127.0.0.1:9042",
        help: "A contact point of the database behind the CQL front end. Repeatable, in order of \
               preference",
        live: false,
        set: |c, v| put_list(&mut c.backend, v),
        get: |c| all(&c.backend),
    },
    SettingKey {
        name: "backend-credentials",
        group: Group::FrontEnds,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/credentials",
        help: "File with the keys `username` and `password`, for a database that requires \
               authentication. Afterglow reads the schema and keeps the lease as this user. \
               Clients log in as themselves. Without the file such a database is not cached. Only \
               its owner may read it (mode 0600), or it is root's with mode 0440 and the server's \
               group",
        live: false,
        set: |c, v| {
            let mut path = PathBuf::new();
            put_path(&mut path, v)?;
            c.backend_credentials = Some(path);
            Ok(())
        },
        get: |c| some(c.backend_credentials.as_ref().map(|path| path.display())),
    },
    SettingKey {
        name: "fill-hedge",
        group: Group::FrontEnds,
        shape: Shape::Text,
        value_name: "off|pNN|DURATION",
        example: "p99",
        help: "Send a read that fills the cache to a second node of the database if the first has \
               not answered within this percentile of recent fills, or within this time. The \
               first answer counts. At most one in 20 fills is sent twice, and none while the \
               database says that it is overloaded. `off`: only if the first is silent",
        live: false,
        set: |c, v| put(&mut c.fill_hedge, v),
        get: |c| one(c.fill_hedge),
    },
    SettingKey {
        name: "advertise",
        group: Group::FrontEnds,
        shape: Shape::Text,
        value_name: "IP[:PORT]",
        example: "10.0.0.5",
        help: "The address that drivers are told for this instance. Needed if --cql listens on \
               every network. Without it: the address of --cql",
        live: false,
        set: |c, v| {
            c.advertise = Some(v[0].parse().map_err(refused(0))?);
            Ok(())
        },
        get: |c| some(c.advertise),
    },
    SettingKey {
        name: "memcache",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "ADDRESS",
        example: "127.0.0.1:11211",
        help: "Open the memcached front end: clients of memcached connect here. With port 0 the \
               system chooses a port. Open on 127.0.0.1:11211 if no front end is named",
        live: false,
        set: |c, v| put_listen(&mut c.memcache, v),
        get: |c| some(c.memcache),
    },
    SettingKey {
        name: "memcache-unix",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "PATH",
        example: "/run/afterglow/memcache",
        help: "Open the memcached front end on this Unix socket (mode 0700), with or without \
               --memcache",
        live: false,
        set: |c, v| put_optional_path(&mut c.memcache_unix, v),
        get: |c| paths(c.memcache_unix.as_ref()),
    },
    SettingKey {
        name: "memcache-tls-cert",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/cert.pem",
        help: "Require TLS on the memcached front end's TCP port, with this certificate chain \
               (PEM). The command refresh_certs reads it again",
        live: false,
        set: |c, v| put_optional_path(&mut c.memcache_tls_cert, v),
        get: |c| paths(c.memcache_tls_cert.as_ref()),
    },
    SettingKey {
        name: "memcache-tls-key",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/key.pem",
        help: "The key of --memcache-tls-cert (PEM)",
        live: false,
        set: |c, v| put_optional_path(&mut c.memcache_tls_key, v),
        get: |c| paths(c.memcache_tls_key.as_ref()),
    },
    SettingKey {
        name: "memcache-auth-file",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "FILE",
        example: "/etc/afterglow/users",
        help: "Admit only the users in this file, one name:password a line. The binary protocol \
               uses SASL PLAIN. The text protocol uses a first `set` with the value `name \
               password`",
        live: false,
        set: |c, v| put_optional_path(&mut c.memcache_auth_file, v),
        get: |c| paths(c.memcache_auth_file.as_ref()),
    },
    SettingKey {
        name: "memcache-connections",
        group: Group::Memcache,
        shape: Shape::Number,
        value_name: "N",
        example: "4096",
        help: "Largest number of connections to the memcached front end. Further connections get \
               an error and are closed",
        live: true,
        set: |c, v| put_connections(&mut c.memcache_connections, v),
        get: |c| one(c.memcache_connections),
    },
    SettingKey {
        name: "memcache-idle-timeout",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "5m",
        help: "Close connections of the memcached front end that send nothing for this long, at \
               least 1s. off means never",
        live: true,
        set: |c, v| put_unless("off", &mut c.memcache_idle_timeout, &v[0]),
        get: |c| {
            one(c.memcache_idle_timeout.map_or_else(|| "off".into(), |timeout| timeout.to_string()))
        },
    },
    SettingKey {
        name: "memcache-item-size",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "SIZE",
        example: "4MiB",
        help: "Largest object of the memcached front end, its key and 64 bytes included: 64MiB \
               at most, and a sixteenth of the flash. What is more than a quarter of a segment is \
               kept in parts",
        live: false,
        set: |c, v| put(&mut c.memcache_item_size, v),
        get: |c| one(c.memcache_item_size),
    },
    SettingKey {
        name: "memcache-durability",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "write-back|write-through|synced",
        example: "write-through",
        help: "When the memcached front end acknowledges a store. write-back: at once. \
               write-through: when its copy is written to flash. synced: when the disk has \
               flushed it, so that it survives power loss",
        live: false,
        set: |c, v| put(&mut c.memcache_durability, v),
        get: |c| one(c.memcache_durability),
    },
    SettingKey {
        name: "memcache-buffers",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "SIZE",
        example: "64MiB",
        help: "Part of --memory for requests and answers of the memcached front end, besides \
               64KiB for each busy connection. When it is used up, large requests wait. auto is \
               an eighth of --memory, at most 64MiB",
        live: false,
        set: |c, v| put_unless("auto", &mut c.memcache_buffers, &v[0]),
        get: |c| one(c.memcache_buffers.map_or_else(|| "auto".into(), |size| size.to_string())),
    },
    SettingKey {
        name: "memcache-no-flush",
        group: Group::Memcache,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Refuse flush_all, so that no client of the memcached front end empties the cache",
        live: false,
        set: |c, v| put_switch(&mut c.memcache_no_flush, v),
        get: |c| one(c.memcache_no_flush),
    },
    SettingKey {
        name: "memcache-no-dump",
        group: Group::Memcache,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Refuse to list the keys of the memcached front end: stats cachedump, lru_crawler \
               metadump and mgdump",
        live: false,
        set: |c, v| put_switch(&mut c.memcache_no_dump, v),
        get: |c| one(c.memcache_no_dump),
    },
    SettingKey {
        name: "memcache-no-watch",
        group: Group::Memcache,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Refuse `watch`, which tells clients of the memcached front end the keys that \
               others use",
        live: false,
        set: |c, v| put_switch(&mut c.memcache_no_watch, v),
        get: |c| one(c.memcache_no_watch),
    },
    SettingKey {
        name: "memcache-rejoin-grace",
        group: Group::Memcache,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "30s",
        help: "Start the memcached front end empty if the server was down for longer than this. \
               Clients may have changed its keys on other servers meanwhile. off never does",
        live: false,
        set: |c, v| put_unless("off", &mut c.memcache_rejoin_grace, &v[0]),
        get: |c| {
            one(c.memcache_rejoin_grace.map_or_else(|| "off".into(), |grace| grace.to_string()))
        },
    },
    SettingKey {
        name: "data-dir",
        group: Group::Cache,
        shape: Shape::Text,
        value_name: "DIR",
        example: "/var/lib/afterglow",
        help: "Directory of journal, metadata, lock and, without --flash, the flash file. \
               Created with mode 0700 if missing",
        live: false,
        set: |c, v| put_path(&mut c.data_dir, v),
        get: |c| one(c.data_dir.display()),
    },
    SettingKey {
        name: "memory",
        group: Group::Cache,
        shape: Shape::Text,
        value_name: "SIZE",
        example: "4GiB",
        help: "Memory budget of the cache: index, objects in DRAM, write buffers",
        live: true,
        set: |c, v| put(&mut c.memory, v),
        get: |c| one(c.memory),
    },
    SettingKey {
        name: "flash-size",
        group: Group::Cache,
        shape: Shape::Text,
        value_name: "SIZE",
        example: "100GiB",
        help: "Size of the flash file in the data directory. Its blocks are reserved when it is \
               created",
        live: false,
        set: |c, v| put(&mut c.flash_size, v),
        get: |c| one(c.flash_size),
    },
    SettingKey {
        name: "flash",
        group: Group::Cache,
        shape: Shape::List,
        value_name: "PATH:SIZE",
        example: "/mnt/nvme/afterglow:400GiB",
        help: "Cache on this file or block device instead of a file in the data directory. \
               Repeatable. The content of a block device is overwritten",
        live: false,
        set: |c, v| put_list(&mut c.flash, v),
        get: |c| all(&c.flash),
    },
    SettingKey {
        name: "write-budget",
        group: Group::Cache,
        shape: Shape::Text,
        value_name: "none|SIZE",
        example: "20MiB",
        help: "Bytes a second written to flash, averaged over an hour and more, so that the \
               device lasts. Objects are refused to keep it",
        live: false,
        set: |c, v| put_unless("none", &mut c.write_budget, &v[0]),
        get: |c| one(c.write_budget.map_or_else(|| "none".into(), |size| size.to_string())),
    },
    SettingKey {
        name: "take-over",
        group: Group::Process,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Take the place of the server that runs on this data directory: have its listening \
               sockets, wait until it has ended, and serve. Clients that connect meanwhile wait \
               and are not refused. If none runs there, start as usual",
        live: false,
        set: |c, v| put_switch(&mut c.take_over, v),
        get: |c| one(c.take_over),
    },
    SettingKey {
        name: "discard-cache",
        group: Group::Cache,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Start with an empty cache if a flash device has another size than the cache was \
               made with. Without it such a start is refused. It discards nothing else. Devices \
               may be added, removed and reordered without it, unless an earlier build made the \
               cache",
        live: false,
        set: |c, v| put_switch(&mut c.discard_cache, v),
        get: |c| one(c.discard_cache),
    },
    SettingKey {
        name: "io",
        group: Group::Cache,
        shape: Shape::Text,
        value_name: "auto|uring|pread",
        example: "auto",
        help: "How flash is read and written. auto uses io_uring if the kernel allows it, else \
               pread",
        live: false,
        set: |c, v| put(&mut c.io, v),
        get: |c| one(c.io),
    },
    SettingKey {
        name: "reactors",
        group: Group::Process,
        shape: Shape::Number,
        value_name: "N",
        example: "auto",
        help: "Number of threads that serve clients. auto is one for each core that the process \
               may use",
        live: false,
        set: |c, v| put_reactors(&mut c.reactors, v),
        get: |c| one(c.reactors.map_or_else(|| "auto".into(), |n| n.to_string())),
    },
    SettingKey {
        name: "admin",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "ADDRESS",
        example: "127.0.0.1:9180",
        help: "Serve the dashboard, /metrics, /healthz and /readyz on this address. `off` means \
               nowhere",
        live: false,
        set: |c, v| put_listen(&mut c.admin, v),
        get: |c| one(c.admin.map_or_else(|| "off".into(), |a| a.to_string())),
    },
    SettingKey {
        name: "admin-allow-remote",
        group: Group::Process,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Allow an --admin address that other machines can reach. It has no password and no \
               TLS",
        live: false,
        set: |c, v| put_switch(&mut c.admin_allow_remote, v),
        get: |c| one(c.admin_allow_remote),
    },
    SettingKey {
        name: "admin-host",
        group: Group::Process,
        shape: Shape::List,
        value_name: "NAME",
        example: "cache-1.example",
        help: "Serve the dashboard under this host name too, besides localhost and the address of \
               --admin. Other names are refused, so that no foreign web page reads it. /metrics, \
               /healthz and /readyz answer under every name. Repeatable",
        live: false,
        set: |c, v| put_list(&mut c.admin_host, v),
        get: |c| all(&c.admin_host),
    },
    SettingKey {
        name: "show-keys",
        group: Group::Process,
        shape: Shape::Switch,
        value_name: "true|false",
        example: "false",
        help: "Show names of keys and prefixes on the admin address, to `afterglow hotkeys` and \
               `afterglow top`, and in the slow-request log. Keys may be personal data",
        live: false,
        set: |c, v| put_switch(&mut c.show_keys, v),
        get: |c| one(c.show_keys),
    },
    SettingKey {
        name: "hotkeys-separator",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "CHARACTER",
        example: "/",
        help: "The character that ends the prefix of a key: the hottest prefixes are those up to \
               the first one",
        live: false,
        set: |c, v| put(&mut c.hotkeys_separator, v),
        get: |c| one(c.hotkeys_separator),
    },
    SettingKey {
        name: "slow-request-log",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "off|DURATION",
        example: "50ms",
        help: "Log a line for each request that takes longer than this, at most 10 a second; \
               others are counted. Keys are named with --show-keys only",
        live: false,
        set: |c, v| put_unless("off", &mut c.slow_request_log, &v[0]),
        get: |c| one(c.slow_request_log.map_or_else(|| "off".into(), |time| time.to_string())),
    },
    SettingKey {
        name: "drain-timeout",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "DURATION",
        example: "10s",
        help: "How long SIGTERM waits for requests in flight before it closes connections",
        live: false,
        set: |c, v| put(&mut c.drain_timeout, v),
        get: |c| one(c.drain_timeout),
    },
    SettingKey {
        name: "log-level",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "LEVEL",
        example: "info",
        help: "off, error, warn, info, debug or trace. Finer levels as in \
               `info,afterglow::frontend=debug`",
        live: true,
        set: |c, v| put(&mut c.log_level, v),
        get: |c| one(&c.log_level),
    },
    SettingKey {
        name: "log-format",
        group: Group::Process,
        shape: Shape::Text,
        value_name: "text|json",
        example: "json",
        help: "Format of log lines on standard error",
        live: false,
        set: |c, v| put(&mut c.log_format, v),
        get: |c| one(c.log_format),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn every_example_is_accepted_and_printed_as_given() {
        for key in KEYS {
            let mut config = Config::default();
            let example = vec![key.example.to_string()];
            (key.set)(&mut config, &example)
                .unwrap_or_else(|refused| panic!("{}: {}", key.name, refused.why));
            assert_eq!((key.get)(&config), example, "{}", key.name);
        }
    }

    #[test]
    fn every_default_is_read_back() {
        for key in KEYS {
            let defaults = (key.get)(&Config::default());
            if !defaults.is_empty() {
                let mut config = Config::default();
                (key.set)(&mut config, &defaults)
                    .unwrap_or_else(|refused| panic!("{}: {}", key.name, refused.why));
                assert_eq!(config, Config::default(), "{}", key.name);
            }
        }
    }

    #[test]
    fn near_names_are_recognised_and_far_ones_are_not() {
        for (wrong, meant) in [
            ("flash_size", Some("flash-size")),
            ("Memory", Some("memory")),
            ("table-polices", Some("table-policy")),
            ("bakcend", Some("backend")),
            ("log", None),
            ("listen", None),
            ("x", None),
        ] {
            assert_eq!(nearest(wrong), meant, "{wrong}");
        }
    }

    #[test]
    fn the_environment_variable_follows_from_the_name() {
        assert_eq!(find("flash-size").unwrap().variable(), "AFTERGLOW_FLASH_SIZE");
    }
}
