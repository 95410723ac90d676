//! Counters that never rest, over the memcached front end, beside objects that are set once (G3,
//! G1).
//!
//! Some keys are incremented all the time, so that there is always something younger than what
//! waits to be copied to flash. Many others are set once and left alone. Those older than the
//! [window](super::warmth::WINDOW) must be there after `kill -9`, however busy the counters were:
//! what is lost of them is counted. The counters are judged too: an answer below what was
//! acknowledged before is stale. A counter may be forgotten; it then goes on above every value that
//! it may have had.

use std::{
    collections::HashSet,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How many counters there are: several in every shard.
pub(super) const COUNTERS: usize = 256;
/// Pause between two increments of each.
const PAUSE: Duration = Duration::from_millis(20);
/// Objects that are set once in a life.
const OBJECTS: usize = 2_000;
/// Bytes of each, about.
const SIZE: usize = 200;
/// Requests sent together.
const BATCH: usize = 100;
/// Pause of a client whose server is away.
const AWAY: Duration = Duration::from_millis(10);
/// An answer that takes longer will not come.
const LIMIT: Duration = Duration::from_secs(10);
/// How often what is missing is asked for again: a miss may be of a moment.
const TRIES: usize = 5;

/// Increments at work. Stopped when dropped.
pub(super) struct Counters {
    address: String,
    shared: Arc<Shared>,
    client: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    /// Increments answered.
    answered: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

/// What is known of a counter.
#[derive(Clone, Copy, Default)]
struct Counter {
    /// The last value that was acknowledged.
    least: u64,
    /// By so much it may be more: increments without an answer.
    doubt: u64,
}

impl Counter {
    /// Takes note of what an increment was answered.
    fn incremented(&mut self, value: u64) -> Result<(), String> {
        let allowed = self.least + 1..=self.least + 1 + self.doubt;
        if !allowed.contains(&value) {
            return Err(format!(
                "an increment was answered {value}; {allowed:?} is all that it can be"
            ));
        }
        *self = Counter { least: value, doubt: 0 };
        Ok(())
    }

    /// A value above every one that it may have had, from now on in doubt.
    fn begin_anew(&mut self) -> u64 {
        self.doubt += 1;
        self.least + self.doubt
    }
}

impl Counters {
    /// Starts the increments, at the memcached front end `address`.
    pub(super) fn start(address: &str) -> Counters {
        let shared = Arc::new(Shared::default());
        let (heard, to) = (shared.clone(), address.to_owned());
        let client = thread::spawn(move || {
            let mut counters = [Counter::default(); COUNTERS];
            while !heard.stopping.load(Ordering::Relaxed) {
                // An error means that the server has died: the next one is asked.
                if let Ok(mut link) = CounterLink::open(&to) {
                    let _ = increment(&mut link, &mut counters, &heard);
                }
                thread::sleep(AWAY);
            }
        });
        Counters { address: address.to_owned(), shared, client: Some(client) }
    }

    /// Sets the objects of a life, all of them acknowledged when this returns.
    pub(super) fn set_once(&self, life: u32) -> io::Result<Vec<String>> {
        let names: Vec<String> = (0..OBJECTS).map(|n| format!("once-{life}-{n}")).collect();
        let mut link = CounterLink::open(&self.address)?;
        for some in names.chunks(BATCH) {
            for name in some {
                let value = value(name);
                link.ask(&format!("set {name} 0 0 {}\r\n{value}\r\n", value.len()));
            }
            link.send()?;
            for _ in some {
                link.expect("STORED")?;
            }
        }
        Ok(names)
    }

    /// How many of these objects the cache does not have.
    pub(super) fn missing(&self, names: &[String]) -> io::Result<u64> {
        let mut link = CounterLink::open_within(&self.address, LIMIT)?;
        let mut missing: Vec<&str> = names.iter().map(String::as_str).collect();
        for _ in 0..TRIES {
            let mut found = HashSet::new();
            for some in missing.chunks(BATCH) {
                some.iter().for_each(|name| link.ask(&format!("get {name}\r\n")));
                link.send()?;
                for name in some {
                    if link.found(name)? {
                        found.insert(*name);
                    }
                }
            }
            missing.retain(|name| !found.contains(name));
            if missing.is_empty() {
                break;
            }
            thread::sleep(AWAY);
        }
        Ok(missing.len() as u64)
    }

    /// Increments answered so far.
    pub(super) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// What was wrong with the counters, since the last time.
    pub(super) fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.complaints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(client) = self.client.take() {
            let _ = client.join();
        }
    }
}

/// Increments all counters again and again, until it is stopped or the connection breaks.
fn increment(link: &mut CounterLink, counters: &mut [Counter], shared: &Shared) -> io::Result<()> {
    while !shared.stopping.load(Ordering::Relaxed) {
        for (n, counter) in counters.iter_mut().enumerate() {
            // In doubt until the answer has come.
            counter.doubt += 1;
            link.ask(&format!("incr counter-{n} 1\r\n"));
        }
        link.send()?;
        let mut forgotten = Vec::new();
        for (n, counter) in counters.iter_mut().enumerate() {
            let line = link.line()?;
            match line.parse() {
                Ok(value) => {
                    shared.answered.fetch_add(1, Ordering::Relaxed);
                    counter.doubt -= 1;
                    if let Err(wrong) = counter.incremented(value) {
                        *counter = Counter { least: value, doubt: 0 };
                        let mut complaints =
                            shared.complaints.lock().unwrap_or_else(PoisonError::into_inner);
                        complaints.push(format!("counter-{n}: {wrong}"));
                    }
                }
                Err(_) if line == "NOT_FOUND" => forgotten.push(n),
                Err(_) => return Err(io::Error::other(line)),
            }
        }
        for &n in &forgotten {
            let value = counters[n].begin_anew().to_string();
            link.ask(&format!("set counter-{n} 0 0 {}\r\n{value}\r\n", value.len()));
        }
        link.send()?;
        for &n in &forgotten {
            link.expect("STORED")?;
            let Counter { least, doubt } = counters[n];
            counters[n] = Counter { least: least + doubt, doubt: 0 };
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn value(name: &str) -> String {
    name.repeat(SIZE / name.len())
}

/// A connection to the memcached front end.
struct CounterLink {
    stream: BufReader<TcpStream>,
    requests: Vec<u8>,
}

impl CounterLink {
    fn open(address: &str) -> io::Result<CounterLink> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(CounterLink { stream: BufReader::new(stream), requests: Vec::new() })
    }

    /// Knocks for so long.
    fn open_within(address: &str, limit: Duration) -> io::Result<CounterLink> {
        let tries = (limit.as_millis() / AWAY.as_millis()) as u32;
        for _ in 1..tries {
            if let Ok(link) = CounterLink::open(address) {
                return Ok(link);
            }
            thread::sleep(AWAY);
        }
        CounterLink::open(address)
    }

    fn ask(&mut self, request: &str) {
        self.requests.extend_from_slice(request.as_bytes());
    }

    fn send(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.requests)?;
        self.requests.clear();
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        line.strip_suffix("\r\n")
            .map(str::to_owned)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn expect(&mut self, line: &str) -> io::Result<()> {
        let found = self.line()?;
        if found == line { Ok(()) } else { Err(io::Error::other(found)) }
    }

    /// Reads the answer to a get: whether the object was there. Another value than its own is an
    /// error.
    fn found(&mut self, name: &str) -> io::Result<bool> {
        let line = self.line()?;
        if line == "END" {
            return Ok(false);
        }
        let value = value(name);
        let mut bytes = vec![0; value.len() + 2];
        if line != format!("VALUE {name} 0 {}", value.len()) {
            return Err(io::Error::other(line));
        }
        self.stream.read_exact(&mut bytes)?;
        if bytes != (value + "\r\n").as_bytes() {
            return Err(io::Error::other(format!("{name} has the value of another object")));
        }
        self.expect("END").map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_goes_back_is_found_and_one_in_doubt_or_forgotten_is_not_accused() {
        let mut counter = Counter::default();
        assert_eq!(counter.begin_anew(), 1);
        counter = Counter { least: 1, doubt: 0 };
        assert!(
            counter.incremented(2).is_ok() && counter.incremented(2).is_err(),
            "an older value"
        );
        assert!(counter.incremented(4).is_err(), "more than was added");
        counter.doubt = 3;
        assert!(counter.incremented(6).is_ok(), "three increments had no answer");
        assert_eq!((counter.least, counter.doubt), (6, 0));
        counter.doubt = 2;
        assert_eq!(counter.begin_anew(), 9, "it may have been 8");
        assert!(counter.incremented(10).is_ok());
    }
}
