//! The answers of one connection. They leave in the order of its requests, in whatever order they
//! become known.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::rc::Rc;

use foldhash::fast::FixedState;

use super::budget::BufferShare;
use super::line::Signal;
use super::outgoing::{Outgoing, SHARED_FROM};

/// Answers may be this many bytes before the next request has to wait.
const MAX_BYTES: usize = 1 << 20;
/// So many answers may be waited for at once.
const MAX_WAITING: usize = 256;
/// Buffers of answers that a connection keeps, and the largest: together no more than what it may
/// hold whatever the others do.
const SPARE: usize = 15;
const SPARE_BYTES: usize = 4 * 1024;
/// Pieces of one answer may be this many bytes before the next is read: two parts of a value.
const AHEAD: usize = 5 << 19;
/// A write buffer larger than this is given back after use.
const KEEP: usize = 64 * 1024;

/// Answers on their way to a client.
pub struct Answers {
    state: RefCell<QueueState>,
    /// Raised when an answer became known, or there is room again.
    signal: Rc<Signal>,
    share: BufferShare,
    /// Bytes of requests that wait for their rest.
    input: Cell<usize>,
    /// The connection's descriptor, by which logs name it.
    cfd: i32,
    /// Answers that wait for their turn, or for room for their next piece.
    pieces: RefCell<Vec<Rc<Signal>>>,
    /// The connection is over.
    closed: Cell<bool>,
}

#[derive(Default)]
struct QueueState {
    /// Can be sent: everything before the first answer that is waited for.
    ready: Outgoing,
    /// From the first answer that is waited for on.
    later: VecDeque<Later>,
    /// Number of the first of these.
    first: u64,
    /// Bytes in `ready` and `later`, those that are expected included.
    bytes: usize,
    waiting: usize,
    /// Bytes that were taken to be sent.
    sending: usize,
    /// Emptied buffers of answers, for the next ones.
    spare: Vec<Vec<u8>>,
    /// An answer will never come: the order cannot be kept.
    broken: bool,
}

struct Later {
    bytes: Outgoing,
    /// What this answer waits for; `None` when it is known.
    waits: Option<Waits>,
}

struct Waits {
    /// [`mark`] of the key.
    key: u64,
    /// Whether it may change the object.
    changes: bool,
    expected: usize,
    /// Bytes that are granted for the next piece of the answer.
    granted: usize,
}

/// What keys are told apart by. Two that agree only wait for each other.
fn mark(key: &[u8]) -> u64 {
    FixedState::default().hash_one(key)
}

/// The duty to give an answer. Dropped without one, it ends the connection, for nobody could tell
/// what the next answer is to.
pub struct Slot {
    answers: Rc<Answers>,
    number: u64,
    given: bool,
}

impl Answers {
    /// None yet, of the connection with this descriptor.
    pub fn new(share: BufferShare, cfd: i32) -> Rc<Self> {
        Rc::new(Answers {
            state: RefCell::default(),
            signal: Rc::default(),
            share,
            input: Cell::default(),
            cfd,
            pieces: RefCell::default(),
            closed: Cell::default(),
        })
    }

