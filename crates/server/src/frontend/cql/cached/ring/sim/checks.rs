//! What must hold at any instant of a run, whether anybody reads or not.
//!
//! - One instance at most may serve a row.
//! - What an instance would serve of a row is no older than what was acknowledged.
//! - Nor is what it would carry over from an earlier epoch, from its own rows or from those of the
//!   shard's old owner.

use afterglow_engine::{Hit, Lookup};
use afterglow_ring::Carried;
use afterglow_rowcache::serve::CachePermission;
use bytes::Bytes;

use super::super::carry::older_row;
use super::catalog::{CatalogRow, stamp_of};
use super::plan::MS;
use super::process::Hands;
use super::world::{SimEvent, SimWorld};
use afterglow_rowcache::carried::CarriedRow;
use afterglow_rowcache::entry::Row;

impl SimWorld {
    /// Judges all rows of all caches.
    pub fn check(&mut self) {
        let wait = self.random.between(10, 90) * MS;
        self.push(self.now + wait, SimEvent::Check);
        let found = (0..self.plan.rows).find_map(|row| self.check_row(row).err());
        self.wrong = self.wrong.take().or(found);
    }

    fn check_row(&mut self, at: usize) -> Result<(), String> {
        let (now, floor) = (self.now, self.oracle.floor(at));
        let catalog = self.catalog.clone();
        let row = &catalog.rows[at];
        let (mut judged, mut carried, mut server) = (0, 0, None);
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(process) = &node.process else { continue };
            node.machine.takes_turn(now);
            let hands = &process.hands;
            let permission = hands.shared.cache.row_permission(row.table(), &row.key);
            let Ok(permission) = permission else { continue };
            if let Some(other) = server.replace(number) {
                return Err(format!("m{other} and m{number} may both serve row {at}"));
            }
            let present = served(hands, row, permission);
            judged += u64::from(present.is_some());
            if present.is_some_and(|stamp| stamp < floor) {
                let stamp = present.unwrap_or(0);
                return Err(format!(
                    "m{number} has write {stamp} of row {at}, but {floor} was acknowledged"
                ));
            }
            let Some(from) = hands.ring.carried(row.token) else { continue };
            for (whose, earlier) in self.carried_of(number, row, &from) {
                carried += 1;
                if earlier < floor {
                    return Err(format!(
                        "m{number} would carry write {earlier} of row {at} over from m{whose}, but \
                         {floor} was acknowledged"
                    ));
                }
            }
        }
        self.oracle.counts.judged += judged;
        self.oracle.counts.carried += carried;
        Ok(())
    }

    /// What this instance and the old owner of the row's shard have of an earlier epoch that counts
    /// still.
    fn carried_of(&self, number: usize, row: &CatalogRow, from: &Carried) -> Vec<(usize, i32)> {
        let hands = self.nodes[number].process.as_ref().map(|process| &process.hands);
        let old_owner = from.old_owner.map(|owner| owner.0 as usize);
        let all = [Some((number, from.epoch)), old_owner.map(|owner| (owner, from.epoch))];
        let counts = |(whose, before): (usize, u64)| {
            let process = self.nodes.get(whose)?.process.as_ref()?;
            self.nodes[whose].machine.takes_turn(self.now);
            let cache = &process.hands.shared.cache;
            let hit = hit(&process.hands, row)?;
            let found: CarriedRow = cache.carried(&hit, from.shard, before)?;
            self.nodes[number].machine.takes_turn(self.now);
            let fingerprint = row.read().fingerprint;
            let older = older_row(&found, (row.table(), fingerprint), row.token)?;
            let still = hands?.ring.counts_still(older);
            let bytes = Bytes::from(found.into_filled().bytes);
            Some((whose, stamp_of(&Row::checked(bytes, fingerprint)?))).filter(|_| still)
        };
        all.into_iter().flatten().filter_map(counts).collect()
    }
}

/// What is found under the row's key.
fn hit(hands: &Hands, row: &CatalogRow) -> Option<Hit> {
    match hands.shared.cache.look_up(&row.key) {
        Lookup::Hit(hit) => Some(hit),
        Lookup::Miss(_) | Lookup::Flash(_) => None,
    }
}

/// The write that a read would be shown.
fn served(hands: &Hands, row: &CatalogRow, permission: CachePermission) -> Option<i32> {
    let hit = hit(hands, row)?;
    let accepted = hands.shared.cache.accept(&hit, permission, row.read().fingerprint);
    accepted.ok().map(|row| stamp_of(&row))
}
