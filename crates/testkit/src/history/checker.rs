//! Judges a history of one-key reads and writes: no read may be older than what was known to be
//! written when it began.
//!
//! The checker is sound: it never accuses a correct register, even with unknown outcomes. See
//! [`check`] for what it proves.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// Set the key to `value` (`null`: deleted it).
    Write,
    /// Found `value` (`null`: no such key).
    Read,
}

/// One operation as a client saw it. Times are nanoseconds on one clock for all clients of a
/// history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Read or write.
    pub op: OperationKind,
    /// The key, by number.
    pub key: u64,
    /// The value by its number, unique per key among writes; `None` is absence.
    pub value: Option<u64>,
    /// Before the request was sent.
    pub start: u64,
    /// After the answer was received. `None`: a write whose outcome is unknown (error, connection
    /// lost). Reads without an answer are not events.
    pub end: Option<u64>,
    /// The write's timestamp in the database if the client chose it: then writes have a total
    /// order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<u64>,
}

/// What is wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Older than a write that was acknowledged before the read began.
    Stale,
    /// Older than what another read had already returned before this one began.
    WentBack,
    /// Nobody ever wrote this value to this key.
    NeverWritten,
    /// The write of this value began after the read had ended.
    FromTheFuture,
}

/// A read that cannot be explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// What is wrong.
    pub fault: Fault,
    /// The read.
    pub read: Event,
    /// The newer write that the read should have seen (or a later one).
    pub missed: Option<Event>,
}

/// A history that cannot be judged: the recorder is at fault.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum HistoryError {
    /// Two writes of one value.
    #[error("key {key}: value {value} was written twice; values of a key must be unique")]
    Duplicate {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
    },
    /// A read without an end, or an end before the start.
    #[error("key {key}: an event starting at {start} has no end or ends before it starts")]
    Times {
        /// The key.
        key: u64,
        /// Its start.
        start: u64,
    },
    /// Some writes of a key have an order and some have not.
    #[error("key {0}: either all writes have `order` or none")]
    MixedOrder(u64),
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Reads judged.
    pub reads: u64,
    /// Writes known to have happened.
    pub acknowledged: u64,
    /// Writes of unknown outcome.
    pub unknown: u64,
    /// Everything that is wrong, by the start of the read.
    pub violations: Vec<Violation>,
}

/// Judges all reads.
///
/// A write is *known* from the moment its acknowledgement arrived or, earlier, a read that returned
/// it ended. A read that began after write B was known must not return write A if A is before B.
/// With `order` that order decides. Without it, A must have been known before B began: overlapping
/// writes may have taken effect either way. A write of unknown outcome may be seen or not, until a
/// later one is known.
pub fn check(events: &[Event]) -> Result<Verdict, HistoryError> {
    let mut verdict = Verdict::default();
    for (key, (writes, mut reads)) in by_key(events)? {
        reads.sort_by_key(|r| r.start);
        verdict.reads += reads.len() as u64;
        verdict.acknowledged += writes.iter().filter(|w| w.end.is_some()).count() as u64;
        verdict.unknown += writes.iter().filter(|w| w.end.is_none()).count() as u64;
        KeyHistory::new(key, &writes, &reads)?.judge(&reads, &mut verdict.violations);
    }
    verdict.violations.sort_by_key(|v| (v.read.start, v.read.key));
    Ok(verdict)
}

/// The writes that reads which start after `at` may still return. A history can be judged in parts;
/// each begins with what this returns of the part before it. A write of unknown outcome that a read
/// has returned comes back as known. Events that end after `at` are yet to come, like the end of a
/// value's time to live.
pub fn residue(events: &[Event], at: u64) -> Result<Vec<Event>, HistoryError> {
    let mut rest = Vec::new();
    for (key, (writes, reads)) in by_key(events)? {
        rest.extend(KeyHistory::new(key, &writes, &reads)?.residue(at));
    }
    Ok(rest)
}

/// Writes and reads of each key.
type Keys<'a> = HashMap<u64, (Vec<&'a Event>, Vec<&'a Event>)>;

fn by_key(events: &[Event]) -> Result<Keys<'_>, HistoryError> {
    let mut keys: Keys<'_> = HashMap::new();
    for event in events {
        let times = match (event.op, event.end) {
            (_, Some(end)) => end >= event.start,
            (OperationKind::Write, None) => true,
            (OperationKind::Read, None) => false,
        };
        if !times {
            return Err(HistoryError::Times { key: event.key, start: event.start });
        }
        let (writes, reads) = keys.entry(event.key).or_default();
        if event.op == OperationKind::Write { writes.push(event) } else { reads.push(event) }
    }
    Ok(keys)
}

const NEVER: u64 = u64::MAX;

