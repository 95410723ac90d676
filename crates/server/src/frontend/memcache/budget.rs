//! Bounds for the connections of a reactor: memory for requests and answers in flight, and the
//! number of answers they may wait for. Who finds too little waits in a [`Line`].

use std::cell::Cell;
use std::rc::Rc;

use afterglow_engine::device::AlignedBuf;

use super::line::{Asker, Line, Signal, Taker};

/// What any connection may hold whatever the others do, in bytes.
pub const FREE: usize = 64 * 1024;

/// A reactor's budget. Up to [`FREE`] bytes per connection are neither asked for nor counted. So
/// small requests always get through, and many connections that hold a little do not use the budget
/// up for good. Beyond that the bytes must fit, or the connection waits.
///
/// So it is with answers that are waited for: each connection may wait for one, others must fit.
/// Beyond what the engine keeps waiters for, a removal that is to survive a loss of power would be
/// flushed to disk on the reactor.
///
/// What connections do not use of it this thread may use to keep [buffers](AlignedBuf::keep_long)
/// that values were read into: for the next read, and until they have not been used for a while.
pub struct BufferBudget {
    /// What connections hold beyond [`FREE`].
    bytes: Line,
    /// Answers that connections wait for.
    answers: Line,
}

/// What one connection holds.
pub struct BufferShare {
    budget: Rc<BufferBudget>,
    /// Bytes, those that do not count included.
    held: Cell<usize>,
    /// Its bytes that count.
    bytes: Rc<Taker>,
    /// Answers that it waits for.
    answers: Rc<Taker>,
}

impl BufferBudget {
    /// So many bytes, and so many answers that are waited for.
    pub fn new(limit: usize, answers: usize) -> Rc<Self> {
        AlignedBuf::keep_long(limit);
        Rc::new(BufferBudget { bytes: Line::new(limit), answers: Line::new(answers) })
    }

    /// Has this thread keep no more read buffers than connections leave room for.
    fn make_room(&self) {
        AlignedBuf::keep_long(self.bytes.left());
        AlignedBuf::give_back_long();
    }

    /// Whether somebody waits for others to give back.
    pub fn is_short(&self) -> bool {
        !self.bytes.is_empty() || !self.answers.is_empty()
    }

    /// What connections hold that counts.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.bytes.used()
    }

    /// How many wait for bytes.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.bytes.waiting()
    }

    /// A connection comes.
    pub fn share(self: &Rc<Self>) -> BufferShare {
        let (held, bytes, answers) = Default::default();
        BufferShare { budget: self.clone(), held, bytes, answers }
    }
}

/// What of so many bytes counts.
fn counted(held: usize) -> usize {
    held.saturating_sub(FREE)
}

impl BufferShare {
    /// How many bytes more count if the connection holds so many more.
    fn need(&self, bytes: usize) -> usize {
        counted(self.held.get() + bytes) - counted(self.held.get())
    }

    /// Whether the connection may hold so many bytes more. If not, `signal` waits in line until it
    /// may, and for nothing else: behind a piece of its own, if there is one in line.
    pub fn may_add(&self, bytes: usize, signal: &Rc<Signal>) -> bool {
        let asker = Asker { taker: &self.bytes, signal, goes_first: false };
        let may = self.budget.bytes.may_take(self.need(bytes), asker);
        if !may {
            self.budget.answers.leave(&self.answers, signal);
        }
        may
    }

    /// The same for a piece of an answer before which nothing else of the connection can be sent.
    pub fn may_add_piece(&self, bytes: usize, signal: &Rc<Signal>) -> bool {
        let asker = Asker { taker: &self.bytes, signal, goes_first: true };
        self.budget.bytes.may_take(self.need(bytes), asker)
    }

    /// The same for what can wait: it takes what nobody waits for.
    pub fn may_add_to_spare(&self, bytes: usize) -> bool {
        self.budget.bytes.has_spare(self.need(bytes))
    }

    /// Whether the connection may wait for one more answer. If not, `signal` waits in line until it
    /// may, and for nothing else.
    pub fn may_wait(&self, signal: &Rc<Signal>) -> bool {
        if self.answers.has() == 0 {
            self.budget.answers.leave(&self.answers, signal);
            return true;
        }
        let asker = Asker { taker: &self.answers, signal, goes_first: false };
        let may = self.budget.answers.may_take(1, asker);
        if !may {
            self.budget.bytes.leave(&self.bytes, signal);
        }
        may
    }

    /// Waits until `signal` is raised, in its place of the lines that it is in.
    pub async fn wait(&self, signal: &Signal) {
        let waiting = signal.begin_wait();
        if signal.is_in_line() {
            // Its turn may have come while it could not go on.
            self.budget.bytes.tell();
            self.budget.answers.tell();
        }
        waiting.await;
    }

