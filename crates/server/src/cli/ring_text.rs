//! The text of `afterglow ring status`.

use std::fmt::Write;

use crate::frontend::cql::cached::{MemberStatus, MoveStatus, RangeStatus, RingStatus};

/// The map is read every 20 s. Later than this the database does not answer.
const LATE_MS: u64 = 30_000;

/// When the database was last heard of the ring.
pub(super) fn confirmed(status: &RingStatus) -> String {
    match status.confirmed_ms {
        None => "the database has not shown it as a member yet".to_owned(),
        Some(ms) => format!("the database showed it as a member {} s ago", ms / 1_000),
    }
}

/// All of it but the ranges.
pub(super) fn text(status: &RingStatus) -> String {
    let mut out = String::new();
    let lease = match status.lease_ms {
        _ if status.has_left() => "left: it answers from the database and the others".to_owned(),
        0 => "no lease: reads pass through".to_owned(),
        left => format!("lease for {left} ms"),
    };
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(out, "ring {}, map version {}, {lease}", status.name, status.version);
    if status.has_left() {
        out.push_str("  LEFT THE RING: stop it, or restart it to have it join again\n");
    } else if status.confirmed_ms.is_none_or(|ms| ms > LATE_MS) {
        let _ = writeln!(out, "  NOT CONFIRMED: {}; its lease ends at 60 s", confirmed(status));
        if let Some(why) = &status.trouble {
            let _ = writeln!(out, "  WHY: {why}");
        }
    }
    if let Some(why) = &status.refusal {
        let _ = writeln!(out, "  NOTHING CHANGES: the database refuses to change the map: {why}");
    }
    if let Some(lack) = &status.lack {
        let _ = writeln!(out, "  REPLICAS: {lack}");
    }
    if let Some(why) = &status.lease_trouble {
        let _ = writeln!(out, "  NO LEASE FOR EXCLUSIVE TABLES: {why}");
    }
    if let Some(why) = &status.transactions {
        let _ = writeln!(out, "  TRANSACTIONS: {why}");
    }
    if let Some(why) = &status.own_clock {
        let _ = writeln!(out, "  CLOCK: {why}");
    }
    if let Some(shards) = status.owned().filter(|_| status.leaving) {
        let _ = writeln!(out, "  LEAVES THE RING: {shards} shards are still its own");
    }
    if status.gave_up_leaving {
        out.push_str("  STAYS: it was leaving when it was started again; to have it leave, run `afterglow ring leave` again\n");
    }
    for difference in &status.differs {
        let _ = writeln!(out, "  READS PASS THROUGH: {difference}");
    }
    if status.members.is_empty() {
        out.push_str("no members are known yet\n");
        return out;
    }
    members(&mut out, status);
    leases(&mut out, status);
    moves(&mut out, &status.moves);
    out
}

fn members(out: &mut String, status: &RingStatus) {
    let wide = |of: fn(&MemberStatus) -> &str, least: usize| {
        status.members.iter().map(|member| of(member).len()).max().unwrap_or(0).max(least)
    };
    let (address, zone) = (wide(|m| &m.address, 7), wide(|m| &m.zone, 4));
    let _ = writeln!(
        out,
        "  {:<16}  {:<address$}  {:<zone$}  {:>7}  {:>7}  {:>6}  {:<7}  link",
        "member", "address", "zone", "shards", "ranges", "weight", "state"
    );
    for member in &status.members {
        let link = match member.linked {
            None => "this instance",
            Some(true) => "up",
            Some(false) => "DOWN",
        };
        let differs = match member.differs.is_empty() {
            true => String::new(),
            false => format!("  other {}", member.differs.join(", ")),
        };
        let clock = if member.clock_drifts { "  ITS CLOCK DRIFTS" } else { "" };
        let _ = writeln!(
            out,
            "  {:<16}  {:<address$}  {:<zone$}  {:>7}  {:>7}  {:>6}  {:<7}  {link}{differs}{clock}",
            member.id,
            member.address,
            member.zone,
            member.shards,
            member.ranges,
            member.weight,
            member.state
        );
    }
    for member in &status.members {
        if let Some(why) = &member.link_error {
            let _ = writeln!(out, "  NO LINK to {}: {why}", member.id);
        }
    }
    if status.unowned > 0 {
        let _ = writeln!(out, "  {} of {} shards have no owner", status.unowned, status.shards);
    }
}

/// What this instance knows of all leases.
fn leases(out: &mut String, status: &RingStatus) {
    let _ = writeln!(
        out,
        "\n  {:<16}  {:<15}  {:<13}  {:<9}  database answered",
        "member", "lease", "answered", "promises"
    );
    for MemberStatus { id, lease, .. } in &status.members {
        let is_me = *id == status.me;
        let bound = match lease.bound_ms {
            None => "not known".to_owned(),
            Some(0) => "none".to_owned(),
            Some(left) if is_me => format!("{left} ms"),
            Some(left) => format!("{left} ms at most"),
        };
        let answered = match lease.answered_ms {
            _ if is_me => "this instance".to_owned(),
            ago => seconds_ago(ago),
        };
        let promises = match lease.promises_ms {
            _ if is_me => "-".to_owned(),
            None | Some(0) => "NOTHING".to_owned(),
            Some(left) => format!("{left} ms"),
        };
        let database = seconds_ago(lease.database_ms);
        let _ = writeln!(out, "  {id:<16}  {bound:<15}  {answered:<13}  {promises:<9}  {database}");
    }
}

