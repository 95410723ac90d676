//! Which devices a cache has, and what becomes of one that is missing, replaced or new.
//!
//! The state file lists the *members* of the set of devices. A member has a number, an *epoch* and
//! a range of logical segments; its superblock has the same. The epoch is a version: the device
//! joined the set then, and nothing on it with a lower generation counts.
//!
//! 1. A device whose superblock names a member is that member, wherever it stands in the list.
//! 2. A member that no device is, is forgotten, in the same step that begins the new life
//!    ([`begin`](super::begin)). Its segments are misses.
//! 3. A device that is blank, or that once was a member, joins: it gets a new superblock with a new
//!    epoch, and the first range of segments that is free and long enough.
//!
//! So a device that was away while the set went on comes back empty. What it missed meanwhile
//! (removals, checkpoints, journals begun anew) cannot bring anything back. A crash between the
//! new superblock and the state file leaves a device that is no member, which joins again.
//!
//! What joins may be a second name of a member. Nothing but its bytes tells ([`join`]).

use crate::checkpoint_areas::{HOMES, Home};
use crate::device::{DeviceId, DeviceInfo, DeviceSet, Disk};
use crate::error::OpenError;
use crate::format::state::{DeviceRecord, StateFile};
use crate::format::superblock::{Found, Superblock};
use crate::geometry::{self, MOST_SEGMENTS};

use super::device_io::read_superblock;
use super::superblocks::{Overwritten, same_device};

/// A member of the set of devices.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Where it is in the list that the cache is opened with.
    pub(super) device: DeviceId,
    pub(super) block: Superblock,
    /// First of its logical segments.
    pub(super) base: u32,
    /// Segments that can be named.
    pub(super) segments: u32,
    /// Which home of checkpoints it is, if it is one.
    pub(super) home: Option<usize>,
    /// It is to get its superblock and its epoch.
    pub(super) joins: bool,
}

impl Member {
    /// What the state file says of it.
    pub(super) fn record(&self, infos: &[DeviceInfo]) -> DeviceRecord {
        let path = infos[usize::from(self.device.0)].path.display().to_string();
        DeviceRecord {
            id: self.block.device,
            epoch: self.block.set_epoch,
            base: self.base,
            segments: self.segments,
            home: self.home.map_or(0, |home| home as u32 + 1),
            path,
        }
    }

    /// As a home of checkpoints.
    fn as_home(&self) -> Option<Home> {
        let number = self.home?;
        let offsets = [self.block.area_at(0), self.block.area_at(1)];
        Some(Home {
            device: self.device,
            number,
            offsets,
            len: self.block.area,
            epoch: self.block.set_epoch,
        })
    }
}

/// The homes among them that were members before.
pub(super) fn homes_of(members: &[Member]) -> Vec<Home> {
    members.iter().filter(|member| !member.joins).filter_map(Member::as_home).collect()
}

/// All homes among them, those of [`homes_of`] first: what was found is known by its place there.
pub(super) fn all_homes_of(members: &[Member]) -> Vec<Home> {
    let joiners = members.iter().filter(|member| member.joins);
    homes_of(members).into_iter().chain(joiners.filter_map(Member::as_home)).collect()
}

/// The members of a cache whose devices have these superblocks, one behind the other: a new one, or
/// one whose state file does not list them yet.
pub(super) fn in_a_row(blocks: &[Superblock]) -> Vec<Member> {
    let (mut base, mut homes) = (0, 0..HOMES);
    let member = |block: &Superblock| {
        let segments = block.segments.min(MOST_SEGMENTS - base);
        let home = if block.area > 0 { homes.next() } else { None };
        let device = DeviceId(block.device as u16);
        let member = Member { device, block: *block, base, segments, home, joins: false };
        base += segments;
        member
    };
    blocks.iter().map(member).collect()
}

/// Finds the members among the devices, and has the others join. `None` where what is left cannot
/// go on: nothing of it, or no home of checkpoints.
pub(super) fn find_members(
    state: &StateFile,
    infos: &[DeviceInfo],
    found: &[Option<Found>],
) -> Option<Vec<Member>> {
    let known = |block: &Superblock| {
        let is_it =
            |record: &&DeviceRecord| record.id == block.device && record.epoch == block.set_epoch;
        state.devices.iter().find(is_it)
    };
    let mut members: Vec<Member> = Vec::new();
    for (n, found) in found.iter().enumerate() {
        let Some(Found::Ours(block)) = found else { continue };
        let Some(record) = known(block) else { continue };
        // A copy of a member beside it is not another one.
        if members.iter().any(|member| member.block.device == block.device) {
            continue;
        }
        members.push(Member {
            device: DeviceId(n as u16),
            block: *block,
            base: record.base,
            segments: record.segments,
            home: record.home.checked_sub(1).map(|home| home as usize),
            joins: false,
        });
    }
    tell_missing(state, &members, infos, found);
    if homes_of(&members).is_empty() {
        return None;
    }
    for (n, info) in infos.iter().enumerate() {
        let device = DeviceId(n as u16);
        let is_there = matches!(found[n], Some(Found::Ours(_) | Found::Blank));
        if is_there && members.iter().all(|member| member.device != device) {
            members.extend(joiner(state, &members, device, info));
        }
    }
    members.sort_by_key(|member| member.device);
    Some(members)
}

