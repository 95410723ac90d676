//! Frames as a terminal would show them.

use super::super::units::bytes;
use super::view::Look;
use super::*;
use crate::admin::overview::{CacheFigures, DramFigures, FlashFigures, Overview};
use crate::admin::segments::SegmentMap;
use crate::hotkeys::report::{HotEntry, HotFrontEnd, HotKeys};
use crate::metrics::figures::{
    ByWord, DatabaseFigures, FrontEndFigures, LatencyFigures, LeaseFigures,
};
use crate::metrics::{RingFigures, RingMemberFigures};

fn by(words: &[(&str, u64)]) -> ByWord {
    words.iter().map(|(word, n)| ((*word).to_owned(), *n)).collect()
}

/// A server `seconds` after its start, with `times` as much done as after its first second.
fn look(seconds: f64, times: u64) -> Look {
    let latency = LatencyFigures {
        count: 100 * times,
        sum_seconds: 0.001,
        buckets: vec![(Some(20), 98 * times), (Some(640), 2 * times)],
    };
    let front_end = FrontEndFigures {
        name: "memcache".into(),
        requests: by(&[("get", 100 * times), ("store", 20 * times)]),
        hits: by(&[("dram", 60 * times), ("buffer", 5 * times), ("flash", 15 * times)]),
        misses: by(&[("absent", 20 * times), ("expired", 0)]),
        connections_open: 3,
        latency: [("dram".to_owned(), latency)].into(),
        ..FrontEndFigures::default()
    };
    let cache = CacheFigures {
        dram: DramFigures { used_bytes: 16 << 20, capacity_bytes: 32 << 20, ..Default::default() },
        flash: FlashFigures {
            segments: 10,
            segments_free: 4,
            segment_bytes: 1 << 20,
            ..Default::default()
        },
        written_bytes: by(&[("record", 1100 * times), ("reinserted", 100 * times)]),
        flash_dropped: by(&[("reclaimed", 7 * times)]),
        ..CacheFigures::default()
    };
    let overview = Overview {
        version: "1.2.3".into(),
        started: 1000.0,
        now: 1000.0 + seconds,
        readiness: "ready".into(),
        front_ends: vec![front_end],
        cache: Some(cache),
        ..Overview::default()
    };
    Look { overview, ..Look::default() }
}

fn shown(screen: &Screen) -> String {
    plain(screen).unwrap()
}

fn assert_line(text: &str, parts: &[&str]) {
    let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line has {parts:?}:\n{text}");
}

#[test]
fn the_overview_shows_what_happened_between_two_answers() {
    let mut screen = Screen::new("10.0.0.5:9180", View::Overview);
    screen.take(look(10.0, 1));
    screen.take(look(12.0, 3));
    let text = shown(&screen);
    assert_line(&text, &["afterglow 10.0.0.5:9180  ready  1.2.3  up 0:00:12"]);
    assert_line(&text, &["hit ratio", "80.0 %"]);
    assert_line(&text, &["from DRAM", "65.0 %"]);
    assert_line(&text, &["requests", "120/s"]);
    assert_line(&text, &["read p50, p99, p99.9", "20.0 us, 640 us, 640 us"]);
    assert_line(&text, &["write amplification", "1.10"]);
    assert_line(&text, &["memcache get", "300", "100/s"]);
    assert_line(&text, &["DRAM", "16.0 MiB of 32.0 MiB, 50.0 %"]);
    assert_line(&text, &["flash", &bytes(6.0 * 1048576.0), "60.0 %"]);
    assert!(!text.contains("lease"), "there is no database");
}

#[test]
fn a_restart_is_no_negative_rate_and_an_absence_is_told() {
    let mut screen = Screen::new("x:1", View::Overview);
    screen.take(look(10.0, 50));
    let mut again = look(1.0, 1);
    again.overview.started = 2000.0;
    again.overview.now = 2002.0;
    screen.take(again);
    assert_line(&shown(&screen), &["requests", "60.0/s"]);
    screen.lose("no answer from x:1: Connection refused".into());
    let text = shown(&screen);
    assert_line(&text, &["away", "up 0:00:02"]);
    assert_line(&text, &["away for 0 s: no answer from x:1: Connection refused"]);
    screen.take(look(1.0, 1));
    assert!(!shown(&screen).contains("away"));
}