fn seconds_ago(ms: Option<u64>) -> String {
    match ms {
        None => "never".to_owned(),
        Some(ms) => format!("{}.{} s ago", ms / 1_000, ms % 1_000 / 100),
    }
}

/// Shards that move.
fn moves(out: &mut String, moves: &[MoveStatus]) {
    if moves.is_empty() {
        out.push_str("\n  no shards move\n");
        return;
    }
    let _ = writeln!(out, "\n  {:>7}  {:<16}  {:<16}  move", "shards", "from", "to");
    for MoveStatus { from, to, shards, step, left_ms } in moves {
        let from = from.as_deref().unwrap_or("nobody");
        let left = left_ms.map_or_else(String::new, |ms| format!(", for {} s", ms.div_ceil(1_000)));
        let _ = writeln!(out, "  {shards:>7}  {from:<16}  {to:<16}  {step}{left}");
    }
}

/// Who owns which tokens; nothing where that was not asked for.
pub(super) fn ranges(ranges: &[RangeStatus]) -> String {
    let mut out = String::new();
    if ranges.is_empty() {
        return out;
    }
    let _ =
        writeln!(out, "\n  {:<20}  {:<20}  {:<9}  owner", "first token", "last token", "shards");
    for range in ranges {
        let shards = match range.first_shard == range.last_shard {
            true => range.first_shard.to_string(),
            false => format!("{}-{}", range.first_shard, range.last_shard),
        };
        let owner = range.owner.as_deref().unwrap_or("NOBODY");
        let RangeStatus { first_token, last_token, .. } = range;
        let _ = writeln!(out, "  {first_token:<20}  {last_token:<20}  {shards:<9}  {owner}");
    }
    out
}

#[cfg(test)]
pub(super) mod fixtures {
    use super::*;

    pub fn member() -> MemberStatus {
        MemberStatus {
            id: String::new(),
            address: "10.0.0.1:7946".into(),
            zone: "a".into(),
            weight: 100,
            state: "active".into(),
            shards: 2_048,
            ranges: 900,
            lease: Default::default(),
            linked: Some(true),
            link_error: None,
            differs: Vec::new(),
            clock_drifts: false,
        }
    }

    pub fn status() -> RingStatus {
        RingStatus {
            name: "shop".into(),
            me: "0000000000000001".into(),
            version: 7,
            lease_ms: 1_200,
            confirmed_ms: Some(7_000),
            leaving: false,
            gave_up_leaving: false,
            shards: 4_096,
            unowned: 0,
            trouble: None,
            refusal: None,
            lack: None,
            lease_trouble: None,
            transactions: None,
            own_clock: None,
            differs: Vec::new(),
            members: Vec::new(),
            moves: Vec::new(),
            ranges: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{member, status};
    use super::*;
    use crate::frontend::cql::cached::LeaseStatus;

    #[test]
    fn leases_moves_and_owners_are_shown_with_what_is_not_known_of_them() {
        let [one, two] = [1, 2].map(|id| format!("{id:016x}"));
        let of = |id: &str, lease| MemberStatus { id: id.into(), lease, ..member() };
        let own =
            LeaseStatus { bound_ms: Some(1_200), database_ms: Some(7_040), ..Default::default() };
        let theirs = LeaseStatus {
            bound_ms: Some(1_400),
            answered_ms: Some(190),
            promises_ms: Some(1_310),
            database_ms: Some(24_600),
        };
        let moved = |from: Option<&str>, shards, step: &str, left_ms| MoveStatus {
            from: from.map(Into::into),
            to: two.clone(),
            shards,
            step: step.into(),
            left_ms,
        };
        let mut status = RingStatus {
            me: one.clone(),
            members: vec![of(&one, own), of(&two, theirs)],
            moves: vec![
                moved(Some(&one), 1_984, "to come", None),
                moved(None, 3, "weak", Some(2_001)),
            ],
            ..status()
        };
        let shown = text(&status);
        let lines: Vec<_> = shown.lines().map(str::trim).collect();
        let has = |line: &str| assert!(lines.contains(&line), "{line}\n{shown}");
        has("0000000000000001  1200 ms          this instance  -          7.0 s ago");
        has("0000000000000002  1400 ms at most  0.1 s ago      1310 ms    24.6 s ago");
        has("1984  0000000000000001  0000000000000002  to come");
        has("3  nobody            0000000000000002  weak, for 3 s");
        status.members[1].lease = LeaseStatus::default();
        status.members[1].link_error = Some("it cannot be reached".into());
        status.moves.clear();
        let shown = text(&status);
        assert!(shown.contains("NO LINK to 0000000000000002: it cannot be reached\n"), "{shown}");
        assert!(shown.contains("  not known        never          NOTHING    never\n"), "{shown}");
        assert!(shown.ends_with("\n  no shards move\n"), "{shown}");
        assert_eq!(ranges(&status.ranges), "", "they are a long list");
        let range = |first, last, owner: Option<&String>| RangeStatus {
            first_token: "-9".into(),
            last_token: "-5".into(),
            first_shard: first,
            last_shard: last,
            owner: owner.cloned(),
        };
        let shown = ranges(&[range(0, 6, Some(&one)), range(7, 7, None)]);
        assert!(shown.contains("  0-6        0000000000000001\n"), "{shown}");
        assert!(shown.contains("  7          NOBODY\n"), "{shown}");
    }
}
