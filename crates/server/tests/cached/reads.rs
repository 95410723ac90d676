//! What is served from the cache, and what never is.

use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams};
use afterglow_cql::response::ErrorBody;
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::node::{House, Setup, furnished, one_text};

#[test]
fn the_second_read_is_a_hit_for_text_and_prepared_in_both_versions() {
    let house = House::new("ks.*=exclusive");
    let mut writer = house.node.client(Version::V4);
    writer.put("a", "1");
    let (reads, _) = house.reads(|| assert_eq!(writer.value("a").as_deref(), Some("1")));
    assert_eq!(reads, 1);
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        let prepared = client.prepare("SELECT v FROM ks.t WHERE k = ?");
        let hits = house.node.hits();
        let (reads, _) = house.reads(|| {
            assert_eq!(client.value("a").as_deref(), Some("1"));
            assert_eq!(one_text(client.execute(&prepared, &["a"])).as_deref(), Some("1"));
        });
        assert_eq!((reads, house.node.hits() - hits), (0, 2), "{version:?}");
    }
}

#[test]
fn a_hit_is_byte_for_byte_what_the_database_answers() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        client.run("INSERT INTO ks.wide (k, c, v) VALUES ('a', 7, 'x')");
        let texts = [
            "SELECT * FROM ks.wide WHERE k = 'a' AND c = 7",
            "SELECT v, c AS number FROM ks.wide WHERE c = 7 AND k = 'a'",
            "SELECT v FROM ks.wide WHERE k = 'a' AND c = 8",
        ];
        for text in texts {
            if text.contains(" AS ") {
                continue; // the fake knows no aliases
            }
            for skip_metadata in [false, true] {
                let params =
                    QueryParams { skip_metadata, ..QueryParams::new(Consistency::LocalQuorum) };
                let mut ask = |params| client.query_with(Flags::NONE, text, params, &[]).body;
                // ALL is never served from the cache.
                let database = ask(QueryParams { consistency: Consistency::All, ..params });
                let _fill = ask(params);
                let (reads, cached) = house.reads(|| ask(params));
                assert_eq!(
                    (reads, &cached),
                    (0, &database),
                    "{text}, {version:?}, skip: {skip_metadata}"
                );
            }
        }
    }
}

#[test]
fn a_cached_row_answers_each_level_that_it_was_read_for() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("a", "1");
    client.value("a");
    use Consistency::{All, EachQuorum, LocalOne, LocalSerial, One, Quorum, Serial, Two};
    for (level, cached) in [
        (One, true),
        (LocalOne, true),
        (Quorum, true), // one data centre
        (Two, false),   // of one replica: the database refuses it
        (All, false),
        (EachQuorum, false),
        (Serial, false),
        (LocalSerial, false),
    ] {
        let params = QueryParams::new(level);
        let ask = || {
            client
                .query_with(Flags::NONE, "SELECT v FROM ks.t WHERE k = 'a'", params, &[])
                .header
                .opcode
        };
        let (reads, opcode) = house.reads(ask);
        assert_eq!((reads, opcode), (u64::from(!cached), Opcode::Result), "{level:?}");
    }
}

#[test]
fn that_a_row_does_not_exist_is_cached_until_it_does() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let (reads, _) = house.reads(|| (0..5).for_each(|_| assert_eq!(client.value("none"), None)));
    assert_eq!(reads, 1);
    client.put("none", "some");
    assert_eq!(client.value("none").as_deref(), Some("some"));
}

#[test]
fn what_asks_for_more_than_a_cached_row_can_say_goes_to_the_database() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("a", "1");
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    let plain = QueryParams::new(Consistency::LocalQuorum);
    let mut ask = |flags, params, prefix: &[u8]| {
        let answer = client.query_with(flags, text, params, prefix);
        assert_eq!(answer.header.opcode, Opcode::Result);
    };
    ask(Flags::NONE, plain, &[]);
    let (reads, ()) = house.reads(|| ask(Flags::NONE, plain, &[]));
    assert_eq!(reads, 0);
    let payload = [0, 1, 0, 1, b'k', 0, 0, 0, 1, b'v'];
    let cases: [(&str, Flags, QueryParams<'_>, &[u8]); 6] = [
        ("page size", Flags::NONE, QueryParams { page_size: Some(1), ..plain }, &[]),
        ("tracing", Flags::TRACING, plain, &[]),
        ("payload", Flags::CUSTOM_PAYLOAD, plain, &payload),
        ("serial", Flags::NONE, QueryParams::new(Consistency::Serial), &[]),
        ("all", Flags::NONE, QueryParams::new(Consistency::All), &[]),
        ("now", Flags::NONE, QueryParams { now_in_seconds: Some(1), ..plain }, &[]),
    ];
    for (name, flags, params, prefix) in cases {
        assert_eq!(house.reads(|| ask(flags, params, prefix)).0, 1, "{name}");
    }
    for text in [
        "SELECT count(*) FROM ks.t WHERE k = 'a'",
        "SELECT v FROM ks.t",
        "SELECT writetime(v) FROM ks.t WHERE k = 'a'",
    ] {
        assert_eq!(house.reads(|| client.run(text)).0, 1, "{text}");
    }
}

