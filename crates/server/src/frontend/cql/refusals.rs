//! Back-pressure to who asks for whole tables in vain.
//!
//! While a statement over whole tables is unanswered, nothing of them is served from the cache. The
//! database may refuse it, also to who has no right to it. Somebody who sends such statements one
//! after the other would keep the tables unserved for everybody.
//!
//! 1. A refusal says how long the tables were unserved. Such statements of the user are held for
//!    ten times as long after it, and for longer with every refusal in a row. The connection does
//!    not matter: to connect anew is cheap. Of who has not logged in, those of the connection are.
//! 2. Then one is sent, as a trial. The others are held until its answer is known.
//! 3. If it is taken, all that are held are sent, and nothing is held any more. If it is refused,
//!    this begins anew. An answer that says nothing of the statement itself changes nothing: the
//!    next one is the trial.
//! 4. A refusal is forgotten ten times as long after it as it holds statements.
//!
//! No statement is held for more than [`LONGEST`]: what would be is not sent.
//!
//! Invariant: of a user whose statements are sent and refused one after the other, no more than a
//! tenth of the time passes while one of them is under way.
//!
//! Not bounded: what comes at once before anything was refused, and who connects anew to a database
//! that asks for no login.

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
/// More of those that are held are noted only once the ones that have left are taken out, and from
/// then on once twice as many as are left.
const MOST_NOTED: usize = 4096;

/// What the answer to a statement says of its client's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The database refused the statement itself.
    Refused,
    /// The database carried it out.
    Taken,
    /// Neither: no answer, a node that cannot do it now, or there was nothing to do.
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

/// The statements over whole tables of one user, or of one connection without one.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<RefusalsState>);

#[derive(Debug, Default)]
struct RefusalsState {
    in_a_row: u32,
    /// None if nothing was refused, or that is forgotten.
    last: Option<HeldUntil>,
    /// The number of the trial that is under way.
    trial: Option<u64>,
    trials: u64,
    /// Those that are held, and some that were.
    held: Vec<Sender<()>>,
    /// How many are noted before those that have left are taken out.
    noted: usize,
}

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
    of: Arc<Refusals>,
    number: u64,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let mut state = self.of.0.lock();
        // If the refusal was forgotten meanwhile, another trial may be under way.
        if state.trial == Some(self.number) {
            state.trial = None;
            wake(state.held.split_off(0));
        }
    }
}

impl Refusals {
    /// Whether a statement may be sent now.
    pub fn turn(self: &Arc<Self>, now: Instant) -> VainTurn {
        let mut state = self.0.lock();
        let Some(HeldUntil { next, forgotten }) = state.last else { return VainTurn::Free };
        if now >= forgotten {
            state.forget();
            return VainTurn::Free;
        }
        if state.trial.is_some() {
            return VainTurn::AfterTrial(forgotten - now);
        }
        if now < next {
            return VainTurn::Later(next - now);
        }
        state.trials += 1;
        state.trial = Some(state.trials);
        VainTurn::Trial(Trial { of: self.clone(), number: state.trials })
    }

    /// A statement was answered now, so long after it was sent.
    pub fn note(&self, ended: Ended, took: Duration, now: Instant) {
        let mut state = self.0.lock();
        match ended {
            Ended::Unsaid => {}
            Ended::Taken => state.forget(),
            Ended::Refused => {
                let in_a_row = state.in_a_row.saturating_add(1);
                state.in_a_row = in_a_row;
                let grown = took.saturating_mul(LEAST_TIMES.saturating_add(in_a_row));
                let pause = grown.min(LONGEST).max(took.saturating_mul(LEAST_TIMES));
                let (next, forgotten) = (now + pause, now + pause * FORGOTTEN_AFTER);
                let last = state.last.unwrap_or(HeldUntil { next, forgotten });
                // Never sooner because another is refused.
                let last = HeldUntil {
                    next: last.next.max(next),
                    forgotten: last.forgotten.max(forgotten),
                };
                debug_assert!(last.next <= last.forgotten, "one may be sent before all may");
                state.last = Some(last);
            }
        }
    }

    /// Is told when those that are held are to ask again. Other reactors may change that at any
    /// time, so whoever is to be held asks for its turn after this.
    pub fn changed(&self) -> Receiver<()> {
        let (tell, changed) = oneshot::channel();
        let mut state = self.0.lock();
        if state.held.len() >= state.noted.max(MOST_NOTED) {
            state.held.retain(|one| !one.is_canceled());
            state.noted = 2 * state.held.len();
        }
        state.held.push(tell);
        changed
    }

    /// Has all that are held ask again.
    pub fn wake(&self) {
        wake(self.0.lock().held.split_off(0));
    }
}

impl RefusalsState {
    fn forget(&mut self) {
        self.in_a_row = 0;
        self.last = None;
        self.trial = None;
        wake(self.held.split_off(0));
    }
}

/// A task that is woken asks for its turn later, whoever has the lock now.
fn wake(held: Vec<Sender<()>>) {
    // Destructors of a task that panics come here.
    wake_in_drop(|| {
        for one in held {
            let _ = one.send(()); // it may have left
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Waits for its turn. How long it waited, and the trial that it is.
    fn sent(refusals: &Arc<Refusals>, now: &mut Instant) -> (Duration, Option<Trial>) {
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

    fn is_free(refusals: &Arc<Refusals>, now: Instant) -> bool {
        matches!(refusals.turn(now), VainTurn::Free)
    }

    #[test]
    fn of_a_user_in_vain_a_tenth_of_the_time_is_under_way_at_most() {
        for took in [MS / 10, MS, 7 * MS, 90 * MS, 200 * MS, 500 * MS, 2_000 * MS] {
            let (refusals, began) = (Arc::new(Refusals::default()), Instant::now());
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
        let (refusals, began) = (Arc::new(Refusals::default()), Instant::now());
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
    fn of_statements_that_come_at_once_one_is_sent_and_its_answer_decides() {
        let (refusals, mut now) = (Arc::new(Refusals::default()), Instant::now());
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
        let (refusals, now) = (Arc::new(Refusals::default()), Instant::now());
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
        assert!(refusals.0.lock().held.len() <= MOST_NOTED);
        // Many that stay are not looked through each time, and those that leave are taken out.
        let many: Vec<_> = (0..3 * MOST_NOTED).map(|_| refusals.changed()).collect();
        drop(many);
        (0..6 * MOST_NOTED).for_each(|_| drop(refusals.changed()));
        assert!(refusals.0.lock().held.len() <= MOST_NOTED);
        refusals.wake();
        assert_eq!(stays.try_recv(), Ok(Some(())));
        assert!(refusals.0.lock().held.is_empty());
    }
}
