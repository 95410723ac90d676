//! Creates a new cache on the devices.

use std::io;

use super::device_io::read_superblock;
use super::env::Env;
use super::kill_log::FoundKillLog;
use super::members::{homes_of, in_a_row};
use super::outlook::Outlook;
use super::past::{End, Past};
use super::superblocks::{self, Overwritten, same_device};
use crate::config::Config;
use crate::device::{DeviceId, Disk};
use crate::error::OpenError;
use crate::format::state::{KillLog, STATE, StateFile};
use crate::format::superblock::{Found, Superblock};
use crate::geometry;

/// Makes a new cache on the devices. The cache before may have files of a kill log in so many
/// `slots`, which are removed later.
pub(super) fn create(
    config: &Config,
    env: &Env,
    disk: &mut dyn Disk,
    replaced: Option<&'static str>,
    slots: u32,
) -> Result<Past, OpenError> {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.entropy[0].to_le_bytes());
    uuid[8..].copy_from_slice(&env.entropy[1].to_le_bytes());
    let (hash_seed, set_epoch) = (env.entropy[2], 1);
    let blocks = geometry::format(config, env.set.infos(), uuid, hash_seed, set_epoch)?;
    // What cannot work is refused before anything of the cache before is gone.
    Outlook::divided(config, &blocks)?;
    // Without a state file, devices of ours are nobody's: a crash on the way leaves something to be
    // made anew.
    // A lone device has no second name: nothing of it is ever written back.
    let before = match blocks.len() {
        1 => None,
        _ => env.meta.read(STATE).map_err(OpenError::io("reading the old state file"))?,
    };
    env.meta.remove(STATE).map_err(OpenError::io("removing the old state file"))?;
    write_superblocks(env, disk, &blocks, before.as_deref())?;
    let state = StateFile {
        clean: false,
        uuid,
        generation: 0,
        boot_id: [0; 16],
        version_limit: 1,
        time: 0,
        hash_seed,
        set_epoch,
        checkpoint: 0,
        journal_epoch: 0,
        namespaces: Vec::new(),
        devices: Vec::new(),
        kill_log: KillLog::default(),
    };
    let members = in_a_row(&blocks);
    Ok(Past {
        state,
        end: End::New,
        replaced,
        scan: None,
        kill_log: FoundKillLog::left(slots),
        checkpoint: None,
        homes: homes_of(&members),
        unread: Vec::new(),
        journal_ok: false,
        removals_ok: false,
        timeless: false,
        segment_size: blocks[0].segment_size,
        members,
    })
}

/// Writes the superblocks and reads them all back. Where that fails all is as `before` again, with
/// the state file that there was: a lone device that refuses costs the others nothing.
fn write_superblocks(
    env: &Env,
    disk: &mut dyn Disk,
    blocks: &[Superblock],
    before: Option<&[u8]>,
) -> Result<(), OpenError> {
    let mut overwritten = Overwritten::default();
    let written = write_and_check(env, disk, blocks, &mut overwritten);
    if written.is_err() && blocks.len() > 1 {
        overwritten.undo(env.set.infos(), disk);
        if let Some(state) = before {
            env.meta.replace(STATE, state).map_err(OpenError::io("writing the state file"))?;
        }
    }
    written
}

/// The state file will name the superblocks' uuid: a device that has not taken its own would look
/// like another cache's. One that has that of another is the same device.
fn write_and_check(
    env: &Env,
    disk: &mut dyn Disk,
    blocks: &[Superblock],
    overwritten: &mut Overwritten,
) -> Result<(), OpenError> {
    let infos = env.set.infos();
    let writing = |block: &Superblock| {
        format!("writing the superblock of {}", infos[block.device as usize].path.display())
    };
    for block in blocks {
        let device = DeviceId(block.device as u16);
        let written = match blocks {
            // There is nothing that it could be a second name of.
            [_] => superblocks::write(disk, device, &block.encode()),
            _ => overwritten.write(&*env.patient, disk, device, block),
        };
        written.map_err(OpenError::io(writing(block)))?;
    }
    for block in blocks {
        let found = read_superblock(&*env.patient, block.device as u16)?;
        if found == Found::Ours(*block) {
            continue;
        }
        let Some(other) = blocks.iter().find(|other| found == Found::Ours(**other)) else {
            let source = io::Error::other("it reads back differently");
            return Err(OpenError::Io { what: writing(block), source });
        };
        let [one, other] = [block, other].map(|block| DeviceId(block.device as u16));
        return Err(same_device(infos, one, other));
    }
    Ok(())
}