#[test]
fn a_database_and_its_lease_are_shown_where_there_is_one() {
    let mut screen = Screen::new("x:1", View::Overview);
    let mut seen = look(1.0, 1);
    seen.overview.database =
        Some(DatabaseFigures { connections_ready: 2, ..DatabaseFigures::default() });
    seen.overview.lease =
        Some(LeaseFigures { state: "held_by_other".into(), ..LeaseFigures::default() });
    let member = |id: &str, shards, linked| RingMemberFigures {
        id: id.into(),
        shards,
        linked,
        ..RingMemberFigures::default()
    };
    seen.overview.front_ends[0].hits.insert("ring".into(), 100);
    seen.overview.ring = Some(RingFigures {
        me: "a".into(),
        lease_seconds: 4.25,
        shards: 4096,
        unowned: 96,
        members: vec![member("a", 3000, None), member("b", 1000, Some(false))],
        ..RingFigures::default()
    });
    screen.take(seen);
    assert_line(&shown(&screen), &["lease", "held by other"]);
    assert_line(&shown(&screen), &["connections", "2 ready"]);
    assert_line(&shown(&screen), &["hit ratio", "90.0 %"]);
    assert_line(&shown(&screen), &["from the ring", "50.0 %"]);
    assert_line(&shown(&screen), &["members", "2, no link to 1"]);
    assert_line(&shown(&screen), &["shards", "3000 of 4096 here, 96 nobody's"]);
    assert_line(&shown(&screen), &["may serve for", "4.2 s"]);
    let mut seen = look(2.0, 1);
    seen.overview.ring = Some(RingFigures { left: true, ..RingFigures::default() });
    screen.take(seen);
    assert_line(&shown(&screen), &["left", "restart it to have it join again"]);
}

#[test]
fn each_view_shows_its_part() {
    let mut screen = Screen::new("x:1", View::Latency);
    let mut seen = look(1.0, 1);
    seen.segments = Some(SegmentMap {
        segment_bytes: 1 << 20,
        words: ["free", "open", "sealing", "sealed", "reclaiming", "retired"]
            .map(str::to_owned)
            .to_vec(),
        states: "0313".into(),
        live_percent: vec![0, 100, 50, 34],
        ..SegmentMap::default()
    });
    let entry = |name: Option<&str>| HotEntry {
        name: name.map(str::to_owned),
        part: 0.5,
        ..HotEntry::default()
    };
    seen.hot_keys = Some(HotKeys {
        front_ends: vec![HotFrontEnd {
            name: "cql".into(),
            keys: vec![entry(None)],
            tables: vec![entry(Some("shop.items"))],
            ..HotFrontEnd::default()
        }],
        ..HotKeys::default()
    });
    screen.take(seen);
    assert_line(&shown(&screen), &["memcache dram", "100/s", "20.0 us", "640 us"]);
    screen.view = screen.view.next();
    assert_line(&shown(&screen), &["absent", "20", "20.0/s"]);
    assert_line(&shown(&screen), &["reclaimed", "7"]);
    assert!(!shown(&screen).contains("expired"), "what never happened");
    screen.view = View::at('4').unwrap();
    assert_line(&shown(&screen), &[".9o3"]);
    assert_line(&shown(&screen), &["0-9", "sealed", "2", "2.00 MiB"]);
    screen.view = View::of("hotkeys").unwrap();
    assert_line(&shown(&screen), &["50.0 %", "shop.items"]);
    assert_line(&shown(&screen), &["50.0 %", "(hidden)"]);
    assert_line(&shown(&screen), &["--show-keys"]);
    assert_eq!(screen.view.next(), View::Overview);
    assert_eq!((View::at('0'), View::at('6'), View::at('x')), (None, None, None));
}

#[test]
fn a_long_view_is_scrolled_to_its_end_and_no_further() {
    let mut screen = Screen::new("x:1", View::HotKeys);
    let mut seen = look(1.0, 1);
    let entries = |what| {
        let entry = |n| HotEntry { name: Some(format!("{what}-{n}")), ..HotEntry::default() };
        (0..10).map(entry).collect::<Vec<_>>()
    };
    let front_end = |name: &str| HotFrontEnd {
        name: name.into(),
        keys: entries(format!("{name}-key")),
        prefixes: entries(format!("{name}-prefix")),
        ..HotFrontEnd::default()
    };
    let front_ends = vec![front_end("memcache"), front_end("cql")];
    seen.hot_keys = Some(HotKeys { keys_shown: true, front_ends, ..HotKeys::default() });
    screen.take(seen);
    assert_line(&shown(&screen), &["memcache-prefix-0"]);
    assert_line(&shown(&screen), &["Up, Down scroll"]);
    assert!(!shown(&screen).contains("cql-key-9"), "it is below the edge");
    press(KeyCode::Down, &mut screen);
    assert!(!shown(&screen).contains("memcache: about"), "the first line has gone");
    press(KeyCode::End, &mut screen);
    assert_line(&shown(&screen), &["cql-key-9"]);
    assert_line(&shown(&screen), &["memcache-key-0"]);
    press(KeyCode::Char('1'), &mut screen);
    press(KeyCode::Char('5'), &mut screen);
    assert_line(&shown(&screen), &["memcache: about"]);
}

#[test]
fn a_long_name_is_shown_whole_however_wide_its_characters() {
    let mut screen = Screen::new("x:1", View::HotKeys);
    let mut seen = look(1.0, 1);
    let name = "\u{8336}".repeat(120);
    let keys = vec![HotEntry { name: Some(name), ..HotEntry::default() }];
    let front_ends = vec![HotFrontEnd { name: "cql".into(), keys, ..HotFrontEnd::default() }];
    seen.hot_keys = Some(HotKeys { keys_shown: true, front_ends, ..HotKeys::default() });
    screen.take(seen);
    assert_eq!(shown(&screen).matches('\u{8336}').count(), 120);
}