/// The database is asked first whether the text is one at all.
#[test]
fn a_slip_of_the_pen_is_answered_with_its_trace_where_the_client_wants_one() {
    const TRACE: [u8; 16] = [9; 16];
    let (slip, why) = ("SELECTv FROM ks.t", "no viable alternative");
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let is_slip = ask.text.contains(slip);
        let mut error = Vec::new();
        ErrorBody::new(ErrorCode::Syntax, why).encode(&mut error);
        match ask.envelope.header.flags.contains(Flags::TRACING) {
            _ if !is_slip => {}
            true => ask.reply_traced(TRACE, Opcode::Error, &error),
            false => ask.reply(Opcode::Error, &error),
        }
        is_slip
    });
    let (database, directory) = (furnished(database.unwrap()), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut client = node.client(Version::V5);
    for (flags, is_traced) in [(Flags::NONE, false), (Flags::TRACING, true)] {
        let answer = client.query_with(flags, slip, QueryParams::new(Consistency::One), &[]);
        assert_eq!(answer.header.opcode, Opcode::Error);
        assert_eq!(answer.header.flags.contains(Flags::TRACING), is_traced);
        assert_eq!(answer.body.starts_with(&TRACE), is_traced);
        assert!(answer.body.ends_with(why.as_bytes()));
    }
}

#[test]
fn a_table_that_is_switched_off_is_never_cached() {
    let house = House::new("ks.t=off");
    let mut client = house.node.client(Version::V4);
    let (reads, _) = house.reads(|| (0..3).for_each(|_| drop(client.value("a"))));
    assert_eq!(reads, 3);
}

#[test]
fn a_row_too_large_to_keep_is_read_whole_once_and_then_only_as_asked() {
    for policy in ["ks.*=exclusive", "ks.*=max-staleness=1h"] {
        // On a slow machine so much takes longer than a fill may.
        let house = House::with(policy, |setup| setup.times.fill = Duration::from_secs(120));
        let mut client = house.node.client(Version::V5);
        let insert = client.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)");
        let fills = || house.node.count(&["afterglow_fills_total"]);
        let passed = || house.node.count(&["afterglow_misses_total", "too_large"]);
        // A value of that length is more than the format of the cache can hold.
        client.execute(&insert, &["a", &"x".repeat(17 << 20)]);
        let (fills_before, read) = (fills(), "SELECT k FROM ks.t WHERE k = 'a'");
        let (reads, ()) = house.reads(|| {
            (0..5).for_each(|_| assert_eq!(one_text(client.run(read)).as_deref(), Some("a")))
        });
        assert_eq!((fills() - fills_before, passed(), reads), (1, 4, 5), "{policy}");
        assert_eq!(house.node.count(&["afterglow_fills_total", "too_large"]), 1, "{policy}");
        // Small again: cached again.
        client.put("a", "1");
        assert_eq!(client.value("a").as_deref(), Some("1"));
        let (reads, value) = house.reads(|| client.value("a"));
        assert_eq!((reads, value.as_deref()), (0, Some("1")), "{policy}");
        assert_eq!((fills() - fills_before, passed()), (2, 4), "{policy}");
    }
}

#[test]
fn an_answer_that_one_column_makes_too_long_is_the_databases() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let value = "x".repeat(1024);
    client.put("a", &value);
    client.put("b", &value);
    client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', 7, '{value}')"));
    let froms = ["t WHERE k = 'a'", "t WHERE k IN ('a', 'b')", "wide WHERE k = 'a'"];
    let passed = || house.node.count(&["afterglow_passes_total", "too_long"]);
    for (at, from) in froms.into_iter().enumerate() {
        let mut ask = |count: usize| {
            let text = format!("SELECT {} FROM ks.{from}", vec!["v"; count].join(","));
            let (reads, rows) = house.reads(|| client.run(&text));
            assert!(rows.iter().all(|row| row.len() == count), "{from}");
            reads
        };
        // The first of them fills what the others look at.
        let _fill = ask(10);
        assert_eq!(ask(10), 0, "{from}");
        assert_eq!(ask(33_000), 1, "{from}");
        assert_eq!(passed(), at as u64 + 1, "{from}");
    }
}

#[test]
fn the_hottest_table_and_row_are_named_as_people_write_them() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("red", "1");
    for _ in 0..2000 {
        client.value("red");
    }
    let hot = house.node.hot_keys(true);
    assert_eq!(hot.tables[0].name.as_deref(), Some("ks.t"));
    assert_eq!(hot.keys[0].name.as_deref(), Some("ks.t 'red'"));
    assert_eq!(hot.keys[0].part, 1.0);
    let hidden = house.node.hot_keys(false);
    assert_eq!(hidden.tables[0].name.as_deref(), Some("ks.t"));
    assert_eq!(hidden.keys[0].name, None);
}