/// A write, or the absence before the first one.
struct KnownWrite<'a> {
    event: Option<&'a Event>,
    value: Option<u64>,
    start: u64,
    acknowledged: u64,
    /// When it was known at the latest: acknowledged, or seen by a read that ended.
    known: u64,
    /// A later write "begins" above what an earlier one "finished" at: start and known, or both the
    /// order.
    begin: u64,
    finish: u64,
}

struct KeyHistory<'a> {
    writes: Vec<KnownWrite<'a>>,
    by_value: HashMap<Option<u64>, Vec<usize>>,
}

impl<'a> KeyHistory<'a> {
    fn new(key: u64, events: &[&'a Event], reads: &[&Event]) -> Result<Self, HistoryError> {
        let ordered = events.iter().filter(|e| e.order.is_some()).count();
        if ordered != 0 && ordered != events.len() {
            return Err(HistoryError::MixedOrder(key));
        }
        let absence = KnownWrite {
            event: None,
            value: None,
            start: 0,
            acknowledged: 0,
            known: 0,
            begin: 0,
            finish: 0,
        };
        let mut writes = vec![absence];
        writes.extend(events.iter().map(|&e| {
            let acknowledged = e.end.unwrap_or(NEVER);
            let value = e.value;
            KnownWrite {
                event: Some(e),
                value,
                start: e.start,
                acknowledged,
                known: acknowledged,
                begin: 0,
                finish: 0,
            }
        }));
        let mut by_value: HashMap<Option<u64>, Vec<usize>> = HashMap::new();
        for (i, write) in writes.iter().enumerate() {
            let same = by_value.entry(write.value).or_default();
            same.push(i);
            if let (Some(value), true) = (write.value, same.len() > 1) {
                return Err(HistoryError::Duplicate { key, value });
            }
        }
        for read in reads {
            // Absence may stem from several deletes: which one a read saw is not known.
            if let (Some(_), Some(&[i])) =
                (read.value, by_value.get(&read.value).map(Vec::as_slice))
            {
                writes[i].known = writes[i].known.min(read.end.unwrap_or(NEVER));
            }
        }
        for write in writes.iter_mut().skip(1) {
            let order = write.event.and_then(|e| e.order);
            write.begin = order.unwrap_or(write.start);
            write.finish = order.unwrap_or(write.known);
        }
        Ok(Self { writes, by_value })
    }

    fn residue(&self, at: u64) -> impl Iterator<Item = Event> {
        let known = self.writes.iter().filter(move |w| w.known <= at);
        let newest = known.map(|w| w.begin).max().unwrap_or(0);
        self.writes.iter().filter(move |w| w.finish >= newest).filter_map(|w| {
            let end = (w.known != NEVER).then_some(w.known);
            w.event.map(|event| Event { end, ..event.clone() })
        })
    }

    fn judge(&self, reads: &[&Event], violations: &mut Vec<Violation>) {
        let mut acknowledged = Frontier::new(&self.writes, |w| w.acknowledged);
        let mut known = Frontier::new(&self.writes, |w| w.known);
        for read in reads {
            let (acknowledged, known) = (acknowledged.at(read.start), known.at(read.start));
            if let Some((fault, newest)) = self.fault(read, acknowledged, known) {
                let missed = newest.and_then(|i| self.writes[i].event).cloned();
                violations.push(Violation { fault, read: (*read).clone(), missed });
            }
        }
    }

    fn fault(
        &self,
        read: &Event,
        acknowledged: usize,
        known: usize,
    ) -> Option<(Fault, Option<usize>)> {
        let Some(candidates) = self.by_value.get(&read.value) else {
            return Some((Fault::NeverWritten, None));
        };
        let begun =
            || candidates.iter().filter(|&&i| self.writes[i].start <= read.end.unwrap_or(NEVER));
        if begun().next().is_none() {
            return Some((Fault::FromTheFuture, None));
        }
        let newer =
            |frontier: usize| begun().all(|&i| self.writes[i].finish < self.writes[frontier].begin);
        if newer(acknowledged) {
            Some((Fault::Stale, Some(acknowledged)))
        } else if newer(known) {
            Some((Fault::WentBack, Some(known)))
        } else {
            None
        }
    }
}

/// The newest write (by `begin`) among those settled before a moment, for moments asked for in
/// ascending order.
struct Frontier<'a, 'b> {
    writes: &'b [KnownWrite<'a>],
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    newest: usize,
}

