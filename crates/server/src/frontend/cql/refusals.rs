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
//!    next one is the trial. Nor does one that was sent before statements were held: who sends one
//!    that is taken along with those that are not is held all the same.
//! 4. A refusal is forgotten ten times as long after it as it holds statements.
//! 5. A new connection begins where the last refusal has left its user: to connect anew is cheap.
//!    Connections that are there are not held for it, as many clients may be one user.
//!
//! A statement that would be held for more than [`LONGEST`] is not sent. Nobody is turned away
//! whose statements come one after the other: each is held for as long as a slow refusal asks for.
//!
//! None is held for more than [`LONGEST_OF_ALL`]. Otherwise it might be sent after its client has
//! given it up, and remove what was written since.
//!
//! A change of the schema may find nothing to change, such as `DROP INDEX IF EXISTS`. It may need
//! no right, so it holds others too. But tools send many, and their users have the right. So it is
//! milder than a refusal while nothing was refused:
//!
//! - Statements are held for as long as it took, and for no longer if there are more.
//! - They are sent one after the other, within [`LONGEST_OF_ALL`].
//! - Once one is taken, new connections of the user are not held either.
//!
//! Invariant: of a connection whose statements are sent and refused one after the other, no more
//! than a tenth of the time passes while one of them is under way; of those that find nothing to
//! change half of it. It is more where one takes longer than 1.1 s or 10 s.
//!
//! Not bounded: what comes at once before anything was refused, on however many connections. Nor is
//! who connects anew to a database that asks for no login.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_channel::oneshot::{self, Receiver, Sender};
use parking_lot::Mutex;

use crate::reactor::wake_in_drop;

/// At least so many times as long as a refused statement took passes before the next is sent. With
/// the time that it took itself, a tenth of the time is under way.
const LEAST_TIMES: u32 = 9;
/// A statement is held longer only if one refusal asks for it. No pause grows longer by the number
/// of refusals.
const LONGEST: Duration = Duration::from_secs(1);
/// No statement is held longer: drivers wait for so long.
const LONGEST_OF_ALL: Duration = Duration::from_secs(10);
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
    /// It changed nothing, which may need no right.
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
    /// Not before the trial has ended.
    AfterTrial,
}

/// The statements over whole tables of one connection.
#[derive(Debug, Default)]
pub struct Refusals {
    in_a_row: Cell<u32>,
    /// None if nothing was refused, or that is forgotten.
    last: Cell<Option<HeldUntil>>,
    /// The number of the trial that is under way, and when it began.
    trial: Cell<Option<(u64, Instant)>>,
    trials: Cell<u64>,
    /// Those that are held, and some that were.
    held: RefCell<VecDeque<Sender<()>>>,
    /// Where new connections of its user begin, if it has one.
    user: RefCell<Option<Arc<LastRefusal>>>,
}

/// What was refused to a user last, on any connection and reactor.
#[derive(Debug, Default)]
pub struct LastRefusal(Mutex<Option<(u32, HeldUntil)>>);

/// Until when what was refused, or changed nothing, holds others.
#[derive(Debug, Clone, Copy)]
struct HeldUntil {
    /// When the first of them was answered.
    since: Instant,
    /// One may be sent then.
    next: Instant,
    /// All may. Never before `next`.
    forgotten: Instant,
    /// From the answer that came last to `next`; the longest there was.
    pause: Duration,
    /// Until when the refusals among them are remembered; none if there was none.
    refused: Option<Instant>,
}

impl HeldUntil {
    /// None of them was refused, or that is forgotten.
    fn is_mild(&self, now: Instant) -> bool {
        self.refused.is_none_or(|until| now >= until)
    }

