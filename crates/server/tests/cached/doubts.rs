//! Many clients write and read while the database takes some writes in doubt, which are sent again.
//! Whatever comes between the attempts, TRUNCATE too: no read is older than what was acknowledged
//! or read before it began, and what was removed does not come back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams};
use afterglow_loadgen::rng::Rng;
use afterglow_testkit::fake_backend::Faults;

use crate::node::{Client, House, micros, one_text};

const ROUNDS: usize = 16;
const KEYS: usize = 4;
const STEPS: usize = 12;

/// What is known of one row. Each write has a time of its own, and its value tells it.
#[derive(Default)]
struct Register {
    /// The last write that a client was told of, by an acknowledgement or a read.
    known: AtomicI64,
    /// The last delete that was begun.
    deleted: AtomicI64,
    /// Held while it is written, where deletes are forgotten.
    turn: Mutex<()>,
}

struct Doubts {
    keys: Vec<(String, Register)>,
    clock: AtomicI64,
    /// The table forgets deletes at once. So no write may come late, unless Afterglow sends it.
    forgets: bool,
}

impl Doubts {
    fn write(&self, client: &mut Client, rng: &mut Rng) {
        let (key, register) = &self.keys[rng.below(KEYS as u64) as usize];
        let _turn = self.forgets.then(|| register.turn.lock().unwrap());
        let time = self.clock.fetch_add(1, Ordering::SeqCst);
        let text = match rng.below(8) {
            0 => {
                register.deleted.fetch_max(time, Ordering::SeqCst);
                format!("DELETE FROM ks.t WHERE k = '{key}'")
            }
            1 => {
                register.deleted.fetch_max(time, Ordering::SeqCst);
                format!("UPDATE ks.t SET v = null WHERE k = '{key}'")
            }
            2 => format!(
                "BEGIN BATCH DELETE FROM ks.t USING TIMESTAMP {} WHERE k = '{key}'; \
                 INSERT INTO ks.t (k, v) VALUES ('{key}', '{time}'); APPLY BATCH",
                time - 1
            ),
            3 | 4 => format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{time}')"),
            _ => format!("UPDATE ks.t SET v = '{time}' WHERE k = '{key}'"),
        };
        let params =
            QueryParams { timestamp: Some(time), ..QueryParams::new(Consistency::LocalQuorum) };
        let answer = client.query_with(Flags::NONE, &text, params, &[]);
        if answer.header.opcode == Opcode::Result {
            register.known.fetch_max(time, Ordering::SeqCst);
        }
    }

    fn read(&self, client: &mut Client, rng: &mut Rng) {
        let (key, register) = &self.keys[rng.below(KEYS as u64) as usize];
        let known = register.known.load(Ordering::SeqCst);
        let found = client.try_run(&format!("SELECT v FROM ks.t WHERE k = '{key}'"));
        // Connections to the database are lost now and then.
        let Ok(found) = found else { return };
        match one_text(found).map(|time| time.parse::<i64>().unwrap()) {
            Some(time) => {
                assert!(time >= known, "{key} is {time}, after {known} was known");
                register.known.fetch_max(time, Ordering::SeqCst);
            }
            None => {
                let deleted = register.deleted.load(Ordering::SeqCst);
                assert!(deleted >= known, "{key} is not there, after {known} was known");
            }
        }
    }

    /// What each row is, through the cache and past it.
    fn compare(&self, house: &House, client: &mut Client, removed: bool) {
        for (key, register) in &self.keys {
            let text = format!("SELECT v FROM ks.t WHERE k = '{key}'");
            let known = register.known.load(Ordering::SeqCst);
            for _ in 0..3 {
                let through = client.value(key);
                let past = one_text(house.past().query(&text, Consistency::One).unwrap());
                if removed {
                    assert_eq!((through, past), (None, None), "{key} is back");
                    continue;
                }
                // A write in doubt may have come in between, which is later than what was known.
                let time =
                    |value: &Option<String>| value.as_ref().map(|v| v.parse::<i64>().unwrap());
                let (through, past) = (time(&through), time(&past));
                assert!(through == past || past.is_none_or(|past| past > known), "{key}");
            }
        }
    }
}

#[test]
fn whatever_comes_between_the_attempts_no_read_is_stale_and_nothing_removed_comes_back() {
    let house = House::new("ks.*=exclusive");
    let mut clients: Vec<Client> =
        Version::ALL.iter().map(|version| house.node.client(*version)).collect();
    let clock = AtomicI64::new(micros(1));
    let mut doubts = Doubts { keys: Vec::new(), clock, forgets: false };
    for round in 0..ROUNDS {
        let mut rng = Rng::new(round as u64);
        // Of their own: a lost connection keeps a row out of the cache for a minute.
        let key = |at| (format!("{round}-{at}"), Register::default());
        doubts.keys = (0..KEYS).map(key).collect();
        doubts.forgets = round % 4 == 1;
        let option = match (doubts.forgets, round % 8) {
            (true, 1) => "gc_grace_seconds = 0",
            (true, _) => "tombstone_gc = {'mode': 'immediate'}",
            (false, 2) => "gc_grace_seconds = 864000",
            (false, _) => "tombstone_gc = {'mode': 'timeout'}",
        };
        clients[0].run(&format!("ALTER TABLE ks.t WITH {option}"));
        let faults = Faults {
            write_timeouts: 0.3,
            drops: if round % 4 == 3 { 0.01 } else { 0.0 },
            delay: Duration::from_millis(1),
            seed: round as u64,
            ..Faults::default()
        };
        house.database.set_faults(faults);
        thread::scope(|scope| {
            for (number, client) in clients.iter_mut().enumerate() {
                let (doubts, mut rng) = (&doubts, Rng::new((round * 10 + number) as u64));
                scope.spawn(move || {
                    for _ in 0..STEPS {
                        doubts.write(client, &mut rng);
                        doubts.read(client, &mut rng);
                        doubts.read(client, &mut rng);
                    }
                });
            }
        });
        // Attempts take their time, so that some are under way when the table is emptied.
        let delay = Duration::from_millis(40);
        house.database.set_faults(Faults { delay, write_timeouts: 0.3, ..Faults::default() });
        let removed = round % 2 == 0;
        let client = &mut clients[rng.below(3) as usize];
        if removed {
            thread::sleep(Duration::from_millis(60 + 10 * rng.below(12)));
            client.run("TRUNCATE ks.t");
        }
        house.database.set_faults(Faults::default());
        doubts.compare(&house, client, removed);
    }
    let count = |name: &str| house.node.count(&[name]);
    let settled = count("afterglow_settled_writes_total");
    let ended = count("afterglow_unsettled_writes_total");
    // Few are ended by a TRUNCATE: it waits for attempts under way, and those settle their writes.
    assert!(settled > 10 && ended > 1, "{settled} settled, {ended} not: little was shown");
}
