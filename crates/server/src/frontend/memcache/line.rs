//! Where requests wait that find too little of something: in the order in which they came.
//!
//! 1. Who asks may take what fits beside all who came before and still wait. Otherwise it is noted
//!    at the end of the line, or stays where it stands.
//! 2. Whenever something is given back, those are told who fit now, from the first on, and nobody
//!    else: one who does not fit holds up all behind it, so large requests do not starve.
//! 3. Who was told asks again. Who asks for nothing in its turn leaves.
//!
//! A taker has one place in line, whichever of its tasks asks. What goes *first* takes the place of
//! what the taker asked for besides: that is asked for again once the first has got its own.
//!
//! Those who have something could wait for each other for ever. So one who is *stuck*, because it
//! gives nothing back before it goes on, may go beyond the limit. The first in line of them does,
//! and no other before it has given as much back: it *owes* that. Where it is stuck it never waits
//! meanwhile, so it gives back what it owes, or is cut for standing still.
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

/// One who takes something, in however many tasks.
#[derive(Default)]
pub struct Taker {
    has: Cell<usize>,
    /// What of it is given back only once its own request goes on.
    keeps: Cell<usize>,
    is_in_line: Cell<bool>,
}

impl Taker {
    /// How much it has.
    pub fn has(&self) -> usize {
        self.has.get()
    }
}

/// Who asks.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    /// In whose name.
    pub taker: &'a Rc<Taker>,
    /// What tells the task that asks.
    pub signal: &'a Rc<Signal>,
    /// Nothing that the taker has is given back before this is done.
    pub goes_first: bool,
}

impl Asker<'_> {
    /// Whether it gives nothing back before it goes on.
    fn is_stuck(&self) -> bool {
        let Taker { has, keeps, .. } = &**self.taker;
        if self.goes_first { has.get() > 0 } else { keeps.get() > 0 }
    }
}

/// One who waits in line.
struct Waiter {
    taker: Rc<Taker>,
    signal: Rc<Signal>,
    goes_first: bool,
    /// Asked for something in the same name that does not go first.
    behind: Option<Rc<Signal>>,
    /// How much it asked for.
    need: usize,
    /// It was told that it may ask again.
    told: bool,
    /// It may take what it asked for, and has not done so yet.
    granted: bool,
}

impl Waiter {
    fn asker(&self) -> Asker<'_> {
        Asker { taker: &self.taker, signal: &self.signal, goes_first: self.goes_first }
    }

    fn can_go_on(&self) -> bool {
        self.signal.is_awaited.get()
    }
}

/// One who went beyond the limit, and how much it has not given back yet.
struct Debt {
    taker: Rc<Taker>,
    owes: usize,
}

/// Something of which there is so much, and those who wait for it.
pub struct Line {
    limit: usize,
    used: Cell<usize>,
    waiters: RefCell<VecDeque<Waiter>>,
    debt: RefCell<Option<Debt>>,
}

