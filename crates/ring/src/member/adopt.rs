//! What a newer map changes.

use std::sync::Arc;

use super::{MapLoss, Member};
use crate::identity::Identity;
use crate::io::Io;
use crate::map::{Map, MemberEntry};
use crate::placement;

impl Member {
    /// Adopts a map if it is newer than ours.
    pub(super) fn adopt(&mut self, map: Arc<Map>, io: &mut Io<'_>) {
        let first = self.map.is_none();
        if !first && map.version <= self.version() {
            return;
        }
        if self.reads.loss == Some(MapLoss::Older) {
            // The database has forgotten changes that we know. In the ones that have come instead
            // epochs may be others.
            self.custody.begin_anew(io.rows);
        }
        let me = map
            .entry(self.id)
            .map(|entry| entry.identity)
            .filter(|who| self.tried.contains(&who.incarnation));
        if me != self.me {
            self.join.begin();
        }
        if first {
            self.was_leaving = map.entry(self.id).is_some_and(|entry| entry.leaving);
        }
        let stays = me.is_some() && me == self.me;
        self.me = me;
        self.had_place |= me.is_some();
        self.going_since = None;
        self.hash = map.fingerprint();
        self.adopted = io.now;
        let is_out = |entry: &MemberEntry| !entry.leaving && map.entry(entry.identity.id).is_none();
        if self.map.as_ref().is_some_and(|old| old.members.iter().any(is_out)) {
            self.bereft = Some(io.now);
        }
        // Moves do not wait for each other: only members that come and go make the map unstable.
        if self.map.as_ref().is_none_or(|old| old.members != map.members) {
            self.stable_since = io.now;
            self.fills_up = false;
        }
        self.settings_shown(&map);
        self.promises.adopted(&map);
        self.transactions.adopted(&map);
        self.takeover.adopted(&map, me, io.now);
        self.sight.adopted(&map);
        self.drifts.adopted(&map);
        self.handover.adopted();
        let maps = (&*map, self.map.as_deref(), stays);
        self.reads.moves_to_come =
            map.accused().next().is_some() || placement::wanted(&map, self.id).is_some();
        self.custody.adopted(maps, self.id, io.now, &self.config, io.rows);
        self.map = Some(map);
        self.reckon();
        if !first {
            // Whoever has an older map hears of this one at once.
            self.next_ping = io.now;
        }
        self.advance_writes(io);
    }

    /// A map that shows new settings of ours for the first time. The one before said others, on
    /// which somebody may have relied until now.
    fn settings_shown(&mut self, map: &Map) {
        let shows = |map: &Map| Some(map.entry(self.id)?.profile.settings == self.profile.settings);
        if self.map.as_deref().and_then(shows) == Some(false) && shows(map) == Some(true) {
            self.distrust_older();
        }
    }

    pub(super) fn reckon(&mut self) {
        if let Some(map) = &self.map {
            self.lease.reckon(map, self.me, &self.config);
        }
    }

    /// Who we are, if the map says we are active.
    pub(super) fn active_me(&self) -> Option<Identity> {
        self.me.filter(|me| self.map.as_ref().is_some_and(|map| map.is_active(*me)))
    }
}