    /// Nothing is sent sooner because there is another.
    fn and(self, other: HeldUntil) -> HeldUntil {
        HeldUntil {
            since: self.since.min(other.since),
            next: self.next.max(other.next),
            forgotten: self.forgotten.max(other.forgotten),
            pause: self.pause.max(other.pause),
            refused: self.refused.max(other.refused),
        }
    }
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
        if self.of.trial.get().is_some_and(|(number, _)| number == self.number) {
            self.of.trial.set(None);
            self.of.wake_next();
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
        let Some(HeldUntil { next, forgotten, .. }) = self.last.get() else {
            return VainTurn::Free;
        };
        match self.trial.get() {
            // One that takes long keeps nobody waiting for ever: there is another one beside it.
            Some((_, began)) if now < forgotten.max(began + LONGEST) => {
                return VainTurn::AfterTrial;
            }
            None if now >= forgotten => {
                self.forget();
                return VainTurn::Free;
            }
            _ => {}
        }
        if now < next {
            return VainTurn::Later(next - now);
        }
        let number = self.trials.get() + 1;
        self.trials.set(number);
        self.trial.set(Some((number, now)));
        VainTurn::Trial(Trial { of: self.clone(), number })
    }

    /// For how much longer a statement is held that came then, if it has no turn before.
    pub fn patience(&self, came: Instant, now: Instant) -> Duration {
        let longest = match self.last.get() {
            Some(last) if last.is_mild(now) => LONGEST_OF_ALL,
            Some(last) => LONGEST.max(last.pause),
            None => LONGEST,
        };
        (came + longest).saturating_duration_since(now)
    }

    /// A statement was answered now. It kept tables from being served since `sent`.
    pub fn note(&self, ended: Ended, sent: Instant, now: Instant) {
        let took = now.duration_since(sent);
        match ended {
            Ended::Unsaid => {}
            Ended::Taken => self.free(sent, now),
            Ended::Needless => self.hold(took, false, now),
            Ended::Refused => {
                let is_next = self.last.get().is_some_and(|last| !last.is_mild(now));
                let in_a_row = if is_next { self.in_a_row.get().saturating_add(1) } else { 1 };
                self.in_a_row.set(in_a_row);
                let grown = took.saturating_mul(LEAST_TIMES.saturating_add(in_a_row));
                let pause = grown.min(LONGEST).max(took.saturating_mul(LEAST_TIMES));
                self.hold(pause, true, now);
            }
        }
    }

    /// Holds statements for so long from now on.
    fn hold(&self, pause: Duration, is_refused: bool, now: Instant) {
        let pause = pause.min(LONGEST_OF_ALL);
        let forgotten = now + pause * FORGOTTEN_AFTER;
        let refused = is_refused.then_some(forgotten);
        let new = HeldUntil { since: now, next: now + pause, forgotten, pause, refused };
        let is_there = |held: &HeldUntil| now < held.forgotten;
        let last = self.last.get().filter(is_there).map_or(new, |last| last.and(new));
        debug_assert!(last.next <= last.forgotten, "one may be sent before all may");
        self.last.set(Some(last));
        if let Some(user) = &*self.user.borrow() {
            let mut of_user = user.0.lock();
            let (in_a_row, held) = of_user.filter(|(_, held)| is_there(held)).unwrap_or((0, last));
            *of_user = Some((in_a_row.max(self.in_a_row.get()), held.and(last)));
        }
    }

    /// One was taken that was sent then.
    fn free(&self, sent: Instant, now: Instant) {
        let Some(last) = self.last.get().filter(|last| last.since <= sent) else { return };
        if let Some(user) = &*self.user.borrow() {
            let mut of_user = user.0.lock();
            // Not for what holds others for longer: this connection was not held for that.
            let is_over = |held: HeldUntil| held.is_mild(now) && held.next <= last.next;
            if of_user.is_some_and(|(_, held)| is_over(held)) {
                *of_user = None;
            }
        }
        self.forget();
    }

    /// Is told when those that are held are to ask again.
    pub fn changed(&self) -> Receiver<()> {
        let (tell, changed) = oneshot::channel();
        let mut held = self.held.borrow_mut();
        if held.len() >= MOST_NOTED {
            held.retain(|one| !one.is_canceled());
        }
        held.push_back(tell);
        changed
    }

