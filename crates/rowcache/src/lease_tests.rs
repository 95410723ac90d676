//! Instances against one simulated row, with a clock in hand.

use super::*;

const A: Uuid = Uuid::from_u128(0xA);
const B: Uuid = Uuid::from_u128(0xB);
const TTL: u32 = 60;

fn config(me: Uuid) -> LeaseConfig {
    LeaseConfig { me, ttl_seconds: TTL, margin: 5_000, retry: 1_000 }
}

/// The row as the database keeps it, with the owner's expiry.
#[derive(Default)]
struct Row {
    stored: Option<(i64, Uuid)>,
    owner: Option<(Uuid, Millis)>,
}

impl Row {
    fn run(&mut self, request: Request, me: Uuid, now: Millis) -> Answer {
        let owner = self.owner.filter(|(_, expires)| *expires > now).map(|(owner, _)| owner);
        let own = Some((me, now + u64::from(TTL) * 1_000));
        let applied = match request {
            Request::Read => {
                return Answer::Row(self.stored.map(|(epoch, last)| LeaseRow {
                    owner,
                    epoch,
                    last_owner: Some(last),
                }));
            }
            Request::Found => self.stored.is_none(),
            Request::Take { from, ours, .. } => {
                self.stored.is_some_and(|(epoch, _)| epoch == from) && owner == ours.then_some(me)
            }
            Request::Renew { epoch } => {
                owner == Some(me) && self.stored.is_some_and(|(stored, _)| stored == epoch)
            }
        };
        if applied {
            self.owner = own;
            self.stored = match request {
                Request::Found => Some((1, me)),
                Request::Take { to, .. } => Some((to, me)),
                _ => self.stored,
            };
        }
        Answer::Applied(applied)
    }
}

/// Runs the lease until it waits; returns the changes that mattered.
fn drive(lease: &mut Lease, row: &mut Row, now: Millis) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..10 {
        let Next::Send(request) = lease.next(now) else { return changes };
        let answer = row.run(request, lease.config().me, now);
        match lease.answered(request, now, answer, now) {
            Change::Nothing => {}
            change => changes.push(change),
        }
    }
    panic!("the lease never came to rest: {changes:?}");
}

#[test]
fn the_first_instance_founds_the_lease_and_keeps_it() {
    let (mut row, mut lease) = (Row::default(), Lease::new(config(A), KnownEpochs::default()));
    let changes = drive(&mut lease, &mut row, 0);
    assert_eq!(changes, [Change::Acquired { epoch: 1, before: Before::Nobody }]);
    for now in (0..600_000).step_by(500) {
        assert_eq!(drive(&mut lease, &mut row, now), []);
        assert!(lease.until() > now, "lapsed at {now}");
    }
}

#[test]
fn a_second_instance_waits_until_the_first_has_ended_and_never_overlaps() {
    let mut row = Row::default();
    let (mut a, mut b) = (
        Lease::new(config(A), KnownEpochs::default()),
        Lease::new(config(B), KnownEpochs::default()),
    );
    drive(&mut a, &mut row, 0);
    assert_eq!(drive(&mut b, &mut row, 100), [Change::HeldByOther(A)]);
    // A falls silent at 20 s; B keeps asking.
    for now in (200..20_000).step_by(100) {
        drive(&mut a, &mut row, now);
        drive(&mut b, &mut row, now);
    }
    let mut now = 20_000;
    while b.epoch().is_none() {
        drive(&mut b, &mut row, now);
        now += 100;
    }
    assert!(now > a.until(), "B holds it from {now}, A believes to until {}", a.until());
    // A comes back: refused, and not continuous when it gets it again.
    let changes = drive(&mut a, &mut row, now);
    assert_eq!(changes, [Change::Lost, Change::HeldByOther(B)]);
    let later = b.until() + 10_000;
    assert_eq!(
        drive(&mut a, &mut row, later),
        [Change::Acquired { epoch: 3, before: Before::Another(2) }]
    );
}

#[test]
fn a_restart_is_continuous_only_if_nobody_came_between() {
    let mut row = Row::default();
    drive(&mut Lease::new(config(A), KnownEpochs::default()), &mut row, 0);
    let known = KnownEpochs { held: 1, asked: 1 };
    for now in [1_000, 500_000] {
        // Killed and back before, or after, the owner cell expired.
        let mut row = Row { stored: row.stored, owner: row.owner };
        let changes = drive(&mut Lease::new(config(A), known), &mut row, now);
        assert_eq!(changes, [Change::Acquired { epoch: 2, before: Before::Us }]);
    }
    drive(&mut Lease::new(config(B), KnownEpochs::default()), &mut row, 100_000);
    let changes = drive(&mut Lease::new(config(A), known), &mut row, 200_000);
    assert_eq!(changes, [Change::Acquired { epoch: 3, before: Before::Another(2) }]);
}

#[test]
fn a_crash_between_take_and_note_is_still_continuous() {
    let mut row = Row { stored: Some((5, A)), owner: None };
    let changes = drive(&mut Lease::new(config(A), KnownEpochs { held: 4, asked: 5 }), &mut row, 0);
    assert_eq!(changes, [Change::Acquired { epoch: 6, before: Before::Us }]);
}

