//! The slow-request log: one line for each request that took longer than the operator allows, up to
//! a bounded rate. Requests that are not logged are counted.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::metrics::{Counter, Exposition, Kind, Label, Path};

/// Lines that may come at once.
const BURST: f64 = 20.0;
/// Lines a second in the long run.
const PER_SECOND: f64 = 10.0;

/// The log of one process.
#[derive(Debug, Default)]
pub struct SlowLog {
    /// Requests that take longer are slow; `None`: nothing is logged.
    threshold: Option<Duration>,
    keys_shown: bool,
    tokens: Mutex<Tokens>,
    /// Lines written.
    pub logged: Counter,
    /// Slow requests for which no line was written, because there were too many.
    pub suppressed: Counter,
}

/// What is known of a slow request; what is not known is left out of its line.
#[derive(Debug, Clone, Default)]
pub struct SlowRequest {
    /// `cql` or `memcache`.
    pub front_end: &'static str,
    /// The command, or the kind of statement.
    pub kind: &'static str,
    /// `keyspace.table`.
    pub table: Option<String>,
    /// The key; written only where names of keys are shown.
    pub key: Option<String>,
    /// Requests that were answered together and share their time.
    pub requests: u64,
    /// The part of the time that was waited for flash.
    pub flash: Option<Duration>,
}

impl SlowLog {
    /// Logs requests that take longer than `threshold`; with the names of keys if `keys_shown`.
    pub fn new(threshold: Option<Duration>, keys_shown: bool) -> Self {
        Self { threshold, keys_shown, ..Self::default() }
    }

    /// Whether anything is logged at all: who prepares a description asks this first.
    pub fn is_on(&self) -> bool {
        self.threshold.is_some()
    }

    /// Whether the names of keys are logged.
    pub fn names_keys(&self) -> bool {
        self.is_on() && self.keys_shown
    }

    /// Whether a request that took so long is slow.
    pub fn is_slow(&self, took: Duration) -> bool {
        self.threshold.is_some_and(|threshold| took > threshold)
    }

    /// Adds what was logged and what was not to the metrics, if anything can be.
    pub fn expose(&self, out: &mut Exposition) {
        if !self.is_on() {
            return;
        }
        const NAME: &str = "afterglow_slow_requests_total";
        out.header(
            NAME,
            Kind::Counter,
            "Requests slower than --slow-request-log: logged, and left out to spare the log.",
        );
        out.sample(NAME, &[("outcome", "logged")], self.logged.get());
        out.sample(NAME, &[("outcome", "suppressed")], self.suppressed.get());
    }

    /// Logs a request that [is slow](Self::is_slow), if there is a line left for it.
    pub fn log(&self, request: &SlowRequest, path: Path, took: Duration) {
        if !self.tokens.lock().take(Instant::now()) {
            return self.suppressed.inc();
        }
        self.logged.inc();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        tracing::warn!(
            target: "afterglow::slow",
            frontend = request.front_end,
            kind = request.kind,
            table = request.table.as_deref(),
            key = request.key.as_deref().filter(|_| self.keys_shown),
            path = path.word(),
            took_us = micros(took),
            flash_us = request.flash.map(micros),
            requests = request.requests,
            suppressed = self.suppressed.get(),
            "slow request"
        );
    }
}

/// A token bucket: a line takes a token, and tokens come back with time.
#[derive(Debug)]
struct Tokens {
    left: f64,
    filled: Option<Instant>,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { left: BURST, filled: None }
    }
}

impl Tokens {
    fn take(&mut self, now: Instant) -> bool {
        let since = self.filled.replace(now).map_or(Duration::ZERO, |before| now - before);
        self.left = (self.left + since.as_secs_f64() * PER_SECOND).min(BURST);
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_then_some_lines_a_second_and_the_rest_is_counted() {
        let mut tokens = Tokens::default();
        let begin = Instant::now();
        let taken = |tokens: &mut Tokens, at: Instant| (0..100).filter(|_| tokens.take(at)).count();
        assert_eq!(taken(&mut tokens, begin), 20);
        assert_eq!(taken(&mut tokens, begin + Duration::from_millis(50)), 0);
        assert_eq!(taken(&mut tokens, begin + Duration::from_secs(1)), 10);
        assert_eq!(taken(&mut tokens, begin + Duration::from_secs(3600)), 20, "no more is saved");
        let log = SlowLog::new(Some(Duration::from_millis(5)), false);
        for _ in 0..1000 {
            log.log(&SlowRequest::default(), Path::Dram, Duration::from_millis(6));
        }
        assert_eq!(log.logged.get() + log.suppressed.get(), 1000);
        assert!(log.suppressed.get() > 900);
    }

    #[test]
    fn only_what_takes_longer_is_slow_and_nothing_unless_it_is_on() {
        let log = SlowLog::new(Some(Duration::from_millis(5)), true);
        assert!(log.is_on() && log.names_keys());
        assert!(log.is_slow(Duration::from_micros(5001)) && !log.is_slow(Duration::from_millis(5)));
        let off = SlowLog::new(None, true);
        assert!(!off.is_on() && !off.names_keys() && !off.is_slow(Duration::from_secs(3600)));
    }
}