    /// Has the one ask again that is held for longest. If it is not sent it is to call this too.
    pub fn wake_next(&self) {
        let mut held = self.held.borrow_mut();
        let next = std::iter::from_fn(|| held.pop_front()).find(|one| !one.is_canceled());
        if let Some(next) = next {
            // Destructors of a task that panics come here.
            wake_in_drop(|| {
                let _ = next.send(()); // it may have left
            });
        }
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

    /// A statement was answered so, so long after it was sent.
    fn note(refusals: &Rc<Refusals>, ended: Ended, took: Duration, now: Instant) {
        refusals.note(ended, now - took, now);
    }

    /// Waits for its turn. How long it waited, and the trial that it is.
    fn sent(refusals: &Rc<Refusals>, now: &mut Instant) -> (Duration, Option<Trial>) {
        match refusals.turn(*now) {
            VainTurn::Free => (Duration::ZERO, None),
            VainTurn::Trial(trial) => (Duration::ZERO, Some(trial)),
            VainTurn::AfterTrial => panic!("no trial is under way"),
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
        for took in [MS / 10, MS, 7 * MS, 90 * MS, 200 * MS, 500 * MS, 1_000 * MS] {
            let (refusals, began) = (Rc::new(Refusals::default()), Instant::now());
            let (mut now, mut under_way, mut longest) = (began, Duration::ZERO, Duration::ZERO);
            for _ in 0..2_000 {
                let (wait, trial) = sent(&refusals, &mut now);
                longest = longest.max(wait);
                now += took;
                under_way += took;
                note(&refusals, Ended::Refused, took, now);
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
            note(&refusals, Ended::Refused, 2 * MS, now);
            drop(trial);
        }
        assert!(now - began < Duration::from_secs(1));
        // What the database takes waits once, and ends it.
        let (_, trial) = sent(&refusals, &mut now);
        note(&refusals, Ended::Taken, 2 * MS, now);
        assert!(is_free(&refusals, now));
        drop(trial);
        note(&refusals, Ended::Refused, 2 * MS, now);
        assert_eq!(sent(&refusals, &mut now).0, 20 * MS);
    }

    #[test]
    fn of_a_connection_that_finds_nothing_to_change_half_of_the_time_is_under_way_at_most() {
        for took in [MS / 10, 2 * MS, 500 * MS, 5_000 * MS] {
            let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
            for times in 0..200 {
                let (wait, trial) = sent(&refusals, &mut now);
                assert_eq!(wait, if times == 0 { Duration::ZERO } else { took }, "and no less");
                now += took;
                note(&refusals, Ended::Needless, took, now);
                drop(trial);
            }
        }
    }

    /// A client that waits for longer has given it up, and may have written since.
    #[test]
    fn a_statement_is_held_for_no_longer_than_its_client_waits() {
        let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
        let patience = |came, now| refusals.patience(came, now);
        note(&refusals, Ended::Needless, 100 * MS, now);
        assert_eq!(patience(now - 300 * MS, now), LONGEST_OF_ALL - 300 * MS);
        assert_eq!(patience(now - LONGEST_OF_ALL, now), Duration::ZERO);
        note(&refusals, Ended::Refused, 5 * MS, now);
        assert_eq!(patience(now - 300 * MS, now), LONGEST - 300 * MS);
        // What changes nothing comes all the time. The refusal is forgotten after ten pauses.
        for _ in 0..3 {
            now += 200 * MS;
            note(&refusals, Ended::Needless, 100 * MS, now);
        }
        assert_eq!(patience(now, now), LONGEST_OF_ALL);
        note(&refusals, Ended::Refused, 20 * MS, now);
        let VainTurn::Later(wait) = refusals.turn(now) else { panic!("it was refused") };
        assert_eq!(wait, 200 * MS, "it is the first in a row");
    }

    /// The database may be slow for a moment, and the next statement an honest one.
    #[test]
    fn a_statement_that_comes_alone_is_sent_however_slow_the_last_was() {
        for ended in [Ended::Refused, Ended::Needless] {
            for took in [50 * MS, 200 * MS, 900 * MS, 5_000 * MS, 30_000 * MS] {
                let (refusals, now) = (Rc::new(Refusals::default()), Instant::now());
                note(&refusals, ended, took, now);
                let VainTurn::Later(wait) = refusals.turn(now) else { panic!("it is held") };
                assert!(wait <= refusals.patience(now, now), "{ended:?} after {took:?}");
                assert!(wait <= LONGEST_OF_ALL);
            }
        }
    }

    #[test]
    fn what_is_taken_ends_the_holding_for_what_is_needless_also_for_new_connections() {
        let (user, mut now) = (Arc::default(), Instant::now());
        let connect = || {
            let connection = Rc::new(Refusals::default());
            connection.log_in(&user);
            connection
        };
        let [one, other] = [0; 2].map(|_| connect());
        note(&one, Ended::Needless, 20 * MS, now);
        let new = connect();
        assert_eq!(sent(&new, &mut now).0, 20 * MS, "to connect anew is no way round it");
        let (_, trial) = sent(&one, &mut now);
        note(&one, Ended::Taken, Duration::ZERO, now);
        drop(trial);
        assert!(is_free(&one, now) && is_free(&connect(), now));
        // Not where another connection was held since, or was refused something.
        for (ended, took) in [(Ended::Needless, 20 * MS), (Ended::Refused, MS)] {
            note(&one, Ended::Needless, 10 * MS, now);
            note(&other, ended, took, now);
            let (_, trial) = sent(&one, &mut now);
            note(&one, Ended::Taken, Duration::ZERO, now);
            drop(trial);
            assert!(is_free(&one, now) && !is_free(&connect(), now), "{ended:?}");
            now += 1_000 * MS;
            assert!(is_free(&other, now));
        }
    }

    #[test]
    fn what_was_sent_before_others_were_held_does_not_end_that() {
        for ended in [Ended::Needless, Ended::Refused] {
            let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
            // Sent with the other, and taken later than that was answered.
            note(&refusals, ended, 2 * MS, now);
            note(&refusals, Ended::Taken, 3 * MS, now + MS);
            assert!(!is_free(&refusals, now + MS), "{ended:?}");
            let trial = sent(&refusals, &mut now).1;
            note(&refusals, ended, MS, now + MS);
            note(&refusals, Ended::Taken, 2 * MS, now + 2 * MS);
            assert!(is_free(&refusals, now + 2 * MS), "the trial was taken");
            drop(trial);
        }
    }

    #[test]
    fn a_user_is_left_where_the_longest_holding_leaves_one() {
        let (user, mut now) = (Arc::default(), Instant::now());
        let connections = [0; 2].map(|_| {
            let connection = Rc::new(Refusals::default());
            connection.log_in(&user);
            connection
        });
        (0..3).for_each(|_| note(&connections[0], Ended::Refused, 50 * MS, now));
        // It does not end that.
        note(&connections[1], Ended::Refused, MS, now);
        let new = Rc::new(Refusals::default());
        new.log_in(&user);
        let (wait, trial) = sent(&new, &mut now);
        assert_eq!(wait, 50 * MS * 12);
        note(&new, Ended::Refused, MS, now);
        drop(trial);
        assert_eq!(sent(&new, &mut now).0, MS * 13);
    }

    /// Each that is held asks seldom, however many there are.
    #[test]
    fn of_those_that_are_held_one_asks_again_when_a_trial_ends() {
        let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
        note(&refusals, Ended::Needless, MS, now);
        let trial = sent(&refusals, &mut now).1;
        let [gone, mut first, mut second] = [0; 3].map(|_| refusals.changed());
        drop(gone);
        note(&refusals, Ended::Needless, MS, now);
        drop(trial);
        assert_eq!((first.try_recv(), second.try_recv()), (Ok(Some(())), Ok(None)));
        // It is not sent.
        refusals.wake_next();
        assert_eq!(second.try_recv(), Ok(Some(())));
    }

    #[test]
    fn of_statements_that_come_at_once_one_is_sent_and_its_answer_decides() {
        let (refusals, mut now) = (Rc::new(Refusals::default()), Instant::now());
        assert!((0..100).all(|_| is_free(&refusals, now)), "nothing was refused yet");
        note(&refusals, Ended::Refused, 20 * MS, now);
        assert!(
            (0..100)
                .all(|_| matches!(refusals.turn(now), VainTurn::Later(wait) if wait == 200 * MS))
        );
        // Nor is any sent sooner when another is refused.
        note(&refusals, Ended::Refused, MS, now + 20 * MS);
        now += 200 * MS;
        let held = |now| matches!(refusals.turn(now), VainTurn::AfterTrial);
        let trial = sent(&refusals, &mut now).1.unwrap();
        let mut changed = refusals.changed();
        assert!((0..100).all(|_| held(now)));
        // No answer of the statement itself: the next one is the trial, and at once.
        note(&refusals, Ended::Unsaid, 500 * MS, now);
        assert!(held(now) && changed.try_recv() == Ok(None));
        drop(trial);
        assert_eq!(changed.try_recv(), Ok(Some(())));
        let VainTurn::Trial(trial) = refusals.turn(now) else { panic!("nobody is under way") };
        assert!((0..100).all(|_| held(now)));
        let mut changed = refusals.changed();
        note(&refusals, Ended::Taken, MS, now);
        assert_eq!(changed.try_recv(), Ok(Some(())));
        assert!((0..100).all(|_| is_free(&refusals, now)), "it was taken");
        drop(trial);
    }

    #[test]
    fn a_refusal_is_forgotten() {
        let (refusals, now) = (Rc::new(Refusals::default()), Instant::now());
        note(&refusals, Ended::Refused, 200 * MS, now);
        // 1.8 s at least, where a tenth is to hold.
        let VainTurn::Later(pause) = refusals.turn(now) else { panic!("it was refused") };
        assert_eq!(pause, 1_800 * MS);
        let just_before = now + 10 * pause - MS;
        let VainTurn::Trial(old) = refusals.turn(just_before) else { panic!("not forgotten yet") };
        let forgotten = now + 10 * pause;
        let is_held = |now| matches!(refusals.turn(now), VainTurn::AfterTrial);
        assert!(is_held(just_before) && is_held(forgotten), "a trial is under way");
        // It takes long: one goes beside it, and no more.
        let VainTurn::Trial(beside) = refusals.turn(just_before + LONGEST) else { panic!("held") };
        drop(old);
        assert!(is_held(just_before + LONGEST));
        drop(beside);
        assert!((0..100).all(|_| is_free(&refusals, forgotten)));
        // It begins anew, and a trial of before does not end the next one.
        let mut now = forgotten;
        note(&refusals, Ended::Refused, MS, now);
        let old = sent(&refusals, &mut now).1;
        note(&refusals, Ended::Taken, Duration::ZERO, now);
        note(&refusals, Ended::Refused, MS, now);
        let (wait, trial) = sent(&refusals, &mut now);
        assert_eq!(wait, 10 * MS);
        drop(old);
        assert!(matches!(refusals.turn(now), VainTurn::AfterTrial));
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
            note(&connection, Ended::Refused, MS, now);
        }
        assert!(is_free(&there, now), "one that was there before");
        assert!(is_free(&connect(&bob), now), "another user's");
        // It may show that it has the right to it; that is no word for those to come.
        let honest = connect(&eve);
        assert_eq!(sent(&honest, &mut now).0, MS * 13);
        note(&honest, Ended::Taken, MS, now);
        assert!(is_free(&honest, now) && !is_free(&connect(&eve), now));
        now += 10 * MS * 13;
        assert!(is_free(&connect(&eve), now), "forgotten");
    }
}
