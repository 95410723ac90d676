//! Dumps of all objects: `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`.
//!
//! The engine's listing reads flash from end to end, so it is carried on by threads that may block, a [`PIECE`] at a time; the next
//! piece is made when there is room for it among the answers of the connection, whose other requests wait meanwhile. One dump at a
//! time: a second client is told that it is busy, as memcached tells it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use afterglow_engine::{KeysError, Listing};
use afterglow_memcache::{Dump, Form};

use super::Door;
use super::perform::{Performed, Session};

/// Bytes of answers that are made at a time, and a line.
const PIECE: usize = 64 * 1024;
/// Most bytes of a `stats cachedump`, as in memcached.
const CACHED: usize = 2 << 20;

/// A dump that a connection is being answered with.
pub struct Running {
    /// What is still to be listed; there unless a piece is being made, or it is over.
    source: Rc<Cell<Option<Source>>>,
    /// Tells the thread that makes a piece that nobody waits for it.
    stop: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The one dump of the door; the next may begin when it is dropped.
struct Turn(Arc<Door>);

impl Turn {
    fn take(door: &Arc<Door>) -> Option<Self> {
        (!door.dumping.swap(true, Ordering::AcqRel)).then(|| Turn(door.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.dumping.store(false, Ordering::Release);
    }
}

struct Source {
    listing: Listing<Vec<u8>>,
    dump: Dump,
    /// Objects and bytes that may still be shown.
    left: (usize, usize),
    stop: Arc<AtomicBool>,
    _turn: Turn,
}

impl Source {
    fn new(turn: Turn, dump: Dump, stop: Arc<AtomicBool>) -> Self {
        let left = match dump.form {
            Form::Cached { limit: 0 } => (usize::MAX, CACHED),
            Form::Cached { limit } => (limit as usize, CACHED),
            Form::Metadata | Form::Keys => (usize::MAX, usize::MAX),
        };
        let door = turn.0.clone();
        let listing = turn.0.store.objects.list(move |kept| {
            let (now, mut line) = (door.store.now(), Vec::new());
            if let Some(item) = door.store.listed(kept, now) {
                dump.line(kept.key, &item, now, &mut line);
            }
            line
        });
        Source { listing, dump, left, stop, _turn: turn }
    }

    /// Makes the next piece; false when it was the last.
    fn piece(&mut self, out: &mut Vec<u8>) -> bool {
        while out.len() < PIECE && !self.stop.load(Ordering::Relaxed) {
            let Some(line) = self.listing.pop() else {
                match self.listing.advance() {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => return failed(error, out),
                    None => return self.end(out),
                }
            };
            if self.left.0 == 0 || line.len() > self.left.1 {
                return self.end(out);
            }
            self.left.0 -= usize::from(!line.is_empty());
            self.left.1 -= line.len();
            out.extend_from_slice(&line);
        }
        true
    }

    fn end(&self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(self.dump.end());
        false
    }
}

/// Says why a dump is not complete, in the place of its end.
fn failed(error: KeysError, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(format!("ERROR {error}\r\n").as_bytes());
    false
}

impl Session {
    /// Begins a dump, or goes on with it.
    pub(super) fn dump(&mut self, dump: Dump) -> Performed {
        // What is before it is answered first, and its own pieces come one after the other.
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        if self.dump.is_none() {
            match begin(&self.here.door, dump) {
                Ok(running) => self.dump = Some(running),
                Err(answer) => {
                    self.answers.push(|out| out.extend_from_slice(answer));
                    return Performed::Done;
                }
            }
        }
        let running = self.dump.as_ref().expect("begun above");
        let Some(mut source) = running.source.take() else {
            self.dump = None;
            return Performed::Done;
        };
        if !self.answers.has_room(PIECE) {
            running.source.set(Some(source));
            return Performed::Blocked;
        }
        // No object has this key.
        let slot = self.answers.reserve(&[], false, PIECE);
        let back = running.source.clone();
        compio::runtime::spawn(async move {
            let make = move || {
                let mut bytes = Vec::with_capacity(PIECE);
                let more = source.piece(&mut bytes);
                (more.then_some(source), bytes)
            };
            // Without an answer, which a bug alone can cost, the connection ends.
            if let Ok((source, bytes)) = compio::runtime::spawn_blocking(make).await {
                back.set(source);
                slot.answer(|out| out.extend_from_slice(&bytes));
            }
        })
        .detach();
        Performed::Blocked
    }
}

fn begin(door: &Arc<Door>, dump: Dump) -> Result<Running, &'static [u8]> {
    if !door.config.dump_enabled {
        return Err(dump.refused());
    }
    if !dump.is_named {
        return Err(dump.end());
    }
    let turn = Turn::take(door).ok_or(&b"BUSY currently processing crawler request\r\n"[..])?;
    let stop = Arc::new(AtomicBool::new(false));
    let source = Rc::new(Cell::new(Some(Source::new(turn, dump, stop.clone()))));
    Ok(Running { source, stop })
}
