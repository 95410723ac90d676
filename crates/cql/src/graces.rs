//! How long a database keeps what it has deleted.
//!
//! Cassandra drops a tombstone `gc_grace_seconds` after it was made, or later. ScyllaDB has the
//! table option `tombstone_gc` besides, which it keeps in the column `extensions` of
//! `system_schema.tables`:
//!
//! | mode | a tombstone may go |
//! |---|---|
//! | none, `timeout` | after `gc_grace_seconds` |
//! | `disabled` | never |
//! | `immediate` | at once |
//! | `repair` | after the next repair; where the keyspace has one replica, at once |
//!
//! Whatever cannot be read counts as "at once".

use std::time::Duration;

use crate::frame::notation::Reader;

/// What ScyllaDB calls its option.
const TOMBSTONE_GC: &[u8] = b"tombstone_gc";

/// The times of one table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Graces {
    /// `gc_grace_seconds`, where it is known.
    pub gc_grace: Option<u32>,
    /// For how long every tombstone stays, from when its coordinator made it. Zero: it may go at
    /// any time, or nothing is known.
    pub tombstones: Duration,
}

impl Graces {
    /// `extensions`: the column of that name, a `map<text, blob>`.
    pub fn of(gc_grace: Option<u32>, extensions: Option<&[u8]>) -> Graces {
        let timeout = Duration::from_secs(u64::from(gc_grace.unwrap_or(0)));
        let tombstones = match extensions.map_or(Some(None), tombstone_gc) {
            Some(None) => timeout,
            Some(Some(options)) => match mode(options) {
                Some(b"timeout") => timeout,
                Some(b"disabled") => Duration::MAX,
                // Under `repair` no time is certain: when the keyspace is given another number of
                // replicas, nodes go over to the other rule at moments of their own.
                _ => Duration::ZERO,
            },
            None => Duration::ZERO,
        };
        Graces { gc_grace, tombstones }
    }
}

/// The bytes of ScyllaDB's option. The outer `None`: the map is damaged.
fn tombstone_gc(extensions: &[u8]) -> Option<Option<&[u8]>> {
    let mut reader = Reader::new(extensions);
    let mut found = None;
    for _ in 0..reader.count("number of extensions").ok()? {
        let (name, value) = (reader.bytes().ok()??, reader.bytes().ok()??);
        if name == TOMBSTONE_GC {
            found = Some(value);
        }
    }
    reader.is_empty().then_some(found)
}

/// The value of `mode` in a map of texts as ScyllaDB writes it: a number of entries, then length
/// and bytes of each key and value. All numbers have four bytes, the lowest first.
fn mode(options: &[u8]) -> Option<&[u8]> {
    let mut rest = options;
    let mut found = None;
    for _ in 0..number(&mut rest)? {
        let (name, value) = (text(&mut rest)?, text(&mut rest)?);
        if name == b"mode" {
            found = Some(value);
        }
    }
    found.filter(|_| rest.is_empty())
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    usize::try_from(u32::from_le_bytes(*head)).ok()
}

fn text<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = number(rest)?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u32 = 86_400;

    /// As ScyllaDB writes the option.
    fn scyllas(options: &[(&str, &str)]) -> Vec<u8> {
        let number = |n: usize| (n as u32).to_le_bytes();
        let mut out = number(options.len()).to_vec();
        for text in options.iter().flat_map(|(name, value)| [name, value]) {
            out.extend(number(text.len()));
            out.extend(text.as_bytes());
        }
        out
    }

    /// As CQL writes the column.
    fn extensions(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let number = |n: usize| (n as i32).to_be_bytes();
        let mut out = number(entries.len()).to_vec();
        for bytes in entries.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
            out.extend(number(bytes.len()));
            out.extend(bytes);
        }
        out
    }

    fn stay(entries: &[(&str, &[u8])]) -> Duration {
        Graces::of(Some(DAY), Some(&extensions(entries))).tombstones
    }

    fn stay_in(mode: &str) -> Duration {
        let delay = ("propagation_delay_in_seconds", "3600");
        let (first, last) = (scyllas(&[("mode", mode), delay]), scyllas(&[delay, ("mode", mode)]));
        let other: &[u8] = &[1, 2, 3];
        let all = [
            stay(&[("tombstone_gc", &first)]),
            stay(&[("cdc", other), ("tombstone_gc", &last), ("paxos_grace_seconds", other)]),
        ];
        assert_eq!(all[0], all[1]);
        all[0]
    }

    #[test]
    fn tombstones_stay_for_their_grace_unless_the_table_says_something_else() {
        let day = Duration::from_secs(u64::from(DAY));
        assert_eq!(Graces::of(Some(DAY), None).tombstones, day);
        assert_eq!(Graces::of(Some(0), None).tombstones, Duration::ZERO);
        assert_eq!(Graces::of(None, None), Graces::default());
        assert_eq!(stay(&[]), day);
        assert_eq!(stay(&[("cdc", &[7])]), day);
        assert_eq!(stay_in("timeout"), day);
        assert_eq!(stay_in("disabled"), Duration::MAX);
        for at_once in ["immediate", "repair", "Timeout", "", "some new mode"] {
            assert_eq!(stay_in(at_once), Duration::ZERO, "{at_once}");
        }
    }

    #[test]
    fn what_is_damaged_says_nothing_of_tombstones() {
        let whole = extensions(&[("tombstone_gc", &scyllas(&[("mode", "disabled")]))]);
        let stay = |bytes: &[u8]| Graces::of(Some(DAY), Some(bytes)).tombstones;
        assert_eq!(stay(&whole), Duration::MAX);
        for end in 0..whole.len() {
            assert_eq!(stay(&whole[..end]), Duration::ZERO, "{end} bytes");
        }
        assert_eq!(stay(&[&whole[..], &[0]].concat()), Duration::ZERO);
        // The map is whole, its value is not.
        let option = scyllas(&[("mode", "disabled")]);
        for end in 0..option.len() {
            let short = extensions(&[("tombstone_gc", &option[..end])]);
            assert_eq!(stay(&short), Duration::ZERO, "{end} bytes of the option");
        }
        let long = [&option[..], &[0]].concat();
        assert_eq!(stay(&extensions(&[("tombstone_gc", &long)])), Duration::ZERO);
        let modeless = scyllas(&[("propagation_delay_in_seconds", "3600")]);
        assert_eq!(stay(&extensions(&[("tombstone_gc", &modeless)])), Duration::ZERO);
    }
}
