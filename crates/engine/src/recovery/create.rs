//! Creates a new cache on the devices.

use std::io;

use super::device_io::{read_superblock, run};
use super::env::Env;
use super::kill_log::FoundKillLog;
use super::members::{homes_of, in_a_row};
use super::outlook::Outlook;
use super::past::{End, Past};
use crate::config::Config;
use crate::device::{AlignedBuf, DeviceId, Disk, Io, IoKind};
use crate::error::OpenError;
use crate::format::state::{KillLog, STATE, StateFile};
use crate::format::superblock::Found;
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
    env.meta.remove(STATE).map_err(OpenError::io("removing the old state file"))?;
    for block in &blocks {
        let device = DeviceId(block.device as u16);
        let path = env.set.infos()[block.device as usize].path.display().to_string();
        let data = AlignedBuf::copy_of(&block.encode()).into();
        run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Write { data } })
            .map_err(OpenError::io(format!("writing the superblock of {path}")))?;
        run(disk, Io { id: 0, device, offset: 0, kind: IoKind::Sync })
            .map_err(OpenError::io(format!("flushing {path}")))?;
        // The state file will name this uuid: a device that has not taken it would look like
        // another cache's.
        if read_superblock(&*env.patient, device.0)? != Found::Ours(*block) {
            let lost = io::Error::other("it reads back differently");
            return Err(OpenError::Io {
                what: format!("writing the superblock of {path}"),
                source: lost,
            });
        }
    }
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
