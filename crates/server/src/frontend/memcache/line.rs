//! Where requests wait that find too little of something: in the order in which they came.
//!
//! 1. Who asks may take what fits beside all who came before and still wait. Otherwise it is noted
//!    at the end of the line, or stays where it stands.
//! 2. Whenever something is given back, those are told who fit now, from the first on, and nobody
//!    else: one who does not fit holds up all behind it, so large requests do not starve.
//! 3. Who was told asks again. Who asks for nothing in its turn leaves.
//!
//! A connection that stands still in something else, such as a write to its client, is passed over
//! until it waits again: it could not go on if it were told.
//!
//! All of it is of one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::reactor::Wake;

/// Tells one task of this reactor that something has changed.
#[derive(Default)]
pub struct Signal {
    wake: Wake,
    raised: Cell<bool>,
    /// The task waits for it now.
    is_awaited: Cell<bool>,
    /// Lines that it is in.
    lines: Cell<u32>,
    /// It asked in this turn and was told to wait.
    asked: Cell<bool>,
}

/// Notes the end of a wait, however it ends.
struct WaitMark<'a>(&'a Signal);

impl Drop for WaitMark<'_> {
    fn drop(&mut self) {
        self.0.is_awaited.set(false);
    }
}

impl Signal {
    /// Something has changed.
    pub fn raise(&self) {
        self.raised.set(true);
        self.wake.wake();
    }

    /// Waits until something has changed since this last returned. The wait begins at once.
    pub fn begin_wait(&self) -> impl Future<Output = ()> {
        self.is_awaited.set(true);
        let waiting = WaitMark(self);
        async move {
            let WaitMark(signal) = &waiting;
            signal.wake.until(|| signal.raised.replace(false).then_some(())).await;
        }
    }

    /// Whether it is in a line.
    pub fn is_in_line(&self) -> bool {
        self.lines.get() > 0
    }

    /// What is asked for from here on is asked in a new turn.
    pub fn begin_turn(&self) {
        self.asked.set(false);
    }

    /// Whether it is in a line without need: it did not ask in this turn.
    pub fn waits_in_vain(&self) -> bool {
        self.is_in_line() && !self.asked.get()
    }
}

/// One who waits in line.
struct Waiter {
    signal: Rc<Signal>,
    /// How much it asked for.
    need: usize,
    /// It was told that it may ask again.
    told: bool,
}

/// Something of which there is so much, and those who wait for it.
pub struct Line {
    limit: usize,
    used: Cell<usize>,
    waiters: RefCell<VecDeque<Waiter>>,
}

impl Line {
    /// Of so much, with nobody in it.
    pub fn new(limit: usize) -> Self {
        Line { limit, used: Cell::default(), waiters: RefCell::default() }
    }

    /// How much of it is left.
    pub fn left(&self) -> usize {
        self.limit.saturating_sub(self.used.get())
    }

    /// How much of it is taken.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    /// Whether `need` fits beside so much. What is more than all there is gets through alone.
    fn fits(&self, beside: usize, need: usize) -> bool {
        beside == 0 || beside.saturating_add(need) <= self.limit
    }

    /// Whether `need` may be taken. If not, `signal` is in line until it asks for what fits, or
    /// [leaves](Self::leave).
    pub fn may_take(&self, need: usize, signal: &Rc<Signal>) -> bool {
        if need == 0 {
            return true;
        }
        let mut waiters = self.waiters.borrow_mut();
        let place = match signal.is_in_line() {
            true => waiters.iter().position(|waiter| Rc::ptr_eq(&waiter.signal, signal)),
            false => None,
        };
        let before = waiters.iter().take(place.unwrap_or(waiters.len()));
        let before = before.filter(|waiter| waiter.signal.is_awaited.get());
        let beside = before.fold(self.used.get(), |sum, waiter| sum.saturating_add(waiter.need));
        let fits = self.fits(beside, need);
        match place {
            Some(place) if fits => {
                waiters.remove(place);
                signal.lines.set(signal.lines.get() - 1);
            }
            Some(place) => (waiters[place].need, waiters[place].told) = (need, false),
            None if fits => {}
            None => {
                waiters.push_back(Waiter { signal: signal.clone(), need, told: false });
                signal.lines.set(signal.lines.get() + 1);
            }
        }
        if !fits {
            signal.asked.set(true);
        }
        fits
    }

    /// Whether `need` is left and nobody waits.
    pub fn has_spare(&self, need: usize) -> bool {
        need == 0 || self.is_empty() && self.fits(self.used.get(), need)
    }

    /// Somebody who had `before` has `after` now.
    pub fn change(&self, before: usize, after: usize) {
        self.used.set(self.used.get() + after - before);
        if after < before {
            self.tell();
        }
    }

