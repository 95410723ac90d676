//! Why the database does not show this instance as a member of its ring, for the log and for
//! `afterglow ring status`.
//!
//! An instance without a lease answers from the database, so clients notice it late, by their
//! latency. The operator hears of it here, with what the last read of the map has said.

use std::sync::Arc;

use afterglow_ring::{Map, MapLoss, MemberId, Time};

use super::map_row::MapRowError;

/// How long an instance that had a lease may be without, before that is told. Moves take less.
const GRACE: Time = 5_000_000;
/// The same for one that never had any: it joins, or founds the ring once old leases have ended.
const FIRST_GRACE: Time = 90_000_000;

/// What is wrong with the map that was read, if anything. `known`: whether this instance has
/// adopted a map before. `loss`: how that is lost.
pub fn reason(
    read: &Result<Arc<Map>, MapRowError>,
    me: MemberId,
    known: bool,
    loss: Option<MapLoss>,
) -> Option<String> {
    let map = match read {
        Ok(map) => map,
        Err(error) => return Some(error.with_remedy()),
    };
    let why = match loss {
        Some(MapLoss::Emptied) => {
            "somebody has emptied `afterglow.ring`, or made it anew: stop all members and start them again"
        }
        Some(MapLoss::Older) => {
            "the database has an older map of the ring than this instance, as after a restore: if other members have a lease start this one again; otherwise run `TRUNCATE afterglow.ring`, which empties the maps of all rings over this database, stop all their members and start them again"
        }
        None if known && map.entry(me).is_none() => "the ring's map does not have this instance",
        None => return None,
    };
    Some(why.to_owned())
}

/// When there was a lease, and what was told.
pub struct Confirmation {
    /// When there last was a lease; before the first one, when the instance started.
    held: Time,
    grace: Time,
    told: bool,
}

/// What is to be told now.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    /// There is no lease.
    Lost,
    /// There is one again.
    Back,
}

impl Confirmation {
    /// Of an instance that starts.
    pub fn new(now: Time) -> Confirmation {
        Confirmation { held: now, grace: FIRST_GRACE, told: false }
    }

    /// What is to be told, where the lease ends then.
    pub fn look(&mut self, now: Time, lease_end: Time) -> Told {
        if lease_end > now {
            (self.held, self.grace) = (now, GRACE);
            return if std::mem::take(&mut self.told) { Told::Back } else { Told::Nothing };
        }
        if self.told || now < self.held + self.grace {
            return Told::Nothing;
        }
        self.told = true;
        Told::Lost
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::error::ErrorCode;

    use super::*;

    const SECOND: Time = 1_000_000;

    #[test]
    fn a_lease_that_is_lost_is_told_once_and_so_is_its_return() {
        let mut seen = Confirmation::new(0);
        assert_eq!(seen.look(80 * SECOND, 0), Told::Nothing, "it may be about to join");
        assert_eq!(seen.look(81 * SECOND, 83 * SECOND), Told::Nothing);
        assert_eq!(seen.look(84 * SECOND, 83 * SECOND), Told::Nothing, "a move is under way");
        assert_eq!(seen.look(87 * SECOND, 83 * SECOND), Told::Lost);
        assert_eq!(seen.look(200 * SECOND, 83 * SECOND), Told::Nothing);
        assert_eq!(seen.look(201 * SECOND, 203 * SECOND), Told::Back);
        assert_eq!(seen.look(202 * SECOND, 203 * SECOND), Told::Nothing);
    }

    #[test]
    fn one_that_never_has_a_lease_is_told_after_a_minute_and_a_half() {
        let mut seen = Confirmation::new(0);
        assert_eq!(seen.look(89 * SECOND, 0), Told::Nothing);
        assert_eq!(seen.look(90 * SECOND, 0), Told::Lost);
    }

    #[test]
    fn a_map_that_is_gone_and_one_without_us_are_reasons_and_so_is_what_the_database_says() {
        let (empty, me) = (Map::empty(16), MemberId(1));
        let others = Map { version: 3, ..empty.clone() };
        let [empty, others] = [empty, others].map(|map| Ok(Arc::new(map)));
        assert_eq!(reason(&empty, me, false, None), None, "there was no ring yet");
        let gone = reason(&empty, me, true, Some(MapLoss::Emptied));
        assert!(gone.as_deref().is_some_and(|why| why.contains("emptied")), "{gone:?}");
        let older = reason(&others, me, true, Some(MapLoss::Older));
        assert!(older.as_deref().is_some_and(|why| why.contains("TRUNCATE")), "{older:?}");
        assert!(reason(&others, me, true, None).is_some_and(|why| why.contains("does not have")));
        assert_eq!(reason(&others, me, false, None), None, "it joins");
    }

    #[test]
    fn a_map_that_cannot_be_read_is_a_reason_with_a_remedy() {
        use afterglow_ring::Malformed::{Short, Version};
        let refused = |code| MapRowError::Refused(code, "it says so".to_owned());
        for (error, said, remedy) in [
            (refused(ErrorCode::Invalid), "it says so", "start them again"),
            (refused(ErrorCode::Unavailable), "it says so", "ALTER KEYSPACE"),
            (MapRowError::Malformed(Version), "a newer format", "Upgrade this instance"),
            (MapRowError::Malformed(Short), "end too early", "TRUNCATE afterglow.ring"),
            (MapRowError::Shards(16, 4_096), "has 16 shards", "--ring-name"),
        ] {
            let why = reason(&Err(error), MemberId(1), true, None).unwrap();
            assert!(why.contains(said) && why.contains(remedy), "{why}");
        }
        let silent = reason(&Err(MapRowError::NoAnswer), MemberId(1), true, None);
        assert_eq!(silent.as_deref(), Some("no node of the database has answered"));
    }
}