#[test]
fn a_take_whose_answer_was_lost_is_ours_and_continuous() {
    let mut row = Row { stored: Some((5, A)), owner: None };
    let mut lease = Lease::new(config(A), KnownEpochs { held: 5, asked: 5 });
    while !matches!(lease.next(0), Next::Send(Request::Take { .. })) {
        let Next::Send(request) = lease.next(0) else { panic!("asks") };
        let answer = row.run(request, A, 0);
        lease.answered(request, 0, answer, 0);
    }
    let Next::Send(take) = lease.next(0) else { panic!("takes") };
    row.run(take, A, 0);
    assert_eq!(lease.answered(take, 0, Answer::Failed, 0), Change::Nothing);
    assert_eq!(
        drive(&mut lease, &mut row, 2_000),
        [Change::Acquired { epoch: 7, before: Before::Us }]
    );
}

#[test]
fn takes_whose_answers_were_lost_one_after_the_other_are_ours_and_continuous() {
    let known = KnownEpochs { held: 5, asked: 5 };
    let (mut row, mut lease) =
        (Row { stored: Some((5, A)), owner: None }, Lease::new(config(A), known));
    let (mut noted, mut now) = (known, 0);
    // The first applies, the second does not.
    for applies in [true, false] {
        let take = loop {
            let Next::Send(request) = lease.next(now) else { panic!("asks") };
            noted = lease.to_note(request).unwrap_or(noted);
            if matches!(request, Request::Take { .. }) {
                break request;
            }
            let answer = row.run(request, A, now);
            lease.answered(request, now, answer, now);
        };
        if applies {
            row.run(take, A, now);
        }
        lease.answered(take, now, Answer::Failed, now);
        now += 2_000;
    }
    assert_eq!(row.stored, Some((6, A)));
    for mut lease in [lease, Lease::new(config(A), noted)] {
        let mut row = Row { ..row };
        let changes = drive(&mut lease, &mut row, now);
        assert_eq!(changes, [Change::Acquired { epoch: 8, before: Before::Us }]);
    }
}

#[test]
fn a_take_after_another_holder_stays_a_new_beginning_when_its_answer_is_lost_or_we_die() {
    // B had it at 9, ours was 5. The take to 10 applies, and nobody hears of it.
    let take = |known| {
        let mut row = Row { stored: Some((9, B)), owner: None };
        let mut lease = Lease::new(config(A), known);
        let mut noted = None;
        loop {
            let Next::Send(request) = lease.next(0) else { panic!("asks") };
            noted = noted.or(lease.to_note(request));
            let answer = row.run(request, A, 0);
            if matches!(request, Request::Take { .. }) {
                lease.answered(request, 0, Answer::Failed, 0);
                return (row, lease, noted);
            }
            lease.answered(request, 0, answer, 0);
        }
    };
    let known = KnownEpochs { held: 5, asked: 5 };
    let (mut row, mut lease, noted) = take(known);
    assert_eq!(
        drive(&mut lease, &mut row, 2_000),
        [Change::Acquired { epoch: 11, before: Before::Another(10) }]
    );
    let (mut row, ..) = take(known);
    let known = noted.unwrap_or(known);
    let changes = drive(&mut Lease::new(config(A), known), &mut row, 2_000);
    assert_eq!(changes, [Change::Acquired { epoch: 11, before: Before::Another(10) }]);
}

#[test]
fn two_processes_of_one_identity_fence_each_other() {
    let mut row = Row::default();
    let mut first = Lease::new(config(A), KnownEpochs::default());
    drive(&mut first, &mut row, 0);
    let mut second = Lease::new(config(A), KnownEpochs { held: 1, asked: 1 });
    drive(&mut second, &mut row, 1_000);
    let renewal = drive(&mut first, &mut row, 20_000);
    assert_eq!(renewal[0], Change::Lost);
}

#[test]
fn a_lapse_without_another_holder_is_continuous_and_failed_renewals_do_not_extend() {
    let mut row = Row::default();
    let mut lease = Lease::new(config(A), KnownEpochs::default());
    drive(&mut lease, &mut row, 0);
    let until = lease.until();
    for now in (14_000..until + 30_000).step_by(1_000) {
        if let Next::Send(request) = lease.next(now) {
            assert_eq!(lease.answered(request, now, Answer::Failed, now), Change::Nothing);
        }
    }
    assert_eq!(lease.until(), until);
    let changes = drive(&mut lease, &mut row, until + 40_000);
    assert_eq!(changes, [Change::Lost, Change::Acquired { epoch: 2, before: Before::Us }]);
}

#[test]
fn the_clock_ends_on_time_and_at_once() {
    let clock = LeaseClock::default();
    assert!(!clock.holds(0));
    clock.extend(10);
    clock.extend(5);
    assert!(clock.holds(9) && !clock.holds(10));
    clock.end();
    assert!(!clock.holds(0));
}

#[test]
fn statements_are_what_the_transactions_need() {
    let config = config(A);
    let take = Request::Take { from: 4, ours: false, to: 5 }.cql(&config);
    assert!(
        take.contains("USING TTL 60 SET owner = 00000000-0000-0000-0000-00000000000a"),
        "{take}"
    );
    assert!(
        take.contains("IF owner = null AND epoch = 4")
            && take.contains("SET epoch = 5, last_owner ="),
        "{take}"
    );
    assert!(create_keyspace("d'c", 3).contains("'d''c': 3"));
}