fn tell_missing(
    state: &StateFile,
    members: &[Member],
    infos: &[DeviceInfo],
    found: &[Option<Found>],
) {
    for (info, _) in infos.iter().zip(found).filter(|(_, found)| found.is_none()) {
        tracing::warn!(path = %info.path.display(), "the device cannot be read: the cache goes on without it");
    }
    let all: u32 = state.devices.iter().map(|record| record.segments).sum();
    for record in &state.devices {
        if members.iter().any(|member| member.block.device == record.id) {
            continue;
        }
        coverage_mark!(MemberMissing);
        tracing::warn!(
            path = record.path,
            segments = record.segments,
            of = all,
            "a device of the cache is missing: what it held are misses, the others keep theirs; when it is back it joins empty"
        );
    }
}

/// A device that joins a set; `None` where it is of no use.
fn joiner(
    state: &StateFile,
    members: &[Member],
    device: DeviceId,
    info: &DeviceInfo,
) -> Option<Member> {
    let like = members.first()?.block;
    let used = |number: usize| members.iter().any(|member| member.home == Some(number));
    let area = members.iter().map(|member| member.block.area).max()?;
    let home =
        (0..HOMES).find(|&number| !used(number)).filter(|_| geometry::may_be_home(info, area));
    // Not that of a member of the life before, nor of a joiner beside it. One that was a member
    // earlier may have had the same: its epoch is another.
    let ids = state.devices.iter().map(|record| record.id);
    let id = ids.chain(members.iter().map(|member| member.block.device)).max()? + 1;
    let mut block = Superblock {
        device: id,
        devices: id + 1,
        size: info.size,
        segments: 0,
        area: if home.is_some() { area } else { 0 },
        ..like
    };
    let room = info.size.saturating_sub(block.first_segment()) / u64::from(like.segment_size);
    block.segments = room.min(MOST_SEGMENTS.into()) as u32;
    let base = first_hole(members, block.segments);
    let segments = block.segments.min(MOST_SEGMENTS.saturating_sub(base));
    if segments == 0 {
        tracing::warn!(path = %info.path.display(), "the device is too small for a segment, or the cache names no more of them: it is not used");
        return None;
    }
    coverage_mark!(MemberJoined);
    tracing::info!(path = %info.path.display(), segments, "a device joins the cache, empty");
    Some(Member { device, block, base, segments, home, joins: true })
}

/// The first logical segment from which on so many are nobody's.
fn first_hole(members: &[Member], segments: u32) -> u32 {
    let mut ranges: Vec<(u32, u32)> =
        members.iter().map(|member| (member.base, member.segments)).collect();
    ranges.sort_unstable();
    let mut end = 0;
    for (base, len) in ranges {
        if base - end >= segments {
            return end;
        }
        end = base + len;
    }
    end
}

/// Writes the superblocks of devices that join, with this epoch. One that cannot be written is left
/// out.
///
/// A device may join by a second name of one that is there already. Its superblock then replaces
/// that of the other. All are written back, and the opening is refused: each start would forget the
/// one or the other otherwise.
pub(super) fn join(
    members: &mut Vec<Member>,
    epoch: u64,
    set: &dyn DeviceSet,
    disk: &mut dyn Disk,
) -> Result<(), OpenError> {
    let all: Vec<DeviceId> = members.iter().map(|member| member.device).collect();
    let (mut overwritten, mut twins) = (Overwritten::default(), None);
    members.retain_mut(|member| {
        if !member.joins || twins.is_some() {
            return true;
        }
        member.block.set_epoch = epoch;
        let (device, block) = (member.device, member.block);
        let says_so = |device: DeviceId| {
            read_superblock(set, device.0).is_ok_and(|found| found == Found::Ours(block))
        };
        let joined = overwritten.write(set, disk, device, &block).is_ok() && says_so(device);
        if !joined {
            let path = set.infos()[usize::from(device.0)].path.display();
            tracing::warn!(%path, "the device cannot be written: it does not join the cache");
        }
        // Also where the write is said to have failed: it may have been done all the same.
        let twin = |other: &&DeviceId| **other != device && says_so(**other);
        twins = all.iter().find(twin).map(|other| (*other, device));
        joined
    });
    let Some((one, other)) = twins else { return Ok(()) };
    overwritten.undo(set.infos(), disk);
    Err(same_device(set.infos(), one, other))
}
