//! The built binary as a person at a terminal meets it.

use std::process::{Command, Output};

use afterglow::config::keys::KEYS;
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};

/// Runs the binary to its end with nothing of this process's environment that could mean something
/// to it.
fn afterglow(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AFTERGLOW_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A configuration file in a folder of its own.
fn file(content: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("afterglow.toml");
    std::fs::write(&path, content).unwrap();
    (dir, path.to_str().unwrap().to_string())
}

const FRONT_END: [&str; 4] = ["--cql", "127.0.0.1:9043", "--backend", "127.0.0.1:9042"];

/// What `--help` has to list.
const COMMANDS: [&str; 8] =
    ["serve", "check-config", "inspect", "explain", "size", "health", "completions", "man-pages"];

#[test]
fn the_version_is_that_of_the_package() {
    let output = afterglow(&["--version"], &[]);
    assert!(output.status.success());
    assert!(
        out(&output).starts_with(concat!("afterglow ", env!("CARGO_PKG_VERSION"))),
        "{}",
        out(&output)
    );
}

#[test]
fn help_lists_the_commands_and_every_option() {
    let help = out(&afterglow(&["--help"], &[]));
    for command in COMMANDS {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(command)),
            "{command} is missing in\n{help}"
        );
    }
    let help = out(&afterglow(&["serve", "--help"], &[]));
    for key in KEYS {
        assert!(
            help.contains(&format!("--{} ", key.name))
                || help.contains(&format!("--{}[", key.name)),
            "{}",
            key.name
        );
        assert!(help.contains(key.group.heading()), "{}", key.group.heading());
    }
    assert!(help.contains("AFTERGLOW_FLASH_SIZE=4GiB") && help.contains("Examples:"));
}

#[test]
fn wrong_usage_ends_with_status_2_and_says_what_was_meant() {
    for (arguments, hint) in [
        (&["serve", "--flash-sise", "4GiB"][..], "--flash-size"),
        (&["serv"], "serve"),
        (
            &["serve", "--memory", "4G"],
            "error: --memory: `4G` does not say which unit: write `4GiB`",
        ),
        (&["serve", "--memcache", "off"], "no front end is open"),
        (&["serve", "--memcache-tls-cert", "a.pem"], "--memcache-tls-key"),
        (&["serve", "--cql", "127.0.0.1:9043"], "--backend"),
        (&["serve", "--cql", "127.0.0.1:9043", "--memory", "1GiB", "--memory", "2GiB"], "--memory"),
        (
            &["serve", "--config", "/nowhere/a.toml"],
            "cannot read the configuration /nowhere/a.toml",
        ),
        (&["check-config"], "FILE"),
    ] {
        let output = afterglow(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(hint), "{arguments:?}: {}", err(&output));
    }
}

#[test]
fn check_config_points_at_what_is_wrong() {
    let (_dir, path) = file("cql = \"127.0.0.1:9043\"\nbackend = \"db\"\nmemori = \"1GiB\"\n");
    let output = afterglow(&["check-config", &path], &[]);
    assert_eq!(output.status.code(), Some(2));
    let wanted = format!(
        "error: {path}:3:1: unknown key `memori`: did you mean `memory`?\n 3 | memori = \"1GiB\"\n   | ^^^^^^\n"
    );
    assert_eq!(err(&output), wanted);
}

#[test]
fn a_file_that_is_no_text_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.toml");
    std::fs::write(&path, b"io = \"auto\"\n\xff\n").unwrap();
    let output = afterglow(&["check-config", path.to_str().unwrap()], &[]);
    assert!(
        output.status.code() == Some(2) && err(&output).contains("a.toml:2: not UTF-8"),
        "{}",
        err(&output)
    );
}

