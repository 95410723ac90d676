//! Begins a new life of the cache: writes what must be durable before anything else changes.

use std::io;
use std::sync::Arc;

use super::checkpoints::UnreadArea;
use super::device_io::{asked, run};
use super::env::Env;
use super::members::join;
use super::past::{End, Past};
use crate::device::area::Media;
use crate::device::{AlignedBuf, DeviceId, Disk, Io, IoKind, is_no_answer, no_answer};
use crate::error::OpenError;
use crate::format::BLOCK;
use crate::format::journal::Event;
use crate::format::state::{NO_CHECKPOINT, STATE, StateFile};
use crate::journal::Journal;
use crate::version::{self, Versions};

/// Versions skipped when some may have been used beyond the limit.
const DOUBT: u64 = 1 << 30;

/// Removals that go from the old journal into a new one.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) entries: Vec<(Event, u64)>,
    /// Position of the first.
    pub(super) head: u64,
}

/// Removals to copy from the old journal into the new one, and the position to write them at.
/// Namespaces that stay warm need them. A namespace whose removals find no space there is not warm.
pub(super) fn carried_removals(past: &Past, env: &Env, warm: &mut [bool]) -> Carried {
    let Some(scan) = past.scan.as_ref().filter(|_| !past.journal_ok) else {
        return Carried::default();
    };
    let is_warm = |ns: u16| warm.get(usize::from(ns)).is_some_and(|w| *w);
    let kills =
        scan.kills().map(|kill| (Event::Kill { hash: kill.hash, ns: kill.ns }, kill.version));
    let others = scan.others.iter().map(|entry| (entry.event, entry.version));
    let entries: Vec<_> =
        kills.chain(others).filter(|(event, _)| event.namespace().is_some_and(is_warm)).collect();
    // Entries of the old journal must stay until the state file names the new one. So these go
    // behind the old head, where nothing was written yet.
    let room = Journal::capacity(&*env.journal).saturating_sub(scan.head);
    if entries.len() as u64 <= room {
        return Carried { entries, head: scan.head };
    }
    for ns in entries.iter().filter_map(|(event, _)| event.namespace()) {
        warm[usize::from(ns)] = false;
    }
    Carried::default()
}

/// The last life may have died between the write of its checkpoint's header and the flush. Whether
/// the checkpoint will last, also should the power go now: only then the journal below it may be
/// used again.
///
/// It may also have died behind the erasure of a header, of an attempt that failed. The power would
/// bring that back, and the next life would go on from it, not from what this one knows. So all
/// homes are flushed then. Otherwise one that has the checkpoint is enough.
pub(super) fn flush_checkpoint(past: &Past, disk: &mut dyn Disk) -> bool {
    let holders = past.checkpoint.as_ref().map_or(&[][..], |checkpoint| &checkpoint.homes);
    let mut lasts = holders.is_empty();
    for (n, home) in past.homes.iter().enumerate() {
        let holds = holders.contains(&n);
        if past.end != End::Process && (lasts || !holds) {
            continue;
        }
        match run(disk, Io { id: 0, device: home.device, offset: 0, kind: IoKind::Sync }) {
            Ok(_) => lasts |= holds,
            Err(error) => {
                tracing::warn!(%error, "a home of checkpoints could not be flushed");
            }
        }
    }
    if !lasts {
        tracing::warn!(
            "the checkpoint could not be flushed: the journal is kept until the next one"
        );
    }
    lasts
}

