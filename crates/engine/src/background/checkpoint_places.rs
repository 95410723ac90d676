//! Where a checkpoint goes: the homes that take it, the room that it gets there, and another
//! segment in the place of one that cannot be written.

use super::Background;
use super::growth::take_for_checkpoint;
use super::parts::checkpoint::AreaAt;
use crate::format::checkpoint::Header;

impl Background {
    /// Whether the device of a home answers.
    fn answers(&self, home: usize) -> bool {
        !self.devices[usize::from(self.checkpoint.areas.device(home).0)].silent
    }

    /// Has each home that answers get what checkpoints of the index as it is now need there: one
    /// that joined, or that was silent when the index grew, has not got it yet.
    ///
    /// Before the version floor is read: the checkpoint may name no segment whose opening the
    /// journal tells above it.
    pub(super) fn complete_homes(&mut self) {
        // As many as an index may have by the time that it is held.
        let allowed = self.core.shards.iter().map(|slot| slot.lock().index.allowed());
        let lines = allowed.max().unwrap_or(0);
        if lines > self.core.shards[0].index.base_lines() {
            self.make_room_for_checkpoints(lines as u64);
        }
    }

    /// The homes that take a checkpoint now. `Err` where none does: whether it would fit one that
    /// answers, or whether none answers.
    pub(super) fn homes_for(&self, header: &Header, which: u32) -> Result<Vec<usize>, bool> {
        let (areas, table) = (&self.checkpoint.areas, &self.core.table);
        let at = |home| AreaAt { home, which };
        let answering: Vec<usize> = areas.homes().filter(|&home| self.answers(home)).collect();
        let takes = |home: &usize| areas.takes(table, header, at(*home));
        let homes: Vec<usize> = answering.iter().copied().filter(takes).collect();
        if !homes.is_empty() {
            return Ok(homes);
        }
        let fits = |&home: &usize| areas.fits(table, header, at(home));
        Err(answering.is_empty() || answering.iter().any(fits))
    }

    /// Says once when a checkpoint has a place in one home only, although the other one answers.
    pub(super) fn look_at_homes(&mut self, header: &Header, which: u32) {
        let (areas, table) = (&self.checkpoint.areas, &self.core.table);
        let lacks = |&home: &usize| {
            self.answers(home) && !areas.fits(table, header, AreaAt { home, which })
        };
        let lacking = areas.homes().find(lacks).filter(|_| areas.homes().len() > 1);
        if let Some(home) = lacking.filter(|_| !self.homes_warned) {
            let path = self.core.set.infos()[usize::from(areas.device(home).0)].path.display();
            tracing::warn!(
                %path,
                "checkpoints of so large an index have no place on the device: they are on one device only until it has free segments"
            );
        }
        self.homes_warned = lacking.is_some();
    }

    /// A checkpoint has no place. Where the index has grown it gets more segments, for kill tables
    /// may be larger than was reckoned with. Where there are none it is tried again later.
    /// Otherwise the kill tables are too large.
    pub(super) fn make_it_fit(&mut self, header: &Header) {
        if !header.grown {
            return self.shrink_tables();
        }
        self.checkpoint.areas.reckon_with(header.tables_len);
        if self.make_room_for_checkpoints(header.lines) {
            self.checkpoint.wanted = true;
            return;
        }
        let empty = Header { tables_len: 0, ..*header };
        let which = self.checkpoint.last.map_or(0, |(_, which)| 1 - which);
        if matches!(self.homes_for(&empty, which), Ok(_) | Err(true)) {
            return self.shrink_tables();
        }
        self.fail_checkpoint();
    }

    /// The kill tables do not fit the area: the namespace with the largest one is cleared, and with
    /// it its table.
    fn shrink_tables(&mut self) {
        self.core.totals.checkpoint_failures.inc();
        let namespaces = self.core.namespaces.list.read().clone();
        let size = |kills: &crate::format::checkpoint::NamespaceKills| {
            kills.groups.len() + kills.epochs.len()
        };
        if let Some(ns) = namespaces.iter().max_by_key(|ns| size(&ns.kills())) {
            tracing::warn!(namespace = %ns.name, "more groups and partitions were removed than a checkpoint can hold: the namespace is cleared");
            self.core.kill(ns, crate::format::journal::Event::Clear { ns: ns.id });
        }
        self.checkpoint.wanted = true;
    }

    /// Puts a free segment in the place of one of an area's that could not be written. Nothing is
    /// lost: the newest checkpoint is in the other area.
    pub(super) fn replace_segment(&mut self, at: AreaAt, number: usize) {
        if self.checkpoint.areas.is_late(at)
            || self.core.table.free_count() <= self.core.admission.free_target
        {
            return;
        }
        let device = self.checkpoint.areas.device(at.home);
        let Some(new) = take_for_checkpoint(&self.core, device) else { return };
        let segment = self.checkpoint.areas.replace(at, number, new);
        self.core.table.give_up_checkpoint(segment);
        self.core.totals.segments_retired.inc();
        tracing::warn!(
            segment,
            "writing a checkpoint there failed: another segment takes its place, and it is tried again later"
        );
    }
}
