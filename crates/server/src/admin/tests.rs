//! The pages as a plain HTTP client sees them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use super::overview::Overview;
use super::*;
use crate::metrics::{Metrics, MissReason, Path, Tier};

/// Later than any test ends.
const FAR: Duration = Duration::from_secs(3600);

/// Runs the pages on a port of the system's choice while `client` asks for them.
fn with_server(shown: Shown, client: impl FnOnce(SocketAddr)) {
    with_limits(LIMITS, shown, client);
}

fn with_limits(limits: Limits, shown: Shown, client: impl FnOnce(SocketAddr)) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stop = async {
            let _ = stopped.await;
        };
        runtime.block_on(serve_within(limits, listener, shown, stop)).unwrap();
    });
    client(address);
    stop.send(()).unwrap();
    server.join().unwrap();
}

/// Status line, head and body of one request.
fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    ask(address, "GET", path, "x")
}

/// The same with another method and under that name.
fn ask(address: SocketAddr, method: &str, path: &str, host: &str) -> (u16, String, String) {
    send(address, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n"))
}

/// The same with this head, to which only its end is added.
fn send(address: SocketAddr, head: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_string())
}

fn shown() -> Shown {
    Shown {
        metrics: Arc::new(Metrics::default()),
        health: Arc::new(Health::default()),
        cache: Arc::default(),
        hosts: Hosts::new("127.0.0.1:0".parse().ok(), vec!["known.example".parse().unwrap()]),
        keys_shown: false,
    }
}

#[test]
fn whoever_stands_still_is_in_nobodys_way_for_long() {
    let limits = Limits { connections: 2, timeout: Duration::from_millis(500), grace: FAR };
    with_limits(limits, shown(), |address| {
        let mut silent = TcpStream::connect(address).unwrap();
        let mut halfway = TcpStream::connect(address).unwrap();
        write!(halfway, "GET /healthz HTTP/1.1\r\nHost: ").unwrap();
        assert_eq!(get(address, "/healthz").0, 200, "once there is a place");
        let mut rest = Vec::new();
        for waits in [&mut silent, &mut halfway] {
            // Closed, however the system tells it.
            let _ = waits.read_to_end(&mut rest);
        }
    });
}