/// Starts a new life: durable before anything else changes. Namespaces that start cold are killed
/// in the same step. If this life ended at once, the next one would otherwise see an ordinary
/// process crash, with nothing in doubt.
pub(super) fn begin_life(
    past: &mut Past,
    env: &Env,
    disk: &mut dyn Disk,
    warm: &[bool],
    carried: &Carried,
    checkpoint_lasts: bool,
) -> Result<(StateFile, Journal, Versions), OpenError> {
    let mut state = past.state.clone();
    let doubt = past.end != End::New && past.end != End::Clean && !past.journal_ok;
    let kill = state.version_limit + if doubt { DOUBT } else { 0 };
    let next = kill + 1;
    for (ns, warm) in state.namespaces.iter_mut().zip(warm) {
        ns.journal_gaps &= past.end != End::Clean;
        if !warm {
            ns.kill = kill;
            tracing::info!(namespace = %ns.name, "the namespace starts cold: its objects could be stale");
        }
    }
    state.clean = false;
    state.generation += 1;
    state.boot_id = env.boot_id.unwrap_or([0; 16]);
    state.version_limit = next + version::BLOCK;
    state.time = past.time().max(env.clock.unix());
    let media = env.journal.clone();
    let next_position = carried.head + carried.entries.len() as u64;
    let needed = past.checkpoint.as_ref().map_or(0, |c| c.header.journal_position);
    state.kill_log = match past.journal_ok {
        true => past.kill_log.kept(checkpoint_lasts.then_some(needed)),
        false => past.kill_log.none(),
    };
    if !past.journal_ok {
        state.journal_epoch = state.generation;
        state.checkpoint = past.checkpoint.as_ref().map_or(NO_CHECKPOINT, |c| c.header.sequence);
        // This comes before the state file names the new journal. A crash in between finds the old
        // journal as it was.
        write_carried(carried, media.clone(), &state)?;
    }
    // Behind every version used so far, below every one to come.
    join(&mut past.members, kill, &*env.patient, disk)?;
    state.devices = past.members.iter().map(|member| member.record(env.set.infos())).collect();
    env.meta.replace(STATE, &state.encode()).map_err(OpenError::io("writing the state file"))?;
    let journal = match &past.scan {
        Some(scan) if past.journal_ok => {
            let head = scan.head.max(needed);
            let tail = if checkpoint_lasts { needed } else { 0 }.max(state.kill_log.end());
            Journal::resume(media, &state.uuid, state.journal_epoch, head, tail)
        }
        _ => {
            let positions = carried.head..next_position;
            Journal::create(media, &state.uuid, state.journal_epoch, positions, state.time)
                .map_err(OpenError::io("writing the journal"))?
        }
    };
    if past.end != End::New && !past.journal_ok {
        journal.set_bare();
    }
    let versions = Versions::new(next, state.version_limit);
    Ok((state, journal, versions))
}

/// Writes what is carried over into the journal that is about to be named by the state file.
fn write_carried(
    carried: &Carried,
    media: Arc<dyn Media>,
    state: &StateFile,
) -> Result<(), OpenError> {
    if carried.entries.is_empty() {
        return Ok(());
    }
    let journal =
        Journal::resume(media, &state.uuid, state.journal_epoch, carried.head, carried.head);
    for &(event, version) in &carried.entries {
        coverage_mark!(CarriedOver);
        journal.append(event, version);
    }
    let lost =
        if journal.is_poisoned() { Err(io::Error::other("an entry was lost")) } else { Ok(()) };
    lost.and_then(|()| journal.sync()).map_err(OpenError::io("writing the journal"))
}

/// Erases checkpoints that cannot be read, so that no later run goes on from one.
///
/// A power loss takes journal entries that were not flushed. So such a checkpoint may need the
/// journal only from a position that this run has not reached. Removals of this run would lie below
/// that position. A later run that can read the checkpoint again would pass over them. A journal
/// that is begun anew has positions of its own, so this cannot happen there.
///
/// Where erasing fails, the cache goes on without the device, if the newest checkpoint is on
/// another one: what the device holds is misses then. Otherwise the journal is begun anew: Mutable
/// namespaces start cold.
///
/// Of a device that does not answer nothing is erased: that could happen when it answers again, and
/// take what is newer by then.
///
/// # Errors
/// The cache cannot go on without a device that does not answer, or the process is short of what
/// an I/O takes.
pub(super) fn forget_unread(
    mut past: Past,
    env: &Env,
    disk: &mut dyn Disk,
) -> Result<Past, OpenError> {
    if !past.journal_ok || past.unread.is_empty() {
        return Ok(past);
    }
    coverage_mark!(CheckpointErased);
    for UnreadArea { device, offset, hangs } in past.unread.clone() {
        if past.members.iter().all(|member| member.device != device) {
            continue;
        }
        let erased = if hangs { Err(no_answer()) } else { erase(disk, device, offset) };
        let erased = asked(&*env.set, device, "erase a checkpoint on", erased)?;
        let Err(error) = erased else { continue };
        if past.leave_out(device) {
            coverage_mark!(HomeLeftOut);
            tracing::warn!(
                device = device.0, %error,
                "a checkpoint can be neither read nor erased: the cache goes on without its device"
            );
        } else if is_no_answer(&error) {
            let path = env.set.infos()[usize::from(device.0)].path.clone();
            return Err(OpenError::Unreadable { path });
        } else {
            tracing::warn!(%error, "a checkpoint can be neither read nor erased: what it may cover starts cold");
            past.journal_ok = false;
            // Those of the kill log have no room in a new journal.
            past.removals_ok &= past.kill_log.runs.is_empty();
            return Ok(past);
        }
    }
    Ok(past)
}

/// Has what lies in an area be no checkpoint.
fn erase(disk: &mut dyn Disk, device: DeviceId, offset: u64) -> io::Result<()> {
    let data = AlignedBuf::zeroed(BLOCK as usize).into();
    run(disk, Io { id: 0, device, offset, kind: IoKind::Write { data } })?;
    run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Sync })
}
