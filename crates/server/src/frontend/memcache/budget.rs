//! Bounds for the connections of a reactor: memory for requests and answers in flight, and the
//! number of answers they may wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use afterglow_engine::device::AlignedBuf;

use crate::reactor::Wake;

/// Tells one task of this reactor that something has changed.
#[derive(Default)]
pub struct Signal {
    wake: Wake,
    raised: Cell<bool>,
}

impl Signal {
    /// Something has changed.
    pub fn raise(&self) {
        self.raised.set(true);
        self.wake.wake();
    }

    /// Waits until something has changed since this last returned.
    pub async fn wait(&self) {
        self.wake.until(|| self.raised.replace(false).then_some(())).await;
    }
}

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
    limit: usize,
    /// Answers that may be waited for.
    answers: usize,
    /// What connections hold beyond [`FREE`].
    used: Cell<usize>,
    /// Answers that connections wait for.
    awaited: Cell<usize>,
    waiting: RefCell<Vec<Rc<Signal>>>,
}

/// What one connection holds.
pub struct BufferShare {
    budget: Rc<BufferBudget>,
    held: Cell<usize>,
    awaited: Cell<usize>,
}

impl BufferBudget {
    /// So many bytes, and so many answers that are waited for.
    pub fn new(limit: usize, answers: usize) -> Rc<Self> {
        let (used, awaited, waiting) = Default::default();
        AlignedBuf::keep_long(limit);
        Rc::new(BufferBudget { limit, answers, used, awaited, waiting })
    }

    /// Has this thread keep no more read buffers than connections leave room for.
    fn make_room(&self) {
        AlignedBuf::keep_long(self.limit.saturating_sub(self.used.get()));
        AlignedBuf::give_back_long();
    }

    /// Whether somebody waits for others to give back.
    pub fn is_short(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Raises `signal` when somebody gives back.
    fn tell(&self, signal: &Rc<Signal>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|other| Rc::ptr_eq(other, signal)) {
            waiting.push(signal.clone());
        }
    }

    fn gave_back(&self) {
        self.waiting.borrow_mut().drain(..).for_each(|signal| signal.raise());
    }

    /// A connection comes.
    pub fn share(self: &Rc<Self>) -> BufferShare {
        BufferShare { budget: self.clone(), held: Cell::default(), awaited: Cell::default() }
    }
}

/// What of so many bytes counts.
fn counted(held: usize) -> usize {
    held.saturating_sub(FREE)
}

impl BufferShare {
    /// Whether the connection may hold so many bytes more. If not, `signal` is raised when others
    /// gave back.
    pub fn may_add(&self, bytes: usize, signal: &Rc<Signal>) -> bool {
        let wanted = counted(self.held.get() + bytes);
        let others = self.budget.used.get() - counted(self.held.get());
        // One object larger than the whole budget must get through alone.
        let alone = self.budget.used.get() == 0;
        let fits = wanted == 0 || alone || others + wanted <= self.budget.limit;
        if !fits {
            self.budget.tell(signal);
        }
        fits
    }

    /// Whether the connection may wait for one more answer. If not, `signal` is raised when others
    /// were given.
    pub fn may_wait(&self, signal: &Rc<Signal>) -> bool {
        let fits = self.awaited.get() == 0 || self.budget.awaited.get() < self.budget.answers;
        if !fits {
            self.budget.tell(signal);
        }
        fits
    }

    /// The connection waits for so many answers now.
    pub fn set_awaited(&self, answers: usize) {
        let before = self.awaited.replace(answers);
        let awaited = &self.budget.awaited;
        awaited.set(awaited.get() + answers - before);
        if answers < before {
            self.budget.gave_back();
        }
    }

    /// The connection holds so many bytes now.
    pub fn set(&self, held: usize) {
        let before = self.held.replace(held);
        let used = &self.budget.used;
        let (after, before_counted) = (counted(held), counted(before));
        if after != before_counted {
            used.set(used.get() + after - before_counted);
            self.budget.make_room();
        }
        if held < before {
            self.budget.gave_back();
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
        self.set(0);
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
        a.set(6 * FREE);
        assert!(b.may_add(FREE, &wake) && !b.may_add(2 * FREE, &wake));
        assert!(budget.is_short());
        a.set(4 * FREE);
        assert!(!budget.is_short(), "who waited was told");
        assert!(b.may_add(2 * FREE, &wake));
        b.set(2 * FREE);
        assert!(!a.may_add(1, &wake));
        drop(b);
        assert!(a.may_add(1, &wake));
        drop(a);
        assert_eq!(budget.used.get(), 0);
    }

    #[test]
    fn read_buffers_are_kept_in_what_connections_leave() {
        let budget = BufferBudget::new(4 * FREE, 1);
        let long = || AlignedBuf::for_read(2 * FREE);
        drop([long(), long(), long()]);
        assert_eq!(AlignedBuf::kept_long(), 4 * FREE);
        let share = budget.share();
        share.set(2 * FREE);
        assert_eq!(AlignedBuf::kept_long(), 2 * FREE, "the first 64 KiB of a connection are free");
        share.set(9 * FREE);
        assert_eq!(AlignedBuf::kept_long(), 0);
        drop(long());
        assert_eq!(AlignedBuf::kept_long(), 0);
        share.set(0);
        drop(long());
        assert_eq!(AlignedBuf::kept_long(), 2 * FREE);
        drop((share, budget));
        assert_eq!(AlignedBuf::kept_long(), 0, "the front end has closed");
    }

    #[test]
    fn what_many_hold_for_nothing_is_not_counted() {
        let (budget, wake) = (BufferBudget::new(FREE, 1), Rc::new(Signal::default()));
        let many: Vec<BufferShare> = (0..100).map(|_| budget.share()).collect();
        many.iter().for_each(|share| share.set(FREE));
        assert!(many[0].may_add(FREE, &wake), "nobody holds more than a little");
        many[0].set(2 * FREE);
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
        assert!(!b.may_wait(&wake) && budget.is_short());
        a.set_awaited(3);
        assert!(
            !budget.is_short() && !b.may_wait(&wake),
            "who waited was told, and looked too early"
        );
        drop(a);
        assert!(b.may_wait(&wake));
        drop(b);
        assert_eq!(budget.awaited.get(), 0);
    }
}