    /// `signal` waits for nothing more, whatever it asked for.
    pub fn leave(&self, signal: &Rc<Signal>) {
        self.budget.bytes.leave(&self.bytes, signal);
        self.budget.answers.leave(&self.answers, signal);
    }

    /// Whether it holds what others wait for.
    pub fn holds_what_is_short(&self) -> bool {
        let BufferBudget { bytes, answers } = &*self.budget;
        self.bytes.has() > 0 && !bytes.is_empty() || self.answers.has() > 0 && !answers.is_empty()
    }

    /// The connection waits for so many answers now.
    pub fn set_awaited(&self, answers: usize) {
        self.budget.answers.change(&self.answers, answers, 0);
    }

    /// The connection holds so many bytes now, so many of them of requests that are not done yet.
    pub fn set(&self, held: usize, input: usize) {
        self.held.set(held);
        let (before, after) = (self.bytes.has(), counted(held));
        self.budget.bytes.change(&self.bytes, after, counted(input));
        if after != before {
            self.budget.make_room();
        }
    }
}

impl Drop for BufferBudget {
    fn drop(&mut self) {
        AlignedBuf::keep_long(0);
        AlignedBuf::give_back_long();
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.set(0, 0);
        self.set_awaited(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_things_always_fit_and_large_ones_wait_for_each_other() {
        let budget = BufferBudget::new(4 * FREE, 1);
        let wake = Rc::new(Signal::default());
        let (a, b) = (budget.share(), budget.share());
        assert!(a.may_add(9 * FREE, &wake), "alone, anything");
        a.set(6 * FREE, 0);
        assert!(b.may_add(FREE, &wake) && !b.may_add(2 * FREE, &wake));
        assert!(budget.is_short());
        a.set(4 * FREE, 0);
        assert!(b.may_add(2 * FREE, &wake));
        b.set(2 * FREE, 0);
        assert!(!budget.is_short());
        assert!(!a.may_add(1, &wake));
        drop(b);
        assert!(a.may_add(1, &wake));
        drop(a);
        assert_eq!(budget.bytes.left(), 4 * FREE);
    }

    #[test]
    fn read_buffers_are_kept_in_what_connections_leave() {
        let budget = BufferBudget::new(4 * FREE, 1);
        let long = || AlignedBuf::for_read(2 * FREE);
        drop([long(), long(), long()]);
        assert_eq!(AlignedBuf::kept_long(), 4 * FREE);
        let share = budget.share();
        share.set(2 * FREE, 0);
        assert_eq!(AlignedBuf::kept_long(), 2 * FREE, "the first 64 KiB of a connection are free");
        share.set(9 * FREE, 0);
        assert_eq!(AlignedBuf::kept_long(), 0);
        drop(long());
        assert_eq!(AlignedBuf::kept_long(), 0);
        share.set(0, 0);
        drop(long());
        assert_eq!(AlignedBuf::kept_long(), 2 * FREE);
        drop((share, budget));
        assert_eq!(AlignedBuf::kept_long(), 0, "the front end has closed");
    }

    #[test]
    fn what_many_hold_for_nothing_is_not_counted() {
        let (budget, wake) = (BufferBudget::new(FREE, 1), Rc::new(Signal::default()));
        let many: Vec<BufferShare> = (0..100).map(|_| budget.share()).collect();
        many.iter().for_each(|share| share.set(FREE, 0));
        assert!(many[0].may_add(FREE, &wake), "nobody holds more than a little");
        many[0].set(2 * FREE, 0);
        assert!(!many[1].may_add(1, &wake));
    }

    #[test]
    fn one_answer_may_always_be_waited_for_and_more_in_turn() {
        let (budget, wake) = (BufferBudget::new(FREE, 4), Rc::new(Signal::default()));
        let (a, b) = (budget.share(), budget.share());
        a.set_awaited(3);
        assert!(a.may_wait(&wake));
        a.set_awaited(4);
        assert!(!a.may_wait(&wake) && b.may_wait(&wake), "whoever waits for nothing may");
        b.set_awaited(1);
        let other = Rc::new(Signal::default());
        assert!(!b.may_wait(&other) && budget.is_short());
        a.set_awaited(3);
        assert!(!b.may_wait(&other), "there are as many still");
        a.leave(&wake);
        drop(a);
        assert!(b.may_wait(&other));
        b.set_awaited(2);
        assert!(!budget.is_short());
        drop(b);
        assert_eq!(budget.answers.left(), 4);
    }
}
