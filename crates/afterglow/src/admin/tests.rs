//! The pages as a plain HTTP client sees them.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::*;
use crate::metrics::{MissReason, Path, Tier};

/// Runs the pages on a port of the system's choice while `client` asks for them.
fn with_server(shown: Shown, client: impl FnOnce(SocketAddr)) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stop = async {
            let _ = stopped.await;
        };
        runtime.block_on(serve(listener, shown, stop)).unwrap();
    });
    client(address);
    stop.send(()).unwrap();
    server.join().unwrap();
}

/// Status line, head and body of one request.
fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_string())
}

fn shown() -> Shown {
    Shown { metrics: Arc::new(Metrics::default()), health: Arc::new(Health::default()) }
}

#[test]
fn counters_of_all_reactors_are_summed_and_every_sample_is_announced() {
    let shown = shown();
    let (one, other) = (shown.metrics.door("cql"), shown.metrics.door("cql"));
    one.hits.inc(Tier::Flash);
    other.hits.inc(Tier::Flash);
    other.misses.inc(MissReason::Absent);
    one.latency.of(Path::Flash).record(std::time::Duration::from_micros(200));
    with_server(shown, |address| {
        let (status, head, body) = get(address, "/metrics");
        assert_eq!(status, 200);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        for line in [
            "afterglow_hits_total{door=\"cql\",tier=\"flash\"} 2",
            "afterglow_hits_total{door=\"cql\",tier=\"dram\"} 0",
            "afterglow_misses_total{door=\"cql\",reason=\"absent\"} 1",
            "afterglow_request_duration_seconds_bucket{door=\"cql\",path=\"flash\",le=\"0.000192\"} 0",
            "afterglow_request_duration_seconds_bucket{door=\"cql\",path=\"flash\",le=\"0.000224\"} 1",
            "afterglow_request_duration_seconds_count{door=\"cql\",path=\"flash\"} 1",
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
            assert!(lines.next().unwrap().starts_with(&format!("# TYPE {family} ")), "{family} has no type");
            assert!(seen.insert(family), "{family} comes twice");
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap();
        let member =
            ["", "_bucket", "_sum", "_count"].iter().any(|suffix| name == format!("{family}{suffix}"));
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
    assert!(message.contains("Another process listens there") && message.contains("--admin"), "{message}");
}
