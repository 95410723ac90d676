//! Back-pressure to who asks for whole tables in vain.
//!
//! While a statement over whole tables is unanswered, nothing of them is served from the cache. The
//! database may refuse it, also to who has no right to it. Somebody who sends such statements one
//! after the other would keep the tables unserved for everybody.
//!
//! 1. A refusal says how long the tables were unserved. Such statements of the connection are held
//!    for ten times as long after it, and for longer with every refusal in a row.
//! 2. Then one is sent, as a trial. The others are held until its answer is known.
//! 3. If it is taken, all that are held are sent, and nothing is held any more. If it is refused,
//!    this begins anew. An answer that says nothing of the statement itself changes nothing: the
//!    next one is the trial.
//!    A change of the schema may find nothing to change, such as `DROP INDEX IF EXISTS`. It may
//!    need no right, so it counts as a refusal. Many in a row are common, so it holds statements
//!    for nine times as long as it took, for a second at most, and for no longer if there are more.
//! 4. A refusal is forgotten ten times as long after it as it holds statements.
//! 5. A new connection begins where the last refusal has left its user: to connect anew is cheap.
//!    Connections that are there are not held for it, as many clients may be one user.
//!
//! No statement is held for more than [`LONGEST`]: what would be is not sent.
//!
//! Invariant: of a connection whose statements are sent and refused one after the other, no more
//! than a tenth of the time passes while one of them is under way. So it is of those that find
//! nothing to change, if they take no longer than a ninth of a second.
//!
//! Not bounded: what comes at once before anything was refused, on however many connections. Nor is
//! who connects anew to a database that asks for no login.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_channel::oneshot::{self, Receiver, Sender};
use parking_lot::Mutex;

use crate::reactor::wake_in_drop;

/// At least so many times as long as a refused statement took passes before the next is sent. With
/// the time that it took itself, a tenth of the time is under way.
const LEAST_TIMES: u32 = 9;
/// No statement is held longer, and no pause grows longer by the number of refusals.
pub const LONGEST: Duration = Duration::from_secs(1);
/// A refusal is forgotten after so many pauses.
const FORGOTTEN_AFTER: u32 = 10;
/// More of those that are held are noted only once the ones that have left are taken out. A
/// connection has fewer requests under way than half of that.
const MOST_NOTED: usize = 4096;

/// What the answer to a statement says of its client's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The database refused the statement itself.
    Refused,
    /// The database carried it out.
    Taken,
    /// There was nothing to do, which may need no right.
    Needless,
    /// Neither: no answer, or a node that cannot do it now.
    Unsaid,
}

/// Whether a statement may be sent.
#[derive(Debug)]
pub enum VainTurn {
    /// It may, and others too.
    Free,
    /// It may, and others may not before this is dropped.
    Trial(Trial),
    /// Not before so long.
    Later(Duration),
    /// Not before the trial has ended, or so long at most.
    AfterTrial(Duration),
}

/// The statements over whole tables of one connection.
#[derive(Debug, Default)]
pub struct Refusals {
    in_a_row: Cell<u32>,
    /// None if nothing was refused, or that is forgotten.
    last: Cell<Option<HeldUntil>>,
    /// The number of the trial that is under way.
    trial: Cell<Option<u64>>,
    trials: Cell<u64>,
    /// Those that are held, and some that were.
    held: RefCell<Vec<Sender<()>>>,
    /// Where new connections of its user begin, if it has one.
    user: RefCell<Option<Arc<LastRefusal>>>,
}

/// What was refused to a user last, on any connection and reactor.
#[derive(Debug, Default)]
pub struct LastRefusal(Mutex<Option<(u32, HeldUntil)>>);

/// Until when what was refused holds others.
#[derive(Debug, Clone, Copy)]
struct HeldUntil {
    /// One may be sent then.
    next: Instant,
    /// All may. Never before `next`.
    forgotten: Instant,
}

/// The one statement that is sent to see whether it is refused too.
#[derive(Debug)]
pub struct Trial {
    of: Rc<Refusals>,
    number: u64,
}

impl Drop for Trial {
    fn drop(&mut self) {
        // If the refusal was forgotten meanwhile, another trial may be under way.
        if self.of.trial.get() == Some(self.number) {
            self.of.trial.set(None);
            self.of.wake();
        }
    }
}

impl Refusals {
    /// The connection is this user's from now on.
    pub fn log_in(&self, user: &Arc<LastRefusal>) {
        if let Some((in_a_row, last)) = *user.0.lock() {
            self.in_a_row.set(in_a_row);
            self.last.set(Some(last));
        }
        self.user.replace(Some(user.clone()));
    }

    /// Whether a statement may be sent now.
    pub fn turn(self: &Rc<Self>, now: Instant) -> VainTurn {
        let Some(HeldUntil { next, forgotten }) = self.last.get() else { return VainTurn::Free };
        if now >= forgotten {
            self.forget();
            return VainTurn::Free;
        }
        if self.trial.get().is_some() {
            return VainTurn::AfterTrial(forgotten - now);
        }
        if now < next {
            return VainTurn::Later(next - now);
        }
        let number = self.trials.get() + 1;
        self.trials.set(number);
        self.trial.set(Some(number));
        VainTurn::Trial(Trial { of: self.clone(), number })
    }