    /// Adds an answer that is known.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.push_sharing(|out| write(out.text()));
    }

    /// Adds an answer that is known and may share a long value.
    pub fn push_sharing(&self, write: impl FnOnce(&mut Outgoing)) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let known = match state.later.back_mut() {
            None => &mut state.ready,
            Some(last) if last.waits.is_none() => &mut last.bytes,
            Some(_) => {
                state.later.push_back(Later { bytes: Outgoing::default(), waits: None });
                &mut state.later.back_mut().expect("just added").bytes
            }
        };
        let before = known.held();
        write(known);
        state.bytes += known.held() - before;
        self.account(state);
    }

    /// Adds an answer that is waited for, about the object of `key` and of about so many bytes.
    pub fn reserve(self: &Rc<Self>, key: &[u8], changes: bool, expected: usize) -> Slot {
        let mut state = self.state.borrow_mut();
        let number = state.first + state.later.len() as u64;
        let waits = Some(Waits { key: mark(key), changes, expected, granted: 0 });
        state.later.push_back(Later { bytes: Outgoing::default(), waits });
        state.waiting += 1;
        state.bytes += expected;
        self.account(&state);
        Slot { answers: self.clone(), number, given: false }
    }

    /// Says what the connection holds now.
    fn account(&self, state: &QueueState) {
        let input = self.input.get();
        self.share.set(state.bytes + input, input);
        self.share.set_awaited(state.waiting);
    }

    /// Says how many bytes of requests wait for their rest.
    pub fn set_input(&self, bytes: usize) {
        self.input.set(bytes);
        self.account(&self.state.borrow());
    }

    /// Whether there is room for so many bytes more of a request. Who may read waits for no room:
    /// it holds up nobody until its client sends.
    pub fn may_read(&self, bytes: usize) -> bool {
        let may = self.share.may_add(bytes, &self.signal);
        if may {
            self.share.leave(&self.signal);
        }
        may
    }

    /// Whether another answer of about so many bytes may be added. If not, the connection is woken
    /// when it may.
    pub fn has_room(&self, bytes: usize) -> bool {
        let state = self.state.borrow();
        state.waiting < MAX_WAITING
            && self.share.may_wait(&self.signal)
            && (state.bytes == 0 || state.bytes + bytes <= MAX_BYTES)
            && self.share.may_add(bytes, &self.signal)
    }

    /// Whether something done with the object of `key` now could come out of order with what is
    /// waited for.
    pub fn conflicts(&self, key: &[u8], changes: bool) -> bool {
        let state = self.state.borrow();
        if state.waiting == 0 {
            return false;
        }
        let key = mark(key);
        let mut waits = state.later.iter().filter_map(|later| later.waits.as_ref());
        waits.any(|waits| waits.key == key && (changes || waits.changes))
    }

    /// The connection's descriptor.
    pub fn cfd(&self) -> i32 {
        self.cfd
    }

    /// Whether there is none that is not sent.
    pub fn is_empty(&self) -> bool {
        let state = self.state.borrow();
        state.bytes == 0 && state.waiting == 0
    }

    /// Whether every answer is known.
    pub fn is_complete(&self) -> bool {
        self.state.borrow().waiting == 0
    }

    /// Whether the order cannot be kept any more.
    pub fn is_broken(&self) -> bool {
        self.state.borrow().broken
    }

    /// Moves what can be sent into `out`, which is empty; false when there is nothing.
    pub fn take(&self, out: &mut Outgoing) -> bool {
        let mut state = self.state.borrow_mut();
        if state.ready.is_empty() {
            return false;
        }
        std::mem::swap(out, &mut state.ready);
        state.sending += out.held();
        true
    }

    /// Keeps a buffer that was sent for what is to be sent next, unless that has one already.
    pub fn put_back(&self, mut buffer: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let text = state.ready.text();
        if text.capacity() == 0 && buffer.capacity() <= KEEP {
            buffer.clear();
            *text = buffer;
        }
    }

    /// Gives back the memory that is kept for further answers, if there is nothing to answer.
    pub fn give_back(&self) {
        let mut state = self.state.borrow_mut();
        if state.ready.is_empty() && state.later.is_empty() {
            (state.ready, state.later, state.spare) = Default::default();
        }
    }

    /// Bytes of memory in use, or kept, for answers.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        let state = self.state.borrow();
        let later = state.later.iter().map(|later| &later.bytes);
        let text = later.chain([&state.ready]).map(Outgoing::capacity).sum::<usize>();
        text + state.spare.iter().map(Vec::capacity).sum::<usize>()
    }

    /// What held so many bytes was sent.
    pub fn sent(&self, bytes: usize) {
        let mut state = self.state.borrow_mut();
        state.bytes -= bytes;
        state.sending -= bytes;
        self.account(&state);
        drop(state);
        self.wake_pieces();
    }

    /// Waits until something has changed since the last call.
    pub async fn changed(&self) {
        self.share.wait(&self.signal).await;
    }

    /// The connection is about to carry out what it can.
    pub fn begin_turn(&self) {
        self.signal.begin_turn();
    }

    /// It has carried out what it can: if it waits for room, somebody has asked for it.
    pub fn end_turn(&self) {
        if self.signal.waits_in_vain() {
            self.share.leave(&self.signal);
        }
    }

    /// Whether it holds what other connections wait for.
    pub fn holds_what_is_short(&self) -> bool {
        self.share.holds_what_is_short()
    }

    /// Wakes the connection.
    pub fn nudge(&self) {
        self.signal.raise();
    }

    fn answer(&self, number: u64, write: impl FnOnce(&mut Outgoing)) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let place = (number - state.first) as usize;
        let waits = state.later[place].waits.as_ref();
        let expected = waits.map_or(0, |waits| waits.expected + waits.granted);
        let written = match place {
            // Nothing stands before it: no need to keep it apart.
            0 => write_expected(&mut state.ready, expected, write),
            _ => {
                let mut bytes = Outgoing::of_text(state.spare.pop().unwrap_or_default());
                let written = write_expected(&mut bytes, expected, write);
                state.later[place].bytes = bytes;
                written
            }
        };
        state.later[place].waits = None;
        state.bytes = state.bytes - expected + written;
        state.waiting -= 1;
        while let Some(mut later) = state.later.pop_front_if(|later| later.waits.is_none()) {
            state.first += 1;
            if state.ready.is_empty() && later.bytes.text().len() > SPARE_BYTES {
                state.ready = later.bytes;
            } else {
                state.ready.append(&mut later.bytes);
                state.keep(later.bytes.into_text());
            }
        }
        self.account(state);
        self.wake_pieces();
    }

    fn wake_pieces(&self) {
        // Out of the list first: who is woken may come back at once.
        let waiting = self.pieces.take();
        waiting.iter().for_each(|signal| signal.raise());
    }

    /// Raises `signal` when there may be room for a piece. Others may have raised it since it was
    /// last given: then it is here still.
    fn wake_with_pieces(&self, signal: &Rc<Signal>) {
        let mut waiting = self.pieces.borrow_mut();
        if !waiting.iter().any(|other| Rc::ptr_eq(other, signal)) {
            waiting.push(signal.clone());
        }
    }

    /// The connection is over: nobody waits for room any more.
    pub fn close(&self) {
        self.closed.set(true);
        self.share.leave(&self.signal);
        self.wake_pieces();
    }

    /// Counts `bytes` for the next piece of answer `number`, if it is its turn and there is room.
    ///
    /// An answer of which nothing is on its way goes first: what stands behind it cannot be sent
    /// before it. One of which a piece is on its way takes no more than others leave.
    fn grants_piece(&self, number: u64, bytes: usize, signal: &Rc<Signal>) -> bool {
        let mut state = self.state.borrow_mut();
        if state.first != number {
            return false;
        }
        let waits = state.later[0].waits.as_ref().expect("its duty is still open");
        debug_assert_eq!(waits.granted, 0, "a piece is sent or given up before the next");
        let under_way = state.ready.held() + state.sending;
        let may_add = match under_way {
            0 => self.share.may_add_piece(bytes, signal),
            _ => under_way + bytes <= AHEAD && self.share.may_add_to_spare(bytes),
        };
        if !may_add {
            return false;
        }
        state.later[0].waits.as_mut().expect("looked at above").granted += bytes;
        state.bytes += bytes;
        self.account(&state);
        true
    }

    /// Appends a piece of answer `number`, which is the first; what was granted is used up.
    fn piece(&self, number: u64, write: impl FnOnce(&mut Outgoing)) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        assert_eq!(state.first, number, "a piece before its turn");
        let waits = state.later[0].waits.as_mut().expect("its duty is still open");
        let expected = std::mem::take(&mut waits.granted);
        let written = write_expected(&mut state.ready, expected, write);
        state.bytes = state.bytes - expected + written;
        self.account(state);
    }

    /// Gives back what is granted to answer `number` and not used, if anything.
    fn forgo_piece(&self, number: u64) {
        let mut state = self.state.borrow_mut();
        let place = number.checked_sub(state.first).map(|place| place as usize);
        let waits = place.and_then(|place| state.later.get_mut(place)?.waits.as_mut());
        let granted = waits.map_or(0, |waits| std::mem::take(&mut waits.granted));
        if granted > 0 {
            state.bytes -= granted;
            self.account(&state);
        }
    }
}

