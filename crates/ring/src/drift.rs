//! Whether the clocks of other members run like ours, as far as their answers to PINGs show.
//!
//! A PONG says the answerer's clock. It was read after the PING was sent and before the answer
//! came. So each answer bounds the offset of the two clocks, and two answers bound how far the
//! offset has moved between them. Clocks that run within ρ move it by ρ of the time at most. What
//! exceeds that is proof, however slow the network is: of a rate beyond ρ, or of a clock that has
//! stepped or stood still.
//!
//! * Each answer is compared with the tightest of a minute before.
//! * A member that was seen to drift is *suspect* until the clocks have run alike for two minutes.
//! * A suspect gets no promise, so it has no lease from then on.
//! * Whoever drifts against more members than it runs like is *odd*: the fault is most likely its
//!   own. It accuses nobody for that and does not join. Of two members both are odd.

use std::collections::BTreeMap;

use crate::config::Time;
use crate::identity::{Incarnation, MemberId};
use crate::map::Map;

/// An answer is compared with one that is at least half as old and at most so old.
const WINDOW: Time = 60_000_000;

/// Each of the four readings of a clock is rounded down to a microsecond, and so is the bound.
const ROUNDED: i128 = 5;

/// What one answer shows: the other's clock less ours.
#[derive(Debug, Clone, Copy)]
struct Offset {
    /// Our clock before and after theirs was read.
    between: (Time, Time),
    low: i128,
    high: i128,
}

impl Offset {
    fn width(&self) -> i128 {
        self.high - self.low
    }
}

#[derive(Debug, Clone)]
struct Peer {
    /// Its process: a machine that starts anew has another clock.
    life: Incarnation,
    reference: Offset,
    /// The tightest since half a window, which is the next reference.
    next: Option<Offset>,
    /// When it was last seen to drift.
    drifted: Option<Time>,
}

#[derive(Debug, Default, Clone)]
pub struct Drifts {
    peers: BTreeMap<MemberId, Peer>,
}

impl Drifts {
    /// A member has answered at `now` a PING that was sent at `sent`; its clock was at `theirs`.
    /// `rho`: see [`Config::rho`](crate::Config).
    pub fn answered(
        &mut self,
        (who, life): (MemberId, Incarnation),
        (sent, now, theirs): (Time, Time, Time),
        rho: u64,
    ) {
        let theirs = i128::from(theirs);
        let seen = Offset {
            between: (sent, now),
            low: theirs - i128::from(now),
            high: theirs - i128::from(sent),
        };
        let begin = || Peer { life, reference: seen, next: None, drifted: None };
        let peer = self.peers.entry(who).or_insert_with(begin);
        if peer.life != life {
            *peer = Peer { drifted: peer.drifted, ..begin() };
            return;
        }
        // The most time between the two readings of their clock. An answer that comes late, or
        // again, may be of before the reference.
        let (before, after) = peer.reference.between;
        let elapsed = now.saturating_sub(before).max(after.saturating_sub(sent));
        let bound = i128::from(elapsed) * i128::from(rho) / 1_000_000 + ROUNDED;
        let moved = (seen.low - peer.reference.high).max(peer.reference.low - seen.high);
        if moved > bound {
            *peer = Peer { drifted: Some(now), ..begin() };
            return;
        }
        if elapsed >= WINDOW / 2 {
            let tightest = peer.next.filter(|next| next.width() <= seen.width());
            peer.next = Some(tightest.unwrap_or(seen));
        }
        if elapsed >= WINDOW {
            peer.reference = peer.next.take().unwrap_or(seen);
        }
    }

    /// Whether the clock of this member was seen to drift against ours lately.
    pub fn is_suspect(&self, who: MemberId, now: Time) -> bool {
        let drifted = self.peers.get(&who).and_then(|peer| peer.drifted);
        drifted.is_some_and(|at| now < at + 2 * WINDOW)
    }

    /// The active members whose clocks were seen to drift against ours lately.
    pub fn suspects(&self, map: &Map, now: Time) -> Vec<MemberId> {
        let ids = map.active().map(|member| member.identity.id);
        ids.filter(|who| self.is_suspect(*who, now)).collect()
    }

    /// Whether our own clock is most likely the one that drifts.
    pub fn is_odd(&self, map: &Map, me: MemberId, now: Time) -> bool {
        let others = map.active().filter(|member| member.identity.id != me).count();
        2 * self.suspects(map, now).len() > others
    }