    /// A statement was answered now, so long after it was sent.
    pub fn note(&self, ended: Ended, took: Duration, now: Instant) {
        match ended {
            Ended::Unsaid => {}
            Ended::Taken => self.forget(),
            // Whoever sends one after the other is never told that it was held for too long.
            Ended::Needless => self.hold(took.saturating_mul(LEAST_TIMES).min(LONGEST), now),
            Ended::Refused => {
                let in_a_row = self.in_a_row.get().saturating_add(1);
                self.in_a_row.set(in_a_row);
                let grown = took.saturating_mul(LEAST_TIMES.saturating_add(in_a_row));
                let pause = grown.min(LONGEST).max(took.saturating_mul(LEAST_TIMES));
                self.hold(pause, now);
            }
        }
    }

    /// Holds statements for so long from now on.
    fn hold(&self, pause: Duration, now: Instant) {
        let (next, forgotten) = (now + pause, now + pause * FORGOTTEN_AFTER);
        let last = self.last.get().unwrap_or(HeldUntil { next, forgotten });
        // Never sooner because another is refused.
        let last =
            HeldUntil { next: last.next.max(next), forgotten: last.forgotten.max(forgotten) };
        debug_assert!(last.next <= last.forgotten, "one may be sent before all may");
        self.last.set(Some(last));
        if let Some(user) = &*self.user.borrow() {
            // Of several connections at once the last one counts, whichever that is.
            *user.0.lock() = Some((self.in_a_row.get(), last));
        }
    }

    /// Is told when those that are held are to ask again.
    pub fn changed(&self) -> Receiver<()> {
        let (tell, changed) = oneshot::channel();
        let mut held = self.held.borrow_mut();
        if held.len() >= MOST_NOTED {
            held.retain(|one| !one.is_canceled());
        }
        held.push(tell);
        changed
    }

    /// Has all that are held ask again.
    pub fn wake(&self) {
        let held = self.held.take();
        // Destructors of a task that panics come here.
        wake_in_drop(|| {
            for one in held {
                let _ = one.send(()); // it may have left
            }
        });
    }