#[test]
fn check_config_prints_what_holds_and_what_each_policy_costs() {
    let (_dir, path) = file(
        "memory = \"1GiB\"\ntable-policy = [\"shop.*=exclusive\", \"log.*=max-staleness=5s\"]\n",
    );
    let arguments = [&["check-config", &path][..], &FRONT_END, &["--io", "pread"]].concat();
    let output = afterglow(&arguments, &[("AFTERGLOW_FLASH_SIZE", "8GiB")]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    let line = |start: &str| {
        text.lines()
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("{start} in\n{text}"))
    };
    assert!(line("memory = \"1GiB\"").ends_with(&format!("# {path}:1:10")));
    assert!(line("flash-size = \"8GiB\"").ends_with("# AFTERGLOW_FLASH_SIZE"));
    assert!(line("io = \"pread\"").ends_with("# --io"));
    assert!(line("restart-grace = \"60s\"").ends_with("# default"));
    let prose: Vec<_> = text.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    let prose = prose.join(" ");
    for said in [
        "shop.*: exclusive your promise: every writer comes through Afterglow, also while Afterglow is down",
        "log.*: max-staleness=5s writes through this instance are seen at once, others within 5s.",
        "no row lives longer than that, so a large flash tier earns little",
        "every other table: max-staleness=60s",
    ] {
        assert!(prose.contains(said), "{said} is missing in\n{prose}");
    }

    // What is printed is itself a file that says the same.
    let (_dir, printed) = file(&text);
    let again = out(&afterglow(&["check-config", &printed], &[]));
    let settings = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split(" #").next().unwrap().trim().into())
            .collect()
    };
    assert_eq!(settings(&text), settings(&again));
}

