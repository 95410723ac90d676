//! Configuration from file, environment and flags: what wins, and what people are told when it is
//! wrong.

use std::path::PathBuf;

use afterglow::config::{Inputs, Loaded, SettingPlace, Size, load};

const FRONT_END: &str = "cql = \"127.0.0.1:9043\"\nbackend = \"127.0.0.1:9042\"\n";

fn file(content: &str) -> Inputs {
    Inputs { file: Some((PathBuf::from("a.toml"), content.into())), ..Inputs::default() }
}

fn faults(inputs: &Inputs) -> String {
    load(inputs).expect_err("this configuration is wrong").to_string()
}

/// A good file with these lines behind the two of the front end.
fn good(lines: &str) -> Loaded {
    load(&file(&format!("{FRONT_END}{lines}"))).unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn a_fault_in_the_file_has_its_line_and_column_and_says_what_to_write() {
    // Each stands on line 3, behind the two lines of a good front end.
    for (line, place, hint) in [
        ("flash-size = \"4G\"", "a.toml:3:14", "`4GiB` (powers of 1024)"),
        ("write-budget = \"0B\"", "a.toml:3:16", "`none` for no limit"),
        ("  memory = 268435456", "a.toml:3:12", "write it as in `memory = \"4GiB\"`"),
        ("memory = \"1MiB\"", "a.toml:3:10", "at least 32MiB"),
        (
            "flash_size = \"4GiB\"",
            "a.toml:3:1",
            "unknown key `flash_size`: did you mean `flash-size`?",
        ),
        ("listne = true", "a.toml:3:1", "`afterglow serve --help` lists all"),
        ("[cache]\nsize = 1", "a.toml:3:2", "there are no sections"),
        ("reactors = 0", "a.toml:3:12", "`auto` or 1 to 1024"),
        ("reactors = 1.5", "a.toml:3:12", "write it as in `reactors = \"auto\"`"),
        (
            "admin-allow-remote = \"yes\"",
            "a.toml:3:22",
            "write it as in `admin-allow-remote = false`",
        ),
        ("admin = \"9180\"", "a.toml:3:9", "`127.0.0.1:9180` (this machine only)"),
        ("admin = \"0.0.0.0:9180\"", "a.toml:3:9", "`--admin-allow-remote`"),
        ("admin = \"127.0.0.1:9043\"", "a.toml:3:9", "already: choose another port"),
        (
            "table-policy = [\"a.b=exclusive\", \"a.c=forever\"]",
            "a.toml:3:34",
            "`forever` is not a policy",
        ),
        (
            "table-policy = [\"a.b=exclusive\", 7]",
            "a.toml:3:34",
            "write it as in `table-policy = [\"shop.*=exclusive\"]`",
        ),
        (
            "table-policy = [\n  \"a.b=exclusive\",\n  \"shop=off\",\n]",
            "a.toml:5:3",
            "`shop.*` for every table",
        ),
        ("restart-grace = \"60\"", "a.toml:3:17", "`60s` or `60ms`"),
        ("fill-hedge = \"p100\"", "a.toml:3:14", "p50 to p99.9"),
        ("io = \"io_uring\"", "a.toml:3:6", "`auto`, `uring`, `pread`"),
        ("log-level = \"loud\"", "a.toml:3:13", "`debug`"),
        ("flash = [\"/a:1GiB\", \"/a:2GiB\"]", "a.toml:3:9", "named twice"),
        ("flash = [\"/a\"]", "a.toml:3:10", "`PATH:SIZE`"),
        ("memory = \"1GiB", "a.toml:3:15", "not TOML"),
        ("memory = \"1GiB\"\nmemory = \"2GiB\"", "a.toml:4:1", "not TOML: duplicate key"),
        ("data-dir = \"\"", "a.toml:3:12", "the path is empty"),
    ] {
        let message = faults(&file(&format!("{FRONT_END}{line}\n")));
        assert!(message.starts_with(&format!("error: {place}: ")), "{line}:\n{message}");
        assert!(message.contains(hint), "{line}:\n{message}");
    }
}

#[test]
fn the_line_is_shown_with_marks_below_what_is_wrong() {
    let message = faults(&file(&format!("{FRONT_END}flash-size = \"4G\"\n")));
    let shown: Vec<_> = message.lines().skip(1).collect();
    assert_eq!(shown, [" 3 | flash-size = \"4G\"", "   |              ^^^^"]);
}

#[test]
fn all_faults_are_told_at_once() {
    let mut inputs = file("memory = \"1\"\nflash-size = \"2\"\n");
    inputs.flags.push(("io", vec!["disk".into()]));
    inputs.environment.push(("AFTERGLOW_RESTART_GRACE".into(), "soon".into()));
    let message = faults(&inputs);
    for place in
        ["a.toml:1:10: memory", "a.toml:2:14: flash-size", "--io: ", "AFTERGLOW_RESTART_GRACE: "]
    {
        assert!(message.contains(&format!("error: {place}")), "{place} is missing in\n{message}");
    }
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let mut inputs =
        file(&format!("{FRONT_END}memory = \"1GiB\"\nflash-size = \"10GiB\"\nio = \"pread\"\n"));
    inputs.environment.push(("AFTERGLOW_MEMORY".into(), "2GiB".into()));
    inputs.environment.push(("AFTERGLOW_FLASH_SIZE".into(), "20GiB".into()));
    inputs.flags.push(("memory", vec!["3GiB".into()]));
    let loaded = load(&inputs).unwrap();
    assert_eq!(
        (loaded.config.memory, loaded.place("memory").to_string()),
        (Size::gib(3), "--memory".into())
    );
    assert_eq!(loaded.config.flash_size, Size::gib(20));
    assert_eq!(loaded.place("flash-size").to_string(), "AFTERGLOW_FLASH_SIZE");
    assert_eq!(loaded.place("io").to_string(), "a.toml:5:6");
    assert_eq!(loaded.place("restart-grace"), &SettingPlace::Default);
}

#[test]
fn a_list_of_a_higher_layer_replaces_the_whole_list() {
    let mut inputs = file(&format!("{FRONT_END}table-policy = [\"a.*=off\", \"b.*=off\"]\n"));
    inputs
        .environment
        .push(("AFTERGLOW_TABLE_POLICY".into(), "c.*=exclusive, d.*=max-staleness=5s".into()));
    let rules = |inputs: &Inputs| {
        load(inputs)
            .unwrap()
            .config
            .table_policy
            .rules
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(&inputs), ["c.*=exclusive", "d.*=max-staleness=5s"]);
    inputs.flags.push(("table-policy", vec!["e.*=off".into()]));
    assert_eq!(rules(&inputs), ["e.*=off"]);
}

#[test]
fn an_empty_variable_is_as_good_as_none() {
    let mut inputs = file(&format!("{FRONT_END}memory = \"1GiB\"\n"));
    inputs.environment.push(("AFTERGLOW_MEMORY".into(), String::new()));
    assert_eq!(load(&inputs).unwrap().config.memory, Size::gib(1));
}

#[test]
fn a_misspelt_variable_is_noted_and_those_of_the_platform_are_not() {
    let mut inputs = file(FRONT_END);
    for name in [
        "AFTERGLOW_FLASHSIZE",
        "AFTERGLOW_SERVICE_HOST",
        "AFTERGLOW_PORT",
        "AFTERGLOW_PORT_9043_TCP",
    ] {
        inputs.environment.push((name.into(), "tcp://10.0.0.1:9043".into()));
    }
    let loaded = load(&inputs).unwrap();
    let about: Vec<_> = loaded.notes.iter().filter(|note| note.contains("AFTERGLOW_")).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert!(
        about[0].contains("AFTERGLOW_FLASHSIZE")
            && about[0].contains("did you mean AFTERGLOW_FLASH_SIZE?")
    );
}

#[test]
fn a_server_needs_a_front_end_and_the_door_a_database() {
    assert!(
        faults(&file("memcache = \"off\"")).contains("no front end is open"),
        "the file may be empty, a server may not"
    );
    assert!(faults(&file("backend = \"db\"")).contains("--cql 127.0.0.1:9043"));
    let message = faults(&file("cql = \"127.0.0.1:9043\""));
    assert!(message.contains("--backend 127.0.0.1:9042"), "{message}");
    let message = faults(&file("cql = \"127.0.0.1:9043\"\nbackend = \"127.0.0.1:9043\""));
    assert!(
        message.starts_with("error: a.toml:2:11: ") && message.contains("Afterglow itself"),
        "{message}"
    );
}

#[test]
fn with_nothing_said_the_memcache_front_end_is_open_to_this_machine() {
    let config = load(&file("")).unwrap().config;
    assert_eq!(config.memcache, Some("127.0.0.1:11211".parse().unwrap()));
    assert_eq!(
        (config.flash_size, config.data_dir),
        (Size::gib(1), PathBuf::from("afterglow-data"))
    );
    assert_eq!(good("").config.memcache, None, "another front end was named");
    assert_eq!(load(&file("memcache-unix = \"/a\"")).unwrap().config.memcache, None);
}

#[test]
fn settings_of_the_memcache_front_end_that_cannot_be_meant_are_refused() {
    for (content, hint) in [
        ("memcache-tls-key = \"k.pem\"", "--memcache-tls-cert"),
        ("memcache = \"127.0.0.1:9180\"", "the memcached front end"),
        ("memcache-item-size = \"65MiB\"", "at most 64MiB"),
        ("memcache-item-size = \"10B\"", "at least"),
        ("memcache-buffers = \"200MiB\"", "more than half of --memory"),
        ("memcache-connections = 0", "1 to 1048576"),
        ("memcache-idle-timeout = \"0s\"", "`off`"),
        ("memcache-idle-timeout = \"999ms\"", "at least 1s"),
        ("memcache-durability = \"later\"", "`write-through`"),
        (
            "cql = \"127.0.0.1:9\"\nbackend = \"db\"\nmemcache = \"127.0.0.1:9\"",
            "the CQL front end",
        ),
    ] {
        let message = faults(&file(content));
        assert!(message.contains(hint), "{content}: {message}");
    }
    let open = load(&file("memcache = \"0.0.0.0:11211\"")).unwrap();
    assert!(open.notes.iter().any(|note| note.contains("memcache-auth-file")), "{:?}", open.notes);
}

#[test]
fn options_of_tls_that_lack_another_are_refused() {
    let front_end = "cql = \"127.0.0.1:9043\"\nbackend = \"db\"\n";
    for (content, hint) in [
        ("cql-tls-cert = \"c.pem\"", "--cql-tls-key"),
        ("cql-tls-key = \"k.pem\"", "--cql-tls-cert"),
        ("cql-tls-client-ca = \"ca.pem\"", "--cql-tls-cert"),
        ("backend-tls-cert = \"c.pem\"\nbackend-tls-key = \"k.pem\"", "--backend-tls-ca"),
        ("backend-tls-ca = \"ca.pem\"\nbackend-tls-key = \"k.pem\"", "--backend-tls-cert"),
        ("backend-tls-verify-host-name = false", "--backend-tls-ca"),
    ] {
        let message = faults(&file(&format!("{front_end}{content}")));
        assert!(message.starts_with("error: a.toml:3:") || message.starts_with("error: a.toml:4:"));
        assert!(message.contains(hint), "{content}: {message}");
    }
    for content in ["cql-tls-cert = \"c\"\ncql-tls-key = \"k\"", "backend-tls-ca = \"ca\""] {
        let message = faults(&file(content));
        assert!(message.contains("--cql 127.0.0.1:9043"), "{content}: {message}");
    }
    let all = "cql-tls-cert = \"c\"\ncql-tls-key = \"k\"\ncql-tls-client-ca = \"a\"
backend-tls-ca = \"b\"\nbackend-tls-cert = \"d\"\nbackend-tls-key = \"e\"
backend-tls-verify-host-name = false";
    let config = load(&file(&format!("{front_end}{all}"))).unwrap().config;
    assert!(!config.backend_tls_verify_host_name && config.cql_tls_client_ca.is_some());
    assert!(load(&file(front_end)).unwrap().config.backend_tls_verify_host_name);
}

#[test]
fn listening_everywhere_needs_an_address_for_drivers() {
    let content = "cql = \"0.0.0.0:9043\"\nbackend = \"10.0.0.1\"\n";
    let message = faults(&file(content));
    assert!(
        message.starts_with("error: a.toml:1:7: ") && message.contains("--advertise"),
        "{message}"
    );
    let config = load(&file(&format!("{content}advertise = \"10.0.0.5\"\n"))).unwrap().config;
    assert_eq!(
        config.advertised("0.0.0.0:9043".parse().unwrap()),
        "10.0.0.5:9043".parse().unwrap()
    );
    assert_eq!(config.backend[0].to_string(), "10.0.0.1:9042");
}

#[test]
fn the_admin_pages_leave_the_machine_only_when_that_is_said() {
    assert!(good("admin = \"off\"").config.admin.is_none());
    assert!(good("admin = \"[::1]:9180\"").config.admin.is_some());
    assert!(good("admin = \"0.0.0.0:9180\"\nadmin-allow-remote = true").config.admin.is_some());
}

#[test]
fn what_is_allowed_but_perhaps_not_meant_is_noted() {
    for (lines, note) in [
        (
            "table-policy = [\"a.*=off\", \"a.b=exclusive\"]",
            "`a.b=exclusive` never holds: `a.*=off` before it",
        ),
        (
            "table-write-level = [\"a.*=LOCAL_QUORUM\", \"a.b=ALL\"]",
            "`a.b=ALL` never holds: `a.*=LOCAL_QUORUM` before it",
        ),
        ("unknown-outcome-hold = \"0s\"", "(0s) is shorter than the 3h for which a database"),
        ("flash-size = \"1GiB\"\nflash = [\"/a:1GiB\"]", "flash-size has no effect"),
        ("flash-size = \"1GiB\"\nmemory = \"2GiB\"", "flash (1GiB) is smaller than memory (2GiB)"),
        ("", "no table is `exclusive`"),
    ] {
        let notes = good(lines).notes;
        assert!(notes.iter().any(|n| n.contains(note)), "{lines}: {notes:?}");
    }
    let quiet = good(
        "table-policy = [\"a.b=exclusive\", \"a.*=off\"]
table-write-level = [\"a.b=ALL\", \"a.*=LOCAL_QUORUM\"]",
    );
    let quiet = quiet.notes;
    assert!(quiet.is_empty(), "{quiet:?}");
}