    fn forget(&self) {
        self.in_a_row.set(0);
        self.last.set(None);
        self.trial.set(None);
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Waits for its turn. How long it waited, and the trial that it is.
    fn sent(refusals: &Rc<Refusals>, now: &mut Instant) -> (Duration, Option<Trial>) {
        match refusals.turn(*now) {
            VainTurn::Free => (Duration::ZERO, None),
            VainTurn::Trial(trial) => (Duration::ZERO, Some(trial)),
            VainTurn::AfterTrial(_) => panic!("no trial is under way"),
            VainTurn::Later(wait) => {
                *now += wait;
                let VainTurn::Trial(trial) = refusals.turn(*now) else {
                    panic!("its turn has come")
                };
                (wait, Some(trial))
            }
        }
    }

    fn is_free(refusals: &Rc<Refusals>, now: Instant) -> bool {
        matches!(refusals.turn(now), VainTurn::Free)
    }

    #[test]
    fn of_a_connection_in_vain_a_tenth_of_the_time_is_under_way_at_most() {
        for took in [MS / 10, MS, 7 * MS, 90 * MS, 200 * MS, 500 * MS, 2_000 * MS] {
            let (refusals, began) = (Rc::new(Refusals::default()), Instant::now());
            let (mut now, mut under_way, mut longest) = (began, Duration::ZERO, Duration::ZERO);
            for _ in 0..2_000 {
                let (wait, trial) = sent(&refusals, &mut now);
                longest = longest.max(wait);
                now += took;
                under_way += took;
                refusals.note(Ended::Refused, took, now);
                drop(trial);
            }
            sent(&refusals, &mut now);
            assert!(under_way * 10 <= now - began, "{took:?}");
            assert!(longest <= LONGEST.max(took * 9), "{took:?}");
            assert!(longest > took * 200 || longest >= LONGEST, "{took:?}: it grows");
        }
    }

    #[test]
    fn a_few_refusals_in_a_row_cost_little() {
        // As of a tool that tries changes of the schema that were made long ago.
        let (refusals, began) = (Rc::new(Refusals::default()), Instant::now());
        let mut now = began;
        for _ in 0..20 {
            let (_, trial) = sent(&refusals, &mut now);
            now += 2 * MS;
            refusals.note(Ended::Refused, 2 * MS, now);
            drop(trial);
        }
        assert!(now - began < Duration::from_secs(1));
        // What the database takes waits once, and ends it.
        let (_, trial) = sent(&refusals, &mut now);
        refusals.note(Ended::Taken, 2 * MS, now);
        assert!(is_free(&refusals, now));
        drop(trial);
        refusals.note(Ended::Refused, 2 * MS, now);
        assert_eq!(sent(&refusals, &mut now).0, 20 * MS);
    }

    #[test]
    fn what_finds_nothing_to_do_is_held_as_long_each_time_and_for_a_second_at_most() {
        for (took, pause) in [(2 * MS, 18 * MS), (500 * MS, LONGEST)] {
            let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
            for times in 0..200 {
                let (wait, trial) = sent(&refusals, &mut now);
                assert_eq!(wait, if times == 0 { Duration::ZERO } else { pause });
                now += took;
                refusals.note(Ended::Needless, took, now);
                drop(trial);
            }
            // A new connection of its user is no way round it, and what is taken ends it.
            let user = Arc::default();
            refusals.log_in(&user);
            refusals.note(Ended::Needless, took, now);
            let another = Rc::new(Refusals::default());
            another.log_in(&user);
            assert_eq!(sent(&another, &mut now).0, pause);
            refusals.note(Ended::Taken, took, now);
            assert!(is_free(&refusals, now));
        }
    }

    #[test]
    fn of_statements_that_come_at_once_one_is_sent_and_its_answer_decides() {
        let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
        assert!((0..100).all(|_| is_free(&refusals, now)), "nothing was refused yet");
        refusals.note(Ended::Refused, 20 * MS, now);
        assert!(
            (0..100)
                .all(|_| matches!(refusals.turn(now), VainTurn::Later(wait) if wait == 200 * MS))
        );
        // Nor is any sent sooner when another is refused.
        refusals.note(Ended::Refused, MS, now + 20 * MS);
        now += 200 * MS;
        let held = |now| matches!(refusals.turn(now), VainTurn::AfterTrial(_));
        let trial = sent(&refusals, &mut now).1.unwrap();
        let mut changed = refusals.changed();
        assert!((0..100).all(|_| held(now)));
        // No answer of the statement itself: the next one is the trial, and at once.
        refusals.note(Ended::Unsaid, 500 * MS, now);
        assert!(held(now) && changed.try_recv() == Ok(None));
        drop(trial);
        assert_eq!(changed.try_recv(), Ok(Some(())));
        let VainTurn::Trial(trial) = refusals.turn(now) else { panic!("nobody is under way") };
        assert!((0..100).all(|_| held(now)));
        let mut changed = refusals.changed();
        refusals.note(Ended::Taken, MS, now);
        assert_eq!(changed.try_recv(), Ok(Some(())));
        assert!((0..100).all(|_| is_free(&refusals, now)), "it was taken");
        drop(trial);
    }

    #[test]
    fn a_refusal_is_forgotten() {
        let (refusals, now) = (Rc::new(Refusals::default()), Instant::now());
        refusals.note(Ended::Refused, 200 * MS, now);
        // 1.8 s at least, where a tenth is to hold.
        let VainTurn::Later(pause) = refusals.turn(now) else { panic!("it was refused") };
        assert_eq!(pause, 1_800 * MS);
        let just_before = now + 10 * pause - MS;
        let VainTurn::Trial(old) = refusals.turn(just_before) else { panic!("not forgotten yet") };
        let VainTurn::AfterTrial(left) = refusals.turn(just_before) else { panic!("one is sent") };
        assert_eq!(left, MS);
        let forgotten = now + 10 * pause;
        assert!((0..100).all(|_| is_free(&refusals, forgotten)));
        // It begins anew, and a trial of before does not end the next one.
        refusals.note(Ended::Refused, MS, forgotten);
        let mut now = forgotten;
        let (wait, trial) = sent(&refusals, &mut now);
        assert_eq!(wait, 10 * MS);
        drop(old);
        assert!(matches!(refusals.turn(now), VainTurn::AfterTrial(_)));
        drop(trial);
        assert!(matches!(refusals.turn(now), VainTurn::Trial(_)));
    }

    #[test]
    fn those_that_have_left_are_not_noted_for_ever() {
        let refusals = Refusals::default();
        let mut stays = refusals.changed();
        (0..3 * MOST_NOTED).for_each(|_| drop(refusals.changed()));
        assert!(refusals.held.borrow().len() <= MOST_NOTED);
        refusals.wake();
        assert_eq!(stays.try_recv(), Ok(Some(())));
        assert!(refusals.held.borrow().is_empty());
    }

    #[test]
    fn a_new_connection_begins_where_its_user_was_left_and_others_do_not() {
        let (eve, bob, mut now) = (Arc::default(), Arc::default(), Instant::now());
        let connect = |user: &Arc<LastRefusal>| {
            let connection = Rc::new(Refusals::default());
            connection.log_in(user);
            connection
        };
        let there = connect(&eve);
        for waits in [0, 10, 11, 12] {
            let connection = connect(&eve);
            assert_eq!(sent(&connection, &mut now).0, MS * waits);
            connection.note(Ended::Refused, MS, now);
        }
        assert!(is_free(&there, now), "one that was there before");
        assert!(is_free(&connect(&bob), now), "another user's");
        // It may show that it has the right to it; that is no word for those to come.
        let honest = connect(&eve);
        assert_eq!(sent(&honest, &mut now).0, MS * 13);
        honest.note(Ended::Taken, MS, now);
        assert!(is_free(&honest, now) && !is_free(&connect(&eve), now));
        now += 10 * MS * 13;
        assert!(is_free(&connect(&eve), now), "forgotten");
    }
}