    /// Tells those who may ask again.
    pub fn tell(&self) {
        let mut beside = self.used.get();
        let mut waiters = self.waiters.borrow_mut();
        for waiter in waiters.iter_mut().filter(|waiter| waiter.signal.is_awaited.get()) {
            if !self.fits(beside, waiter.need) {
                return;
            }
            beside = beside.saturating_add(waiter.need);
            if !std::mem::replace(&mut waiter.told, true) {
                waiter.signal.raise();
            }
        }
    }

    /// `signal` waits no more; whoever it held up is told.
    pub fn leave(&self, signal: &Rc<Signal>) {
        if !signal.is_in_line() {
            return;
        }
        let mut waiters = self.waiters.borrow_mut();
        let Some(place) = waiters.iter().position(|waiter| Rc::ptr_eq(&waiter.signal, signal))
        else {
            return;
        };
        waiters.remove(place);
        signal.lines.set(signal.lines.get() - 1);
        drop(waiters);
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits in line, and is told or not.
    fn waiting(line: &Line, need: usize) -> Rc<Signal> {
        let signal = Rc::new(Signal::default());
        assert!(!line.may_take(need, &signal));
        signal.is_awaited.set(true);
        signal
    }

    fn told(signals: &[&Rc<Signal>]) -> Vec<bool> {
        signals.iter().map(|signal| signal.raised.replace(false)).collect()
    }

    /// It runs, and asks again.
    fn asks(line: &Line, signal: &Rc<Signal>, need: usize) -> bool {
        signal.is_awaited.set(false);
        let may = line.may_take(need, signal);
        if may {
            line.change(0, need);
        } else {
            signal.is_awaited.set(true);
        }
        may
    }

    #[test]
    fn those_are_told_who_fit_in_the_order_in_which_they_came_and_nobody_else() {
        let line = Line::new(10);
        line.change(0, 10);
        let [a, b, c] = [4, 5, 1].map(|need| waiting(&line, need));
        line.change(10, 7);
        assert_eq!(told(&[&a, &b, &c]), [false; 3], "the first does not fit, and none goes before");
        line.change(7, 1);
        assert_eq!(told(&[&a, &b, &c]), [true, true, false]);
        line.change(1, 0);
        assert_eq!(told(&[&a, &b, &c]), [false, false, true], "nobody is told twice");
        assert!(!line.may_take(1, &Rc::default()), "who comes now comes after them");
        assert!(asks(&line, &c, 1) && asks(&line, &a, 4) && asks(&line, &b, 5));
        assert_eq!((line.left(), line.waiters.borrow().len()), (0, 1));
    }

    #[test]
    fn who_comes_later_takes_nothing_from_those_who_wait() {
        let line = Line::new(10);
        line.change(0, 8);
        let large = waiting(&line, 4);
        assert!(!line.may_take(1, &Rc::default()) && !line.has_spare(1));
        assert!(line.may_take(0, &Rc::default()) && line.has_spare(0), "nothing is nobody's");
        line.change(8, 0);
        assert!(!line.has_spare(1), "nor while it has not taken it yet");
        assert!(asks(&line, &large, 4));
    }

    #[test]
    fn what_is_more_than_all_gets_through_alone() {
        let line = Line::new(10);
        line.change(0, 1);
        let huge = waiting(&line, 50);
        line.change(1, 0);
        assert_eq!(told(&[&huge]), [true]);
        assert!(asks(&line, &huge, 50) && line.left() == 0);
    }

    #[test]
    fn who_stands_still_elsewhere_is_passed_over_and_keeps_its_place() {
        let line = Line::new(10);
        line.change(0, 10);
        let [still, next] = [5, 5].map(|need| waiting(&line, need));
        still.is_awaited.set(false);
        line.change(10, 5);
        assert_eq!(told(&[&still, &next]), [false, true]);
        assert!(asks(&line, &next, 5));
        still.is_awaited.set(true);
        line.tell();
        assert_eq!(told(&[&still]), [false]);
        line.change(5, 0);
        assert_eq!(told(&[&still]), [true]);
        assert!(asks(&line, &still, 5));
    }

    #[test]
    fn who_leaves_or_asks_for_nothing_more_holds_up_nobody() {
        let line = Line::new(10);
        line.change(0, 10);
        let [first, second] = [9, 2].map(|need| waiting(&line, need));
        line.change(10, 8);
        assert_eq!(told(&[&first, &second]), [false; 2]);
        assert!(!first.waits_in_vain());
        first.begin_turn();
        assert!(first.waits_in_vain());
        line.leave(&first);
        assert_eq!((told(&[&second]), first.is_in_line()), (vec![true], false));
        line.leave(&second);
        assert!(line.is_empty());
    }
}