impl Line {
    /// Of so much, with nobody in it.
    pub fn new(limit: usize) -> Self {
        let (used, waiters, debt) = Default::default();
        Line { limit, used, waiters, debt }
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

    /// How many wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiters.borrow().len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    /// Whether `need` fits beside so much. What is more than all there is gets through alone.
    fn fits(&self, beside: usize, need: usize) -> bool {
        beside == 0 || beside.saturating_add(need) <= self.limit
    }

    /// Whether one who is stuck may go beyond the limit; `is_first` of those who are.
    fn may_go_beyond(&self, taker: &Rc<Taker>, is_first: bool) -> bool {
        self.debt.borrow().as_ref().map_or(is_first, |debt| Rc::ptr_eq(&debt.taker, taker))
    }

    /// Whether `need` may be taken. If not, the asker is in line until it takes what it may have,
    /// or [leaves](Self::leave). Who asks twice before it takes is answered from the same place.
    /// What does not go first waits behind what does.
    pub fn may_take(&self, need: usize, asker: Asker<'_>) -> bool {
        if need == 0 {
            return true;
        }
        let mut waiters = self.waiters.borrow_mut();
        let place = place_of(&waiters, asker.taker);
        if let Some(place) = place
            && waiters[place].goes_first
            && !asker.goes_first
        {
            waiters[place].behind = Some(asker.signal.clone());
            return false;
        }
        let before = waiters.iter().take(place.unwrap_or(waiters.len()));
        let before = before.filter(|waiter| waiter.can_go_on());
        let (beside, is_first) = before.fold((self.used.get(), true), |(sum, first), waiter| {
            (sum.saturating_add(waiter.need), first && !waiter.asker().is_stuck())
        });
        let may = self.fits(beside, need)
            || asker.is_stuck() && self.may_go_beyond(asker.taker, is_first);
        match place {
            Some(place) => stay(&mut waiters[place], need, may, asker),
            None if may => {}
            None => {
                asker.taker.is_in_line.set(true);
                asker.signal.lines.set(asker.signal.lines.get() + 1);
                let (taker, signal) = (asker.taker.clone(), asker.signal.clone());
                let (goes_first, behind) = (asker.goes_first, None);
                let (told, granted) = (false, false);
                waiters.push_back(Waiter {
                    taker,
                    signal,
                    goes_first,
                    behind,
                    need,
                    told,
                    granted,
                });
            }
        }
        if !may {
            asker.signal.asked.set(true);
        }
        may
    }

    /// Whether `need` is left and nobody waits.
    pub fn has_spare(&self, need: usize) -> bool {
        need == 0 || self.is_empty() && self.fits(self.used.get(), need)
    }

    /// `taker` has so much now. So much of it is given back only once its own request goes on.
    ///
    /// The race with a task of the taker that waits in line: the taker had nothing when it asked,
    /// and is stuck now. So it is told if it may go beyond the limit.
    pub fn change(&self, taker: &Rc<Taker>, has: usize, keeps: usize) {
        let (had, kept) = (taker.has.replace(has), taker.keeps.replace(keeps));
        self.used.set(self.used.get() + has - had);
        self.note_debt(taker, had);
        let mut waiters = self.waiters.borrow_mut();
        if has > had
            && let Some(place) = place_of(&waiters, taker)
            && waiters[place].granted
        {
            take_out(&mut waiters, place);
        }
        drop(waiters);
        let may_be_stuck = had == 0 && has > 0 || kept == 0 && keeps > 0;
        if has < had || may_be_stuck && taker.is_in_line.get() {
            self.tell();
        }
    }

    /// Notes what one who went beyond the limit owes, or gives back. Nobody owes within the limit.
    fn note_debt(&self, taker: &Rc<Taker>, had: usize) {
        let (beyond, has) = (self.used.get().saturating_sub(self.limit), taker.has());
        let mut debt = self.debt.borrow_mut();
        let owed = match &*debt {
            Some(debt) if !Rc::ptr_eq(&debt.taker, taker) => {
                (debt.taker.clone(), debt.owes.min(beyond))
            }
            Some(debt) => {
                let owes = (debt.owes + has).saturating_sub(had);
                (taker.clone(), owes.min(beyond))
            }
            None => (taker.clone(), has.saturating_sub(had).min(beyond)),
        };
        let (taker, owes) = owed;
        *debt = (owes > 0).then_some(Debt { taker, owes });
    }

    /// Tells those who may ask again.
    pub fn tell(&self) {
        let (mut beside, mut all_fit, mut is_first) = (self.used.get(), true, true);
        let mut waiters = self.waiters.borrow_mut();
        for waiter in waiters.iter_mut().filter(|waiter| waiter.can_go_on()) {
            all_fit = all_fit && self.fits(beside, waiter.need);
            beside = beside.saturating_add(waiter.need);
            let is_stuck = waiter.asker().is_stuck();
            let may = all_fit || is_stuck && self.may_go_beyond(&waiter.taker, is_first);
            is_first = is_first && !is_stuck;
            if may && !std::mem::replace(&mut waiter.told, true) {
                waiter.signal.raise();
            }
        }
    }

    /// Whom `signal` tells waits no more; whoever it held up is told.
    pub fn leave(&self, taker: &Rc<Taker>, signal: &Rc<Signal>) {
        let mut waiters = self.waiters.borrow_mut();
        let Some(place) = place_of(&waiters, taker) else { return };
        if Rc::ptr_eq(&waiters[place].signal, signal) {
            take_out(&mut waiters, place);
            drop(waiters);
            self.tell();
        } else {
            waiters[place].behind = None;
        }
    }
}

/// The place of a taker in line.
fn place_of(waiters: &VecDeque<Waiter>, taker: &Rc<Taker>) -> Option<usize> {
    match taker.is_in_line.get() {
        true => waiters.iter().position(|waiter| Rc::ptr_eq(&waiter.taker, taker)),
        false => None,
    }
}

/// Takes a waiter out of line. Who asked behind it asks again.
fn take_out(waiters: &mut VecDeque<Waiter>, place: usize) {
    let waiter = waiters.remove(place).expect("its place was found");
    waiter.taker.is_in_line.set(false);
    waiter.signal.lines.set(waiter.signal.lines.get() - 1);
    if let Some(behind) = waiter.behind {
        behind.raise();
    }
}

/// A waiter stays where it is, and so does what now goes first in its name.
fn stay(waiter: &mut Waiter, need: usize, may: bool, asker: Asker<'_>) {
    (waiter.need, waiter.told, waiter.granted) = (need, may, may);
    if !Rc::ptr_eq(&waiter.signal, asker.signal) {
        waiter.signal.lines.set(waiter.signal.lines.get() - 1);
        asker.signal.lines.set(asker.signal.lines.get() + 1);
        let before = std::mem::replace(&mut waiter.signal, asker.signal.clone());
        if !waiter.goes_first {
            waiter.behind = Some(before);
        }
        waiter.goes_first = asker.goes_first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One who asks.
    #[derive(Default)]
    struct One {
        taker: Rc<Taker>,
        signal: Rc<Signal>,
        goes_first: bool,
    }

    impl One {
        fn asker(&self) -> Asker<'_> {
            Asker { taker: &self.taker, signal: &self.signal, goes_first: self.goes_first }
        }

        /// It has so much, and keeps it until it goes on.
        fn has(&self, line: &Line, has: usize, keeps: usize) {
            line.change(&self.taker, has, keeps);
        }

        /// It waits in line, and is told or not.
        fn waiting(line: &Line, need: usize) -> One {
            let one = One::default();
            assert!(!one.asks(line, need));
            one
        }

        /// It has something, which it gives back only once what it asks for is done.
        fn stuck(line: &Line, has: usize) -> One {
            let one = One { goes_first: true, ..One::default() };
            one.has(line, has, 0);
            one
        }

        /// Something else is asked for in its name.
        fn besides(&self) -> One {
            One { taker: self.taker.clone(), ..One::default() }
        }

        /// It runs, and asks.
        fn asks(&self, line: &Line, need: usize) -> bool {
            self.signal.is_awaited.set(false);
            let may = line.may_take(need, self.asker());
            match may {
                true => self.has(line, self.taker.has() + need, self.taker.keeps.get()),
                false => self.signal.is_awaited.set(true),
            }
            may
        }
    }

    fn told(ones: &[&One]) -> Vec<bool> {
        ones.iter().map(|one| one.signal.raised.replace(false)).collect()
    }

    /// So much of ten, of which somebody has so much.
    fn taken(has: usize) -> (Line, One) {
        let (line, other) = (Line::new(10), One::default());
        other.has(&line, has, 0);
        (line, other)
    }

    #[test]
    fn those_are_told_who_fit_in_the_order_in_which_they_came_and_nobody_else() {
        let (line, other) = taken(10);
        let [a, b, c] = [4, 5, 1].map(|need| One::waiting(&line, need));
        other.has(&line, 7, 0);
        assert_eq!(told(&[&a, &b, &c]), [false; 3], "the first does not fit, and none goes before");
        other.has(&line, 1, 0);
        assert_eq!(told(&[&a, &b, &c]), [true, true, false]);
        other.has(&line, 0, 0);
        assert_eq!(told(&[&a, &b, &c]), [false, false, true], "nobody is told twice");
        let late = One::waiting(&line, 1);
        assert!(c.asks(&line, 1) && a.asks(&line, 4) && b.asks(&line, 5));
        assert_eq!((line.left(), line.waiters.borrow().len()), (0, 1));
        drop(late);
    }

    #[test]
    fn who_comes_later_takes_nothing_from_those_who_wait() {
        let (line, other) = taken(8);
        let large = One::waiting(&line, 4);
        assert!(!One::default().asks(&line, 1) && !line.has_spare(1));
        assert!(One::default().asks(&line, 0) && line.has_spare(0), "nothing is nobody's");
        other.has(&line, 0, 0);
        assert!(!line.has_spare(1), "nor while it has not taken it yet");
        assert!(large.asks(&line, 4));
    }

    #[test]
    fn what_is_more_than_all_gets_through_alone() {
        let (line, other) = taken(1);
        let huge = One::waiting(&line, 50);
        other.has(&line, 0, 0);
        assert_eq!(told(&[&huge]), [true]);
        assert!(huge.asks(&line, 50) && line.left() == 0);
    }

    #[test]
    fn who_stands_still_elsewhere_is_passed_over_and_keeps_its_place() {
        let (line, other) = taken(10);
        let [still, next] = [5, 5].map(|need| One::waiting(&line, need));
        still.signal.is_awaited.set(false);
        other.has(&line, 5, 0);
        assert_eq!(told(&[&still, &next]), [false, true]);
        assert!(next.asks(&line, 5));
        still.signal.is_awaited.set(true);
        line.tell();
        assert_eq!(told(&[&still]), [false]);
        other.has(&line, 0, 0);
        assert_eq!(told(&[&still]), [true]);
        assert!(still.asks(&line, 5));
    }

    #[test]
    fn who_leaves_or_asks_for_nothing_more_holds_up_nobody() {
        let (line, other) = taken(10);
        let [first, second] = [9, 2].map(|need| One::waiting(&line, need));
        other.has(&line, 8, 0);
        assert_eq!(told(&[&first, &second]), [false; 2]);
        assert!(!first.signal.waits_in_vain());
        first.signal.begin_turn();
        assert!(first.signal.waits_in_vain());
        line.leave(&first.taker, &first.signal);
        assert_eq!((told(&[&second]), first.signal.is_in_line()), (vec![true], false));
        line.leave(&second.taker, &second.signal);
        assert!(line.is_empty());
    }

    #[test]
    fn those_who_are_stuck_go_beyond_the_limit_one_after_the_other() {
        let (line, other) = taken(6);
        let large = One::waiting(&line, 9);
        let [a, b] = [2, 2].map(|has| One::stuck(&line, has));
        assert!(a.asks(&line, 5), "the first of those who are stuck, though not of those who wait");
        assert!(!b.asks(&line, 5) && line.used() == 15);
        other.has(&line, 4, 0);
        assert_eq!(told(&[&large, &b]), [false; 2], "what another gives back is not what it owes");
        a.has(&line, 5, 0);
        assert_eq!(told(&[&large, &b]), [false; 2]);
        assert!(a.asks(&line, 2), "who owes never waits");
        a.has(&line, 2, 0);
        assert_eq!(told(&[&large, &b]), [false, true]);
        assert!(b.asks(&line, 5));
        b.has(&line, 0, 0);
        a.has(&line, 0, 0);
        other.has(&line, 1, 0);
        assert_eq!(told(&[&large]), [true]);
    }

    #[test]
    fn what_goes_first_takes_the_place_of_what_its_taker_asked_for_before() {
        let (line, other) = taken(10);
        let [besides, next] = [1, 3].map(|need| One::waiting(&line, need));
        let first = One { goes_first: true, ..besides.besides() };
        assert!(!first.asks(&line, 8) && !besides.asks(&line, 1));
        assert!(first.signal.is_in_line() && !besides.signal.is_in_line());
        assert_eq!(line.waiters.borrow().len(), 2);
        other.has(&line, 8, 0);
        assert_eq!(told(&[&first, &besides, &next]), [false; 3]);
        other.has(&line, 2, 0);
        assert_eq!(told(&[&first, &besides, &next]), [true, false, false]);
        assert!(first.asks(&line, 8));
        assert_eq!(told(&[&besides]), [true], "it asks again, at the end of the line");
        assert!(!besides.asks(&line, 1));
        first.has(&line, 7, 0);
        assert_eq!(told(&[&next, &besides]), [false; 2]);
        first.has(&line, 0, 0);
        assert_eq!(told(&[&next, &besides]), [true; 2]);
        line.leave(&besides.taker, &first.signal);
        assert!(besides.signal.is_in_line(), "it is not the one that left");
    }

    #[test]
    fn who_comes_to_be_stuck_in_line_is_told() {
        let (line, _other) = taken(9);
        let [keeps, first] = [5, 5].map(|need| One::waiting(&line, need));
        keeps.has(&line, 1, 0);
        assert_eq!(told(&[&keeps]), [false], "what it has it gives back by and by");
        keeps.has(&line, 1, 1);
        assert_eq!(told(&[&keeps, &first]), [true, false]);
        assert!(keeps.asks(&line, 5));
    }
}