#[test]
fn the_example_file_is_a_good_file() {
    let example = afterglow(&["check-config", "--example"], &[]);
    assert!(example.status.success());
    let text = out(&example);
    for key in KEYS {
        assert!(text.contains(&format!("{} = ", key.name)), "{} is missing", key.name);
    }
    let (_dir, path) = file(&text);
    let output = afterglow(&[&["check-config", &path][..], &FRONT_END].concat(), &[]);
    assert!(output.status.success(), "{}", err(&output));
    // And with every commented example taken too.
    let all: String = text
        .lines()
        .map(|line| {
            format!("{}\n", line.strip_prefix("# ").filter(|l| l.contains(" = ")).unwrap_or(line))
        })
        .collect();
    // What it names must be there.
    let (dir, credentials) = file("username = \"a\"\npassword = \"b\"\n");
    std::fs::set_permissions(&credentials, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let all = all.replace("/etc/afterglow/credentials", &credentials);
    let (_secrets, secret) = file("a secret of the ring that is long enough");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let all = all.replace("/etc/afterglow/ring-secret", &secret);
    let (_dir, path) = file(&all);
    let output = afterglow(&["check-config", &path], &[]);
    drop(dir);
    // Nothing in it is wrong; what it names is not on this machine.
    assert!(
        !err(&output).contains(&path) && err(&output).contains("does not exist"),
        "{}",
        err(&output)
    );
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_afterglow"))
        .args(["check-config", "--example"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", err(&output));
}

#[test]
fn explain_tells_what_is_cached_from_a_file_and_from_a_database() {
    let (_dir, path) = file("CREATE TABLE shop.items (id uuid PRIMARY KEY, name text);");
    let statement = "SELECT name FROM items WHERE id = ?";
    let known = afterglow(&["explain", "--schema", &path, "--keyspace", "shop", statement], &[]);
    assert!(known.status.success(), "{}", err(&known));
    assert!(out(&known).contains("cached: one row of shop.items"), "{}", out(&known));
    let unknown = out(&afterglow(&["explain", statement], &[]));
    assert!(unknown.contains("passed through") && unknown.contains("--schema"), "{unknown}");
    // What the table of writes in docs/guide/cql.md says of statements that cannot be parsed.
    let misspelt = out(&afterglow(&["explain", "SELCT 1"], &[]));
    let words = misspelt.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "passed through as a write, because it is not understood",
        "drops nothing if the database refuses it",
        "a keyspace if the answer is a change of that keyspace's schema",
        "and otherwise: everything",
    ] {
        assert!(words.contains(said), "{misspelt}");
    }
    let (_dir, path) = file("CREATE NONSENSE");
    let wrong = afterglow(&["explain", "--schema", &path, statement], &[]);
    assert!(
        wrong.status.success(),
        "a statement that makes no table is passed over: {}",
        err(&wrong)
    );
    let (_dir, path) = file("SELECT 1");
    let wrong = afterglow(&["explain", "--schema", &path, statement], &[]);
    assert!(wrong.status.code() == Some(2) && err(&wrong).contains("SELECT 1"), "{}", err(&wrong));

    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let backend = database.address().to_string();
    let mut direct = Connection::open(&backend, &ConnectOptions::default()).unwrap();
    for text in [
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE ks.t (k text PRIMARY KEY, v text)",
    ] {
        direct.query(text, Consistency::One).unwrap();
    }
    let asked =
        afterglow(&["explain", "--backend", &backend, "DELETE FROM ks.t WHERE k = 'a'"], &[]);
    assert!(out(&asked).contains("the row 0x61"), "{}{}", out(&asked), err(&asked));
    let nobody = afterglow(&["explain", "--backend", "127.0.0.1:1", "USE ks"], &[]);
    assert!(
        nobody.status.code() == Some(1) && err(&nobody).contains("127.0.0.1:1"),
        "{}",
        err(&nobody)
    );
}

#[test]
fn the_benchmarks_say_where_they_went() {
    let output = afterglow(&["bench", "engine", "--dir", "/tmp"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("afterglow-bench engine"), "{}", err(&output));
}

#[test]
fn completions_know_every_command_and_every_option() {
    for shell in ["bash", "zsh", "fish"] {
        let text = out(&afterglow(&["completions", shell], &[]));
        let options = KEYS.iter().map(|key| key.name);
        for word in COMMANDS.into_iter().chain(options) {
            assert!(text.contains(word), "{shell} does not know {word}");
        }
        assert!(!text.contains("bench"), "{shell} offers what only says where it went");
    }
    let output = afterglow(&["completions", "csh"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("zsh"), "{}", err(&output));
}

#[test]
fn manual_pages_have_every_command_and_every_option() {
    let dir = tempfile::tempdir().unwrap();
    let output = afterglow(&["man-pages", dir.path().to_str().unwrap()], &[]);
    assert!(output.status.success(), "{}", err(&output));
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    for command in COMMANDS {
        assert!(page(&format!("afterglow-{command}.1")).contains(".TH"), "{command}");
    }
    let serve = page("afterglow-serve.1");
    for key in KEYS {
        let flag = format!("\\-\\-{}", key.name.replace('-', "\\-"));
        assert!(serve.contains(&flag), "{flag} is missing in\n{serve}");
    }
    let output = afterglow(&["man-pages", "/nowhere"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("existing folder"), "{}", err(&output));
}

#[test]
fn health_of_nobody_fails_and_says_what_to_look_at() {
    let output = afterglow(&["health", "--admin", "127.0.0.1:9"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("Is the server running"), "{}", err(&output));
    for wrong in [["--admin", "off"], ["--admin", "here"], ["--timeout", "5"]] {
        let output = afterglow(&["health", wrong[0], wrong[1]], &[]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(err(&output).contains(wrong[0]), "{}", err(&output));
    }
}

#[test]
fn size_plans_a_cache_or_says_what_is_wrong() {
    let plan = afterglow(&["size", "--objects", "1e6", "--object-size", "300"], &[]);
    assert!(plan.status.success(), "{}", err(&plan));
    let text = out(&plan);
    assert!(text.contains("--memory") && text.contains("100.0 % of all"), "{text}");
    let (_dir, trace) = file("a 10\nb many\n");
    for (arguments, complaint) in [
        (vec!["--objects", "x", "--object-size", "3"], "`x` is not a number"),
        (vec!["--trace", &trace, "--object-size", "3"], "line 2: `many` is no size"),
        (vec!["--trace", "nowhere", "--object-size", "3"], "nowhere"),
    ] {
        let wrong = afterglow(&[vec!["size"], arguments].concat(), &[]);
        assert_eq!(wrong.status.code(), Some(2), "{}", err(&wrong));
        assert!(err(&wrong).contains(complaint), "{}", err(&wrong));
    }
}