impl<'a, 'b> Frontier<'a, 'b> {
    fn new(writes: &'b [KnownWrite<'a>], settled: impl Fn(&KnownWrite) -> u64) -> Self {
        let waiting =
            writes.iter().enumerate().skip(1).map(|(i, w)| Reverse((settled(w), i))).collect();
        Self { writes, waiting, newest: 0 }
    }

    fn at(&mut self, moment: u64) -> usize {
        while let Some(&Reverse((settled, i))) = self.waiting.peek()
            && settled < moment
        {
            self.waiting.pop();
            if self.writes[i].begin >= self.writes[self.newest].begin {
                self.newest = i;
            }
        }
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: impl Into<Option<u64>>, start: u64, end: impl Into<Option<u64>>) -> Event {
        Event {
            op: OperationKind::Write,
            key: 1,
            value: value.into(),
            start,
            end: end.into(),
            order: None,
        }
    }

    fn stamped(value: u64, start: u64, end: impl Into<Option<u64>>, order: u64) -> Event {
        Event { order: Some(order), ..write(value, start, end) }
    }

    fn read(value: impl Into<Option<u64>>, start: u64, end: u64) -> Event {
        Event {
            op: OperationKind::Read,
            key: 1,
            value: value.into(),
            start,
            end: Some(end),
            order: None,
        }
    }

    fn faults(events: &[Event]) -> Vec<Fault> {
        check(events).unwrap().violations.iter().map(|v| v.fault).collect()
    }

    #[test]
    fn a_planted_stale_read_is_found_and_explained() {
        let events = [write(1, 0, 10), write(2, 20, 30), read(2, 40, 50), read(1, 60, 70)];
        let verdict = check(&events).unwrap();
        assert_eq!(verdict.violations.len(), 1);
        assert_eq!(verdict.violations[0].fault, Fault::Stale);
        assert_eq!(verdict.violations[0].read, events[3]);
        assert_eq!(verdict.violations[0].missed, Some(events[1].clone()));
        assert_eq!((verdict.reads, verdict.acknowledged, verdict.unknown), (2, 2, 0));
    }

    #[test]
    fn a_read_that_began_before_the_acknowledgement_may_return_either() {
        assert_eq!(faults(&[write(1, 0, 10), write(2, 20, 30), read(1, 25, 50)]), []);
        assert_eq!(faults(&[write(1, 0, 10), write(2, 20, 30), read(2, 25, 50)]), []);
        assert_eq!(
            faults(&[write(1, 0, 10), write(2, 20, 30), read(1, 30, 50)]),
            [],
            "at the very moment"
        );
        assert_eq!(faults(&[write(1, 0, 10), write(2, 20, 30), read(1, 31, 50)]), [Fault::Stale]);
    }

    #[test]
    fn overlapping_writes_may_have_happened_in_either_order() {
        assert_eq!(faults(&[write(1, 0, 20), write(2, 10, 30), read(1, 40, 50)]), []);
        assert_eq!(faults(&[write(1, 0, 20), write(2, 10, 30), read(2, 40, 50)]), []);
    }

    #[test]
    fn timestamps_put_overlapping_writes_in_order() {
        let writes = [stamped(1, 0, 20, 100), stamped(2, 10, 30, 101)];
        let with = |r: Event| faults(&[writes[0].clone(), writes[1].clone(), r]);
        assert_eq!(with(read(1, 40, 50)), [Fault::Stale]);
        assert_eq!(with(read(2, 40, 50)), []);
        assert_eq!(with(read(1, 25, 50)), [], "the second was not acknowledged yet");
    }

    #[test]
    fn an_unknown_write_may_be_seen_or_not_until_superseded() {
        let unknown = [write(1, 0, 10), write(2, 20, None)];
        let with = |more: &[Event]| faults(&[&unknown[..], more].concat());
        assert_eq!(with(&[read(1, 1000, 1010)]), []);
        assert_eq!(with(&[read(2, 1000, 1010)]), []);
        assert_eq!(with(&[read(1, 30, 40), read(2, 1000, 1010)]), [], "it may arrive late");
        assert_eq!(
            with(&[read(2, 30, 40), read(1, 50, 60)]),
            [Fault::WentBack],
            "once new, never old again"
        );
        assert_eq!(with(&[write(3, 50, 60), read(1, 70, 80)]), [Fault::Stale]);
    }

    #[test]
    fn an_unknown_write_with_a_timestamp_is_superseded_by_a_later_one() {
        let events = [stamped(2, 20, None, 5), stamped(3, 50, 60, 6), read(2, 70, 80)];
        assert_eq!(faults(&events), [Fault::Stale]);
    }

    #[test]
    fn absence_is_a_value() {
        assert_eq!(faults(&[read(None, 0, 5), write(1, 10, 20), read(None, 15, 30)]), []);
        assert_eq!(faults(&[write(1, 10, 20), read(None, 30, 40)]), [Fault::Stale], "a lost row");
        let deleted = [write(1, 10, 20), write(None, 30, 40)];
        assert_eq!(faults(&[&deleted[..], &[read(None, 50, 60)]].concat()), []);
        assert_eq!(
            faults(&[&deleted[..], &[read(1, 50, 60)]].concat()),
            [Fault::Stale],
            "risen from the dead"
        );
        let again = [
            write(1, 0, 5),
            write(None, 10, 20),
            write(2, 30, 40),
            write(None, 50, 60),
            read(None, 70, 80),
        ];
        assert_eq!(faults(&again), []);
    }

    #[test]
    fn values_from_nowhere_and_from_the_future_are_named() {
        assert_eq!(faults(&[write(1, 0, 10), read(9, 20, 30)]), [Fault::NeverWritten]);
        assert_eq!(faults(&[read(1, 0, 5), write(1, 10, 20)]), [Fault::FromTheFuture]);
    }

    #[test]
    fn keys_are_judged_apart() {
        let other = Event { key: 2, ..write(7, 50, 60) };
        assert_eq!(faults(&[write(1, 0, 10), other, read(1, 100, 110)]), []);
    }

    #[test]
    fn unusable_histories_are_refused() {
        assert_eq!(
            check(&[write(1, 0, 1), write(1, 2, 3)]),
            Err(HistoryError::Duplicate { key: 1, value: 1 })
        );
        assert_eq!(check(&[write(1, 5, 1)]), Err(HistoryError::Times { key: 1, start: 5 }));
        assert_eq!(check(&[write(1, 0, 1), stamped(2, 2, 3, 9)]), Err(HistoryError::MixedOrder(1)));
    }

    #[test]
    fn what_is_left_of_a_part_judges_the_next_one() {
        let part = [
            stamped(1, 0, 10, 100),
            stamped(2, 20, 30, 101),
            stamped(3, 22, None, 102),
            stamped(4, 24, None, 90),
            stamped(5, 26, None, 103),
            read(3, 40, 50),
        ];
        let rest = residue(&part, 50).unwrap();
        let left: Vec<_> = rest.iter().map(|e| (e.value, e.end)).collect();
        assert_eq!(left, [(Some(3), Some(50)), (Some(5), None)], "1, 2 and 4 cannot come back");
        let next = |read: Event| faults(&[&rest[..], &[read]].concat());
        assert_eq!(next(read(3, 60, 70)), []);
        assert_eq!(next(read(5, 60, 70)), []);
        assert_eq!(next(read(2, 60, 70)), [Fault::NeverWritten]);
        assert_eq!(next(read(None, 60, 70)), [Fault::Stale]);
    }

    #[test]
    fn a_history_judged_in_parts_is_judged_alike() {
        let all = [
            write(1, 0, 10),
            read(1, 12, 14),
            write(2, 20, None),
            write(None, 30, 40),
            read(None, 50, 60),
        ];
        for cut in 0..all.len() {
            let mut second = residue(&all[..cut], 60).unwrap();
            second.extend_from_slice(&all[cut..]);
            assert_eq!(faults(&second), [], "cut at {cut}");
            second.push(read(1, 70, 80));
            assert_eq!(check(&second).unwrap().violations.len(), 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_value_whose_end_is_yet_to_come_may_still_be_read_in_the_next_part() {
        let end = Event { order: Some(101), ..write(None, 90, 110) };
        let part = [stamped(1, 0, 10, 90), stamped(2, 20, 30, 100), end];
        let rest = residue(&part, 50).unwrap();
        let next = |read: Event| faults(&[&rest[..], &[read]].concat());
        assert_eq!(next(read(2, 60, 70)), []);
        assert_eq!(next(read(1, 60, 70)), [Fault::NeverWritten]);
        assert_eq!(next(read(None, 60, 70)), [Fault::Stale], "it has not ended yet");
        assert_eq!(next(read(None, 95, 100)), []);
        assert_eq!(next(read(2, 120, 130)), [Fault::Stale], "it has ended");
    }

    /// A simulated register with a stale cache in front: honest runs are never accused, and the
    /// planted fault always is.
    #[test]
    fn random_honest_histories_pass_and_sabotaged_ones_do_not() {
        use afterglow_loadgen::rng::Rng;
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut events, mut now, mut current, mut next) = (Vec::new(), 0, None, 1);
            for _ in 0..200 {
                now += 1 + rng.below(5);
                let (start, applied, end) = (now, now + rng.below(4), now + 4 + rng.below(4));
                if rng.below(4) == 0 {
                    let lost = rng.below(10) == 0;
                    let happens = !lost || rng.below(2) == 0;
                    events.push(write(next, start, (!lost).then_some(end)));
                    current = if happens { Some(next) } else { current };
                    next += 1;
                } else {
                    events.push(read(current, start, end));
                }
                now = now.max(applied) + 5;
            }
            assert_eq!(faults(&events), [], "seed {seed}");
            let (first, last) =
                (write(next, now + 10, now + 11), write(next + 1, now + 20, now + 21));
            events.extend([first, last, read(next, now + 30, now + 31)]);
            assert_eq!(faults(&events), [Fault::Stale], "seed {seed}");
        }
    }
}
