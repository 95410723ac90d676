//! What the last life left, and what of it is valid.

use super::checkpoints::{FoundCheckpoint, UnreadArea};
use super::kill_log::FoundKillLog;
use super::members::Member;
use crate::checkpoint_areas::Home;
use crate::config::{Durability, Mutability, NamespaceOptions, Survives};
use crate::device::DeviceId;
use crate::format::checkpoint::Header;
use crate::format::state::StateFile;
use crate::journal::Scan;

/// Seconds that the highest time seen may be ahead of the wall clock.
const MAX_AHEAD: u64 = 86_400;

/// How the last life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    New,
    Clean,
    Process,
    Machine,
}

/// What was found and what may be believed of it.
pub(super) struct Past {
    pub(super) state: StateFile,
    /// Devices of the cache.
    pub(super) members: Vec<Member>,
    /// Bytes of a segment.
    pub(super) segment_size: u32,
    pub(super) end: End,
    /// Why an empty cache took the place of the one that was there.
    pub(super) replaced: Option<&'static str>,
    pub(super) scan: Option<Scan>,
    /// Parts of the journal that are elsewhere.
    pub(super) kill_log: FoundKillLog,
    /// The newest checkpoint.
    pub(super) checkpoint: Option<FoundCheckpoint>,
    /// Homes of checkpoints.
    pub(super) homes: Vec<Home>,
    /// Areas whose checkpoint may be newer and cannot be read, by device and offset.
    pub(super) unread: Vec<UnreadArea>,
    /// The journal tells every kill since the checkpoint.
    pub(super) journal_ok: bool,
    /// Journal and checkpoint together tell all removals from Immutable namespaces.
    pub(super) removals_ok: bool,
    /// What it knew of time was forgotten, and with it every object.
    pub(super) timeless: bool,
}

impl Past {
    /// Bytes of all devices.
    pub(super) fn flash(&self) -> u64 {
        self.members.iter().map(|member| member.block.size).sum()
    }

    /// Goes on without a device, as if it were missing. Says whether that is possible: another home
    /// has the newest checkpoint, or there is another and no checkpoint.
    pub(super) fn leave_out(&mut self, device: DeviceId) -> bool {
        let kept: Vec<usize> =
            (0..self.homes.len()).filter(|&home| self.homes[home].device != device).collect();
        let now = |home: &usize| kept.iter().position(|other| other == home);
        let homes = self.checkpoint.as_ref().map(|c| c.homes.iter().filter_map(now).collect());
        if kept.is_empty() || homes.as_ref().is_some_and(Vec::is_empty) {
            return false;
        }
        if let (Some(checkpoint), Some(homes)) = (&mut self.checkpoint, homes) {
            checkpoint.homes = homes;
        }
        self.homes.retain(|home| home.device != device);
        self.members.retain(|member| member.device != device);
        true
    }

    /// Highest Unix time seen.
    pub(super) fn time(&self) -> u64 {
        let of_this_journal = |header: &&Header| header.journal_epoch == self.state.journal_epoch;
        let times = [
            self.scan.as_ref().map_or(0, |s| s.time),
            self.checkpoint
                .as_ref()
                .map(|c| &c.header)
                .filter(of_this_journal)
                .map_or(0, |header| header.time),
        ];
        times.into_iter().fold(self.state.time, u64::max)
    }
}

/// A time far beyond the wall clock was a mistake of the clock. It is forgotten, with everything
/// that may have been judged by it or may have expired since.
pub(super) fn doubt_time(mut past: Past, wall: u64) -> Past {
    let ahead = past.time().saturating_sub(wall);
    if ahead > MAX_AHEAD {
        tracing::warn!(
            seconds = ahead,
            "the clock was ahead of what it shows now by more than a day: the cache starts cold, with the time as it is now"
        );
        past.state.time = 0;
        (past.scan, past.checkpoint, past.timeless) = (None, None, true);
        (past.journal_ok, past.removals_ok) = (false, false);
    }
    past
}

/// Which namespaces (by id) are warm; the others start cold.
pub(super) fn warm_namespaces(past: &Past) -> Vec<bool> {
    let warm = |o: &NamespaceOptions| match past.end {
        _ if past.timeless => false,
        End::New => false,
        End::Clean => true,
        _ if o.survives == Survives::CleanStop => false,
        // A lost entry may have been a removal.
        _ if o.mutability == Mutability::Immutable => past.removals_ok,
        End::Process => past.journal_ok,
        End::Machine => past.journal_ok && o.durability == Durability::Synced,
    };
    past.state.namespaces.iter().map(|n| warm(&n.options)).collect()
}
