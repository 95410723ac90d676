use super::*;

fn present(now: Millis) -> Present {
    Present {
        policies: "shop.*=exclusive".to_owned(),
        boot_id: "boot".to_owned(),
        now,
        unix: 1_000_000,
        restart_grace: Duration::from_secs(60),
        plain_clock: false,
        planned_restart_grace: Duration::from_secs(600),
    }
}

fn directory(name: &str) -> PathBuf {
    let dir =
        std::env::temp_dir().join(format!("afterglow-instance-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn identity_and_claim_survive_a_short_absence() {
    let dir = directory("short");
    let (mut first, why) = InstanceFile::open(&dir, &present(1_000)).unwrap();
    assert_eq!(why, Some(NewClaim::FirstStart));
    first.note_alive(5_000).unwrap();
    first.note_epochs(KnownEpochs { held: 3, asked: 4 }).unwrap();
    let (second, why) = InstanceFile::open(&dir, &present(65_000)).unwrap();
    assert_eq!(why, None);
    assert_eq!((second.id(), second.claim()), (first.id(), first.claim()));
    assert_eq!(second.epochs(), KnownEpochs { held: 3, asked: 4 });
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn each_doubt_makes_a_new_claim_but_keeps_the_identity() {
    type Case = (&'static str, fn(&mut Present), fn(&NewClaim) -> bool);
    let cases: [Case; 4] = [
        ("reboot", |p| p.boot_id = "other".to_owned(), |why| *why == NewClaim::Rebooted),
        ("away", |p| p.now += 61_000, |why| matches!(why, NewClaim::Away(_))),
        ("policies", |p| p.policies.push('x'), |why| *why == NewClaim::PoliciesChanged),
        ("clock", |p| p.now = 0, |why| matches!(why, NewClaim::Damaged(_))),
    ];
    for (name, change, expected) in cases {
        let dir = directory(name);
        let (first, _) = InstanceFile::open(&dir, &present(1_000)).unwrap();
        let mut later = present(1_000);
        change(&mut later);
        let (second, why) = InstanceFile::open(&dir, &later).unwrap();
        assert!(why.as_ref().is_some_and(expected), "{name}: {why:?}");
        assert_eq!(second.id(), first.id(), "{name}");
        assert_ne!(second.claim(), first.claim(), "{name}");
        // The new claim is on disk before anything carries it.
        assert_eq!(InstanceFile::open(&dir, &later).unwrap().0.claim(), second.claim(), "{name}");
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_damaged_file_is_replaced() {
    let dir = directory("damaged");
    let (first, _) = InstanceFile::open(&dir, &present(0)).unwrap();
    fs::write(dir.join(FILE), "instance = 7").unwrap();
    let (second, why) = InstanceFile::open(&dir, &present(0)).unwrap();
    assert!(matches!(why, Some(NewClaim::Damaged(_))), "{why:?}");
    assert_ne!(second.claim(), first.claim());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_data_center_is_noticed_once_also_after_a_restart() {
    let dir = directory("data-center");
    let open = || InstanceFile::open(&dir, &present(0)).unwrap().0;
    let mut first = open();
    assert!(!first.set_data_center("a") && !first.set_data_center("a"));
    first.note_alive(0).unwrap();
    let mut second = open();
    assert!(
        !second.set_data_center("a") && second.set_data_center("b") && !second.set_data_center("b")
    );
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_cluster_is_noticed_once() {
    let dir = directory("cluster");
    let (mut instance, _) = InstanceFile::open(&dir, &present(0)).unwrap();
    assert!(!instance.set_cluster("one"));
    assert!(!instance.set_cluster("one"));
    assert!(instance.set_cluster("two"));
    assert!(!instance.set_cluster("two"));
    fs::remove_dir_all(dir).unwrap();
}

/// A run that ended cleanly in second 1,000,000 with its last sign of life at 5,000 ms, and the
/// next one. `change` says how the next one differs.
fn next_run(name: &str, clean: bool, change: impl FnOnce(&mut Present)) -> Next {
    let dir = directory(name);
    let (mut first, _) = InstanceFile::open(&dir, &present(1_000)).unwrap();
    first.note_alive(5_000).unwrap();
    if clean {
        note_clean_stop(&dir, 5_000, 1_000_000).unwrap();
    }
    let mut later = present(5_000);
    change(&mut later);
    let (second, why) = InstanceFile::open(&dir, &later).unwrap();
    assert_eq!(second.claim() == first.claim(), why.is_none(), "{name}");
    // The note is gone before anything is served.
    let text = fs::read_to_string(dir.join(FILE)).unwrap();
    assert!(!text.contains("ended_at"), "{name}: {text}");
    let again = InstanceFile::open(&dir, &later).unwrap().0.clock_ahead();
    assert_eq!(again, second.clock_ahead(), "{name}: the clock is the same in each run of a boot");
    fs::remove_dir_all(dir).unwrap();
    Next { why, ahead: second.clock_ahead() }
}

struct Next {
    why: Option<NewClaim>,
    ahead: Millis,
}

fn reboot(present: &mut Present) {
    present.boot_id = "other".to_owned();
    present.now = 30_000;
    present.unix += 500;
}

#[test]
fn a_clean_stop_within_the_promise_keeps_the_claim_reboots_included() {
    let away = next_run("planned-away", true, |p| p.now += 500_000);
    assert_eq!((away.why, away.ahead), (None, 0));
    let rebooted = next_run("planned-reboot", true, reboot);
    // 5,000 ms of the last run and all of the grace.
    assert_eq!((rebooted.why, rebooted.ahead), (None, 605_000));
}

#[test]
fn without_promise_or_clean_stop_or_in_time_the_claim_ends() {
    let crashed = next_run("crash-away", false, |p| p.now += 61_000);
    assert!(matches!(crashed.why, Some(NewClaim::Away(_))), "{:?}", crashed.why);
    let crashed = next_run("crash-reboot", false, reboot);
    assert_eq!((crashed.why, crashed.ahead), (Some(NewClaim::Rebooted), 0));
    let unpromised = next_run("unpromised", true, |p| {
        reboot(p);
        p.planned_restart_grace = Duration::ZERO;
    });
    assert_eq!(unpromised.why, Some(NewClaim::Rebooted));
    let late = next_run("late", true, |p| {
        reboot(p);
        p.unix += 101;
    });
    assert_eq!((late.why, late.ahead), (Some(NewClaim::Away(Duration::from_secs(601))), 0));
    let late = next_run("late-same-boot", true, |p| p.now += 600_001);
    assert!(matches!(late.why, Some(NewClaim::Away(_))), "{:?}", late.why);
    let set_back = next_run("set-back", true, |p| {
        reboot(p);
        p.unix = 999_999;
    });
    assert_eq!(set_back.why, Some(NewClaim::ClockSetBack));
    let policies = next_run("other-policies", true, |p| {
        reboot(p);
        p.policies.push('x');
    });
    assert_eq!((policies.why, policies.ahead), (Some(NewClaim::PoliciesChanged), 0));
}

#[test]
fn a_second_restart_of_the_machine_puts_the_clock_further_ahead() {
    let dir = directory("twice");
    InstanceFile::open(&dir, &present(1_000)).unwrap();
    note_clean_stop(&dir, 1_000, 1_000_000).unwrap();
    let mut second = present(30_000);
    second.boot_id = "second".to_owned();
    let (mut instance, _) = InstanceFile::open(&dir, &second).unwrap();
    assert_eq!(instance.clock_ahead(), 601_000);
    instance.note_alive(30_000 + 601_000).unwrap();
    note_clean_stop(&dir, 40_000, 1_000_100).unwrap();
    let mut third = present(7_000);
    third.boot_id = "third".to_owned();
    third.unix = 1_000_200;
    let (instance, why) = InstanceFile::open(&dir, &third).unwrap();
    assert_eq!((why, instance.clock_ahead()), (None, 641_000 + 600_000));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_ring_never_counts_by_a_clock_that_is_ahead() {
    let dir = directory("ring");
    InstanceFile::open(&dir, &present(1_000)).unwrap();
    note_clean_stop(&dir, 1_000, 1_000_000).unwrap();
    let mut second = present(30_000);
    second.boot_id = "second".to_owned();
    let (alone, _) = InstanceFile::open(&dir, &second).unwrap();
    assert!(alone.clock_ahead() > 0);
    second.plain_clock = true;
    let (member, why) = InstanceFile::open(&dir, &second).unwrap();
    assert_eq!((why, member.clock_ahead()), (Some(NewClaim::OtherClock), 0));
    assert_ne!(member.claim(), alone.claim());
    // From then on in this boot.
    let (member, why) = InstanceFile::open(&dir, &second).unwrap();
    assert_eq!((why, member.clock_ahead()), (None, 0));
    fs::remove_dir_all(dir).unwrap();
}

/// After a restart of the machine the file of tables may say what an earlier one said.
#[test]
fn no_stop_is_clean_while_the_file_of_tables_is_not_durable() {
    let dir = directory("tables");
    InstanceFile::open(&dir, &present(1_000)).unwrap();
    let before = fs::read_to_string(dir.join(FILE)).unwrap();
    let tables = dir.join(noted_tables::FILE);
    std::os::unix::fs::symlink(&tables, &tables).unwrap();
    assert!(note_clean_stop(&dir, 1_000, 1_000_000).is_err(), "it cannot be opened");
    assert_eq!(fs::read_to_string(dir.join(FILE)).unwrap(), before);
    fs::remove_file(&tables).unwrap();
    note_clean_stop(&dir, 1_000, 1_000_000).unwrap();
    assert!(fs::read_to_string(dir.join(FILE)).unwrap().contains("ended_at"));
    fs::remove_dir_all(dir).unwrap();
}
