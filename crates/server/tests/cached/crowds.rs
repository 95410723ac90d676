//! Many readers of one row that is not cached.

use std::time::Duration;

use afterglow_cql::frame::Opcode;
use afterglow_testkit::fake_backend::{FakeBackend, Faults};
use tempfile::TempDir;

use crate::node::{Setup, direct, furnished};
use crate::pipelined::Pipelined;

const READERS: usize = 10;
/// Requests that each has under way at once.
const EACH: i16 = 1000;

#[test]
fn ten_thousand_readers_of_a_cold_row_make_one_read_of_the_database() {
    let faults = Faults { delay: Duration::from_millis(50), ..Faults::default() };
    let database = furnished(FakeBackend::start("127.0.0.1:0".parse().unwrap(), faults).unwrap());
    direct(&database, "INSERT INTO ks.t (k, v) VALUES ('a', 'the value')");
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut crowds: Vec<_> = (0..READERS).map(|_| Pipelined::open(node.address)).collect();
    let before = database.reads();
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    crowds.iter_mut().for_each(|crowd| crowd.ask_all(0..EACH, text));
    for crowd in &mut crowds {
        let mut answered = vec![0; EACH as usize];
        for _ in 0..EACH {
            let answer = crowd.receive();
            assert_eq!(answer.header.opcode, Opcode::Result);
            assert!(answer.body.ends_with(b"the value"));
            answered[answer.header.stream as usize] += 1;
        }
        assert!(answered.iter().all(|&times| times == 1), "each request has one answer");
    }
    assert_eq!(database.reads() - before, 1);
    // Each read is one hit or one miss: that is what a hit ratio is made of.
    let all = READERS as u64 * EACH as u64;
    assert_eq!(node.hits() + node.count(&["afterglow_misses_total"]), all);
    let of_table = node.count(&["afterglow_table_misses_total", "table=\"t\""]);
    assert_eq!(node.hits() + of_table, all);
}