/// Has `write` append an answer for which `expected` bytes were counted. Returns how many it holds:
/// what a long value was read into is held until the value is sent.
fn write_expected(out: &mut Outgoing, expected: usize, write: impl FnOnce(&mut Outgoing)) -> usize {
    // A longer value is not copied.
    out.text().reserve(if expected < 2 * SHARED_FROM { expected } else { 0 });
    let (held, shared) = (out.held(), out.shared());
    write(out);
    let written = out.held() - held;
    if out.shared() > shared {
        out.holds_more(expected.saturating_sub(written));
    }
    out.held() - held
}

impl QueueState {
    /// Keeps a buffer for another answer, if it is one of few and small.
    fn keep(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= SPARE_BYTES && self.spare.len() < SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

impl Slot {
    /// The descriptor of the connection that waits for it.
    pub fn cfd(&self) -> i32 {
        self.answers.cfd
    }

    /// Waits until it is this answer's turn and there is room for a piece of so many bytes, which
    /// count as held until the piece is sent, or what this returns is dropped. `None`: the
    /// connection is over.
    pub async fn room_for_piece(&self, bytes: usize) -> Option<PieceRoom> {
        let waiter = PieceWaiter { answers: &self.answers, signal: Rc::default() };
        while !self.answers.closed.get() {
            if self.answers.grants_piece(self.number, bytes, &waiter.signal) {
                let (answers, number) = (self.answers.clone(), self.number);
                return Some(PieceRoom { answers, number });
            }
            self.answers.wake_with_pieces(&waiter.signal);
            self.answers.share.wait(&waiter.signal).await;
        }
        None
    }

    /// Sends a piece of the answer ahead, for which there is room.
    pub fn piece(&self, room: PieceRoom, write: impl FnOnce(&mut Outgoing)) {
        debug_assert_eq!(room.number, self.number, "the room of another answer");
        self.answers.piece(self.number, write);
        self.answers.nudge();
    }

    /// Gives the answer that `write` appends.
    pub fn answer(self, write: impl FnOnce(&mut Vec<u8>)) {
        self.answer_sharing(|out| write(out.text()));
    }

    /// Gives the answer that `write` appends, which may share a long value.
    pub fn answer_sharing(mut self, write: impl FnOnce(&mut Outgoing)) {
        self.answers.answer(self.number, write);
        self.given = true;
        self.answers.nudge();
    }
}

/// Room for a piece of an answer. It is given back when this is dropped, unless the piece was sent
/// or the answer given, which use it up.
pub struct PieceRoom {
    answers: Rc<Answers>,
    number: u64,
}

impl Drop for PieceRoom {
    fn drop(&mut self) {
        self.answers.forgo_piece(self.number);
    }
}

/// Who waits for room for a piece: in nobody's way once it does not any more.
struct PieceWaiter<'a> {
    answers: &'a Answers,
    signal: Rc<Signal>,
}

impl Drop for PieceWaiter<'_> {
    fn drop(&mut self) {
        self.answers.share.leave(&self.signal);
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.share.leave(&self.signal);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.given {
            self.answers.state.borrow_mut().broken = true;
            self.answers.nudge();
        }
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
