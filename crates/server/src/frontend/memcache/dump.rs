//! Dumps of all objects: `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`.
//!
//! The engine's listing reads flash from end to end. So threads that may block carry it out, a
//! [`PIECE`] at a time. The next piece is made when the connection's answers have space for it; its
//! other requests wait meanwhile.
//!
//! There is one dump at a time: a second client gets memcached's busy error. From then on the first
//! client is disconnected once it has read nothing for ten seconds. So no client keeps the turn by
//! not reading.
//!
//! A dump that cannot begin is answered with a line of `ERROR`, like one that is refused. A dump
//! that fails after lines of it were sent ends the connection behind the last line. Its client
//! waits for the end of the dump, and would take any other line for an object.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use afterglow_engine::{KeysError, Listing};
use afterglow_memcache::{Dump, Form};

use super::answers::Answers;
use super::dump_turn::Turn;
use super::shared::MemcacheShared;

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
    /// It failed after a part of it had been listed.
    torn: Rc<Cell<bool>>,
    /// There as long as something is still to be listed.
    turn: Weak<Turn>,
}

/// How far a dump has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A piece is being made, or waits for room.
    Waits,
    /// Its end is answered.
    Over,
    /// It failed after a part of it had been listed.
    Torn,
}

impl Running {
    fn new(turn: Turn, dump: Dump, listing: Listing<Vec<u8>>) -> Self {
        let (turn, stop) = (Arc::new(turn), Arc::new(AtomicBool::new(false)));
        let held = Arc::downgrade(&turn);
        let source = Rc::new(Cell::new(Some(Source::new(turn, dump, listing, stop.clone()))));
        Running { source, stop, torn: Rc::default(), turn: held }
    }

    /// What is there as long as nobody else may begin a dump.
    pub(super) fn turn(&self) -> Weak<Turn> {
        self.turn.clone()
    }

    /// Begins a dump.
    ///
    /// # Errors
    /// The answer to one that cannot begin.
    pub(super) fn begin(
        front_end: &Arc<MemcacheShared>,
        dump: Dump,
    ) -> Result<Self, &'static [u8]> {
        if !front_end.config.dump_enabled {
            return Err(dump.refused());
        }
        if !dump.is_named {
            return Err(dump.end());
        }
        let turn = Turn::take(&front_end.dump_turn)
            .ok_or(&b"BUSY currently processing crawler request\r\n"[..])?;
        Ok(Running::new(turn, dump, lines(front_end, dump)))
    }

    /// Has the next piece made, when the last one is answered and there is room for it among the
    /// answers.
    pub(super) fn advance(&self, answers: &Rc<Answers>) -> Step {
        let Some(mut source) = self.source.take() else {
            return if self.torn.get() { Step::Torn } else { Step::Over };
        };
        if !answers.has_room(PIECE) {
            self.source.set(Some(source));
            return Step::Waits;
        }
        // No object has this key.
        let slot = answers.reserve(&[], false, PIECE);
        let (back, torn) = (self.source.clone(), self.torn.clone());
        compio::runtime::spawn(async move {
            let make = move || {
                let mut bytes = Vec::with_capacity(PIECE);
                let ended = source.piece(&mut bytes);
                ((ended == Piece::More).then_some(source), ended, bytes)
            };
            // Without an answer, which a bug alone can cost, the connection ends.
            if let Ok((source, ended, bytes)) = compio::runtime::spawn_blocking(make).await {
                back.set(source);
                torn.set(ended == Piece::Torn);
                slot.answer(|out| out.extend_from_slice(&bytes));
            }
        })
        .detach();
        Step::Waits
    }

    /// A dump of what `listing` makes.
    #[cfg(test)]
    pub(super) fn over(
        front_end: &Arc<MemcacheShared>,
        dump: Dump,
        listing: Listing<Vec<u8>>,
    ) -> Option<Self> {
        Some(Running::new(Turn::take(&front_end.dump_turn)?, dump, listing))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Source {
    listing: Listing<Vec<u8>>,
    dump: Dump,
    /// Objects and bytes that may still be shown.
    left: (usize, usize),
    stop: Arc<AtomicBool>,
    /// Something of it was listed.
    begun: bool,
    _turn: Arc<Turn>,
}

/// How a piece ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// There is more.
    More,
    /// With the end of the dump, or with the line that says why there is none.
    Last,
    /// With an error behind objects.
    Torn,
}

impl Source {
    fn new(turn: Arc<Turn>, dump: Dump, listing: Listing<Vec<u8>>, stop: Arc<AtomicBool>) -> Self {
        let left = match dump.form {
            Form::Cached { limit: 0 } => (usize::MAX, CACHED),
            Form::Cached { limit } => (limit as usize, CACHED),
            Form::Metadata | Form::Keys => (usize::MAX, usize::MAX),
        };
        Source { listing, dump, left, stop, begun: false, _turn: turn }
    }

    /// Makes the next piece.
    fn piece(&mut self, out: &mut Vec<u8>) -> Piece {
        while out.len() < PIECE && !self.stop.load(Ordering::Relaxed) {
            let Some(line) = self.listing.pop() else {
                match self.listing.advance() {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => return self.fail(error, out),
                    None => return self.end(out),
                }
            };
            if self.left.0 == 0 || line.len() > self.left.1 {
                return self.end(out);
            }
            self.left.0 -= usize::from(!line.is_empty());
            self.left.1 -= line.len();
            self.begun |= !line.is_empty();
            out.extend_from_slice(&line);
        }
        Piece::More
    }

    fn end(&self, out: &mut Vec<u8>) -> Piece {
        out.extend_from_slice(self.dump.end());
        Piece::Last
    }

    /// Says why a dump is not complete, in the place of its end.
    fn fail(&self, error: KeysError, out: &mut Vec<u8>) -> Piece {
        out.extend_from_slice(format!("ERROR {error}\r\n").as_bytes());
        if self.begun { Piece::Torn } else { Piece::Last }
    }
}

/// The line of each object, empty for those that have none.
fn lines(front_end: &Arc<MemcacheShared>, dump: Dump) -> Listing<Vec<u8>> {
    let shared = front_end.clone();
    front_end.store.objects.list(move |kept| {
        let (now, mut line) = (shared.store.now(), Vec::new());
        if let Some(item) = shared.store.listed(kept, now) {
            dump.line(kept.key, &item, now, &mut line);
        }
        line
    })
}
