//! Large pages beside small answers: what is asked meanwhile does not wait for the whole page.

use afterglow_cql::frame::{Envelope, Version};
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::node::{Node, Setup, database, direct, wait_until};
use crate::pipelined::Pipelined;
use crate::valve::Valve;

const ROWS: usize = 10;
const ROW: usize = 1 << 20;
const PAGE: &str = "SELECT v FROM ks.big";
const SMALL: &str = "SELECT v FROM ks.t WHERE k = 'a'";

/// One reactor, which does everything, before a database behind a valve.
struct Paged {
    node: Node,
    valve: Valve,
    _database: FakeBackend,
    _directory: TempDir,
}

impl Paged {
    fn new() -> Self {
        let (database, directory) = (database(), TempDir::new().unwrap());
        direct(&database, "CREATE TABLE ks.big (k text PRIMARY KEY, v text)");
        let value = "x".repeat(ROW);
        for row in 0..ROWS {
            direct(&database, &format!("INSERT INTO ks.big (k, v) VALUES ('{row}', '{value}')"));
        }
        let valve = Valve::before(database.address());
        let mut setup = Setup::new(directory.path(), &database, "ks.*=max-staleness=1h");
        (setup.database, setup.reactors) = (valve.address, 1);
        let node = setup.start();
        let mut client = node.client(Version::V4);
        client.put("a", "small");
        wait_until("the row is cached", || {
            let before = node.hits();
            client.value("a").as_deref() == Some("small") && node.hits() > before
        });
        Self { node, valve, _database: database, _directory: directory }
    }

    /// Hits of another client.
    fn others_are_served(&self) {
        let mut other = self.node.client(Version::V5);
        let before = self.node.hits();
        for _ in 0..100 {
            assert_eq!(other.value("a").as_deref(), Some("small"));
        }
        assert_eq!(self.node.hits() - before, 100);
    }
}

fn is_whole(page: &Envelope) -> bool {
    page.body.len() > ROWS * ROW
}

#[test]
fn small_answers_overtake_a_page_that_the_database_still_sends() {
    let paged = Paged::new();
    let mut client = Pipelined::open(paged.node.address);
    paged.valve.close_after(ROWS * ROW / 2);
    client.ask(1, PAGE);
    paged.valve.wait_for_held();
    // The answers to what came later leave first, each of them.
    client.ask_all(2..102, SMALL);
    for stream in 2..102 {
        let answer = client.receive();
        assert_eq!(answer.header.stream, stream);
        assert!(!is_whole(&answer));
    }
    paged.others_are_served();
    paged.valve.open();
    let page = client.receive();
    assert!(page.header.stream == 1 && is_whole(&page));
}

#[test]
fn a_page_that_its_client_does_not_take_keeps_no_other_waiting() {
    let paged = Paged::new();
    let mut idle = Pipelined::open(paged.node.address);
    idle.ask(1, PAGE);
    // Sockets hold some of it.
    wait_until("the page waits for its client", || {
        paged.node.count(&["afterglow_client_held_bytes"]) > (ROWS * ROW / 4) as u64
    });
    paged.others_are_served();
    let held = paged.node.count(&["afterglow_client_held_bytes"]);
    assert!(held > 0, "it still waits");
    let page = idle.receive();
    assert!(page.header.stream == 1 && is_whole(&page));
}