#[test]
fn a_client_beyond_the_bound_waits_for_a_place() {
    with_limits(Limits { connections: 1, timeout: FAR, grace: FAR }, shown(), |address| {
        let mut first = TcpStream::connect(address).unwrap();
        write!(first, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(first.read(&mut [0; 1024]).unwrap() > 0);
        let mut second = TcpStream::connect(address).unwrap();
        write!(second, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        // The server looks at both in one thread: it would have come to the second before it
        // answers this.
        write!(first, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(first.read(&mut [0; 1024]).unwrap() > 0);
        second.set_nonblocking(true).unwrap();
        let early = second.read(&mut [0; 1024]);
        assert_eq!(early.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        second.set_nonblocking(false).unwrap();
        drop(first);
        let mut answer = String::new();
        second.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn where_all_places_are_taken_the_idlest_gives_way() {
    let limits = Limits { connections: 3, timeout: FAR, grace: Duration::from_millis(100) };
    with_limits(limits, shown(), |address| {
        let mut half_open: Vec<_> = (0..12)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                write!(stream, "GET /healthz HTTP/1.1\r\nHost: ").unwrap();
                stream
            })
            .collect();
        assert_eq!(get(address, "/healthz").0, 200);
        // All but the last two have given way, each after a tenth of a second.
        for stream in &mut half_open[..10] {
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let last = half_open.last_mut().unwrap();
        write!(last, "x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "the newest has kept its place: {answer}");
    });
}

#[test]
fn counters_of_all_reactors_are_summed_and_every_sample_is_announced() {
    let shown = shown();
    let (one, other) = (shown.metrics.front_end("cql"), shown.metrics.front_end("cql"));
    one.hits.inc(Tier::Flash);
    other.hits.inc(Tier::Flash);
    other.misses.inc(MissReason::Absent);
    one.latency.of(Path::Flash).record(std::time::Duration::from_micros(200));
    with_server(shown, |address| {
        let (status, head, body) = get(address, "/metrics");
        assert_eq!(status, 200);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        for line in [
            "afterglow_hits_total{frontend=\"cql\",tier=\"flash\"} 2",
            "afterglow_hits_total{frontend=\"cql\",tier=\"dram\"} 0",
            "afterglow_misses_total{frontend=\"cql\",reason=\"absent\"} 1",
            "afterglow_request_duration_seconds_bucket{frontend=\"cql\",path=\"flash\",le=\"0.000128\"} 0",
            "afterglow_request_duration_seconds_bucket{frontend=\"cql\",path=\"flash\",le=\"0.000256\"} 1",
            "afterglow_request_duration_seconds_count{frontend=\"cql\",path=\"flash\"} 1",
        ] {
            assert!(body.lines().any(|l| l == line), "{line} is missing in\n{body}");
        }
        assert_well_formed(&body);
    });
}

/// Each family has HELP and TYPE once, before its samples, and all of it is in one block.
fn assert_well_formed(text: &str) {
    let mut seen = std::collections::HashSet::new();
    let mut family = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
            assert!(help.len() > family.len() + 1, "{family} says nothing of itself");
            assert!(
                lines.next().unwrap().starts_with(&format!("# TYPE {family} ")),
                "{family} has no type"
            );
            assert!(seen.insert(family), "{family} comes twice");
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap();
        let member = ["", "_bucket", "_sum", "_count"]
            .iter()
            .any(|suffix| name == format!("{family}{suffix}"));
        assert!(member, "{line} stands under {family}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn health_and_readiness_are_told_apart() {
    let shown = shown();
    let (health, backend) = (shown.health.clone(), shown.metrics.backend());
    with_server(shown, |address| {
        assert_eq!(get(address, "/healthz").0, 200);
        assert_eq!(get(address, "/readyz").0, 503);
        health.set(Stage::Serving);
        backend.ready.inc();
        assert_eq!(get(address, "/readyz").0, 200);
        backend.ready.dec();
        let (status, _, body) = get(address, "/readyz");
        assert!(status == 200 && body.contains("only hits"), "{body}");
        assert_eq!(get(address, "/nonsense").0, 404);
    });
}

#[test]
fn a_taken_port_is_said_with_the_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let message = bind(taken.local_addr().unwrap()).unwrap_err().to_string();
    assert!(
        message.contains("Another process listens there") && message.contains("--admin"),
        "{message}"
    );
}

#[test]
fn the_dashboard_is_given_out_under_known_names_only_and_metrics_under_all() {
    with_server(shown(), |address| {
        let port = address.port();
        for path in ["/", "/dashboard/app.js", "/api/v1/overview", "/api/v1/segments"] {
            for host in [&format!("localhost:{port}"), "127.0.0.1", "[::1]:80", "known.example:81"]
            {
                let (status, head, _) = ask(address, "GET", path, host);
                assert_eq!(status, 200, "{path} of {host}");
                assert!(head.contains("content-security-policy: default-src 'none'; "), "{head}");
                assert!(head.contains("cache-control: no-store"), "{head}");
            }
            for host in ["evil.example", "evil.example:9180", "10.0.0.5", ""] {
                let (status, _, body) = ask(address, "GET", path, host);
                assert_eq!(status, 403, "{path} of {host}: {body}");
            }
        }
        let (_, _, body) = ask(address, "GET", "/", "cache-7.example");
        assert!(body.contains("--admin-host cache-7.example"), "{body}");
        for path in ["/metrics", "/healthz"] {
            assert_eq!(ask(address, "GET", path, "any.example").0, 200, "{path}");
        }
    });
}

#[test]
fn a_request_is_refused_if_anything_in_it_names_another_host() {
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n", "a".repeat(20_000));
    with_server(shown(), |address| {
        for (head, status) in [
            ("GET / HTTP/1.1\r\nHost: localhost\r\n", 200),
            ("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n", 200),
            ("GET / HTTP/1.0\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 403),
            ("GET http://localhost/ HTTP/1.1\r\nHost: evil.example\r\n", 403),
            ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: evil.example@localhost\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: evil\r\nX-Forwarded-Host: localhost\r\n", 403),
            (&*long, 403),
        ] {
            let (seen, _, body) = send(address, head);
            assert_eq!(seen, status, "{head}: {body}");
            assert!(status == 200 || body.len() < 600, "{}", body.len());
        }
    });
}

#[test]
fn nothing_is_taken_but_get_and_head() {
    with_server(shown(), |address| {
        for path in ["/", "/metrics", "/healthz", "/api/v1/overview", "/api/v1/segments"] {
            for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
                let (status, head, _) = ask(address, method, path, "localhost");
                assert!(
                    status == 405 && head.contains("allow: get,head"),
                    "{method} {path}: {head}"
                );
            }
            let (status, _, body) = ask(address, "HEAD", path, "localhost");
            assert_eq!((status, &*body), (200, ""), "HEAD {path}");
        }
    });
}

#[test]
fn the_overview_says_what_was_counted_and_what_is_not_there() {
    let shown = shown();
    let shard = shown.metrics.front_end("memcache");
    shard.hits.inc(Tier::Dram);
    shown.health.set_independent();
    shown.health.set(Stage::Serving);
    with_server(shown, |address| {
        let (_, head, body) = ask(address, "GET", "/api/v1/overview", "localhost");
        assert!(head.contains("content-type: application/json"), "{head}");
        let seen: Overview = serde_json::from_str(&body).unwrap();
        assert_eq!((&*seen.readiness, &*seen.readiness_reason), ("ready", ""));
        assert_eq!(seen.front_ends.len(), 1);
        assert_eq!(seen.front_ends[0].hits["dram"], 1);
        assert!(seen.started > 1e9 && seen.now >= seen.started);
        assert!(seen.cache.is_none() && seen.database.is_none() && seen.lease.is_none());
    });
}
