//! The engine's log lines, for hosts that have a log of their own. Hosts fetch the lines; nothing
//! calls back into them.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error::{Failure, aglow_status, guard};
use crate::memory::{copy_out, store};

/// Lines kept until they are fetched; the oldest go first.
const LINES: usize = 256;

static QUEUE: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
static STARTED: OnceLock<bool> = OnceLock::new();

/// Begins to collect, unless the program has a subscriber of its own.
pub fn start() {
    STARTED.get_or_init(|| tracing::subscriber::set_global_default(Collector).is_ok());
}

/// The oldest line not yet fetched.
pub fn next() -> Option<String> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= LINES {
            queue.pop_front();
        }
        queue.push_back(line.0);
    }

    // The engine has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Copies the oldest line of the engine's log that was not yet fetched: `AGLOW_OK`, or `AGLOW_MISS`
/// if there is none. It begins with its level (`INFO`, `WARN`, `ERROR`). The last 256 lines are
/// kept. A line longer than `capacity` is cut.
///
/// # Safety
/// `buffer` takes `capacity` bytes, `len` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_log_next(
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> aglow_status {
    guard(|| {
        start();
        let Some(line) = next() else { return Ok(aglow_status::AGLOW_MISS) };
        let line = &line[..line.floor_char_boundary(capacity)];
        // SAFETY: the caller's promise.
        unsafe { store(len, line.len()) };
        // SAFETY: the caller's promise.
        match unsafe { copy_out(line.as_bytes(), buffer, capacity) } {
            true => Ok(aglow_status::AGLOW_OK),
            false => Err(Failure::argument("the buffer is a null pointer")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_can_be_fetched_and_never_grows_without_bound() {
        start();
        for n in 0..LINES + 10 {
            tracing::warn!(device = n, "a device fails");
        }
        tracing::debug!("not this");
        // Other tests of this process say something too.
        let lines: Vec<String> =
            std::iter::from_fn(next).filter(|line| line.contains("a device fails")).collect();
        let first = LINES + 10 - lines.len();
        assert!((10..LINES).contains(&first), "{} lines are kept", lines.len());
        let expected = (first..).map(|n| format!("WARN a device fails device={n}"));
        assert!(lines.iter().cloned().eq(expected.take(lines.len())), "{lines:?}");
    }
}