    /// Forgets who is no member.
    pub fn adopted(&mut self, map: &Map) {
        self.peers.retain(|who, _| map.entry(*who).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Profile;

    const A: MemberId = MemberId(1);
    const RHO: u64 = 1_000;
    const SECOND: Time = 1_000_000;

    /// Answers five times a second for so long, of a clock that is a function of ours.
    fn run(
        drifts: &mut Drifts,
        from: Time,
        seconds: u64,
        trip: Time,
        clock: impl Fn(Time) -> Time,
    ) {
        for n in 0..seconds * 5 {
            let sent = from + n * SECOND / 5;
            // It comes late by turns, and is read early or late on its way.
            let late = trip * (n % 7) / 7;
            let now = sent + trip + late;
            let read = sent + (trip + late) * (n % 5) / 5;
            drifts.answered((A, Incarnation(1)), (sent, now, clock(read)), RHO);
        }
    }

    #[test]
    fn clocks_within_the_bound_are_never_suspect_however_slow_the_network_is() {
        let rates: [&dyn Fn(Time) -> Time; 3] =
            [&|t| 77 + t + t / 1_001, &|t| 7_000_000_000 + t - t / 1_001, &|t| t + 5];
        for clock in rates {
            for trip in [200, 50_000, 1_400_000] {
                let mut drifts = Drifts::default();
                run(&mut drifts, 9 * SECOND, 600, trip, clock);
                assert!(!drifts.is_suspect(A, 609 * SECOND), "{trip}");
            }
        }
    }

    #[test]
    fn a_clock_beyond_the_bound_is_found_soon_and_forgiven_later() {
        // A hundredth too fast or too slow; a twentieth more than the bound allows.
        let rates: [(&dyn Fn(Time) -> Time, u64); 4] = [
            (&|t| t + t / 100, 2),
            (&|t| 9_000_000_000 + t - t / 100, 2),
            (&|t| t + t * 21 / 20_000, 90),
            (&|t| 9_000_000_000 + t - t * 21 / 20_000, 90),
        ];
        for (clock, within) in rates {
            let mut drifts = Drifts::default();
            run(&mut drifts, 100 * SECOND, within, 500, clock);
            let end = (100 + within) * SECOND;
            assert!(drifts.is_suspect(A, end));
            let offset = clock(end).wrapping_sub(end);
            run(&mut drifts, end, 130, 500, |t| t.wrapping_add(offset));
            assert!(!drifts.is_suspect(A, end + 130 * SECOND), "they have run alike");
        }
    }

    #[test]
    fn a_clock_that_has_stood_still_is_found_and_a_restarted_machine_is_not_taken_for_one() {
        let mut drifts = Drifts::default();
        run(&mut drifts, 500 * SECOND, 100, 500, |t| t);
        run(&mut drifts, 600 * SECOND, 1, 500, |t| t - SECOND);
        assert!(drifts.is_suspect(A, 601 * SECOND), "a guest that was stopped for a second");

        let mut drifts = Drifts::default();
        run(&mut drifts, 500 * SECOND, 100, 500, |t| t);
        drifts.answered((A, Incarnation(2)), (600 * SECOND, 600 * SECOND + 300, 40 * SECOND), RHO);
        drifts.answered((A, Incarnation(2)), (601 * SECOND, 601 * SECOND + 300, 41 * SECOND), RHO);
        assert!(!drifts.is_suspect(A, 602 * SECOND));
    }

    #[test]
    fn who_drifts_against_most_is_odd() {
        let mut map = Map::empty(1);
        let suspect = |ids: &[u64]| {
            let mut drifts = Drifts::default();
            for id in ids {
                let of = (MemberId(*id), Incarnation(1));
                drifts.answered(of, (0, 0, 0), RHO);
                drifts.answered(of, (1, 1, SECOND), RHO);
            }
            drifts
        };
        for (members, suspects, odd) in [(2, &[2][..], true), (3, &[2], false), (3, &[2, 3], true)]
        {
            for id in 1..=members {
                map.put(MemberId(id), Incarnation(1), Profile::default());
            }
            let drifts = suspect(suspects);
            assert_eq!(drifts.suspects(&map, 1).len(), suspects.len());
            assert_eq!(drifts.is_odd(&map, A, 1), odd, "{members} {suspects:?}");
        }
        assert!(!Drifts::default().is_odd(&map, A, 1));
    }
}
