//! A simulated machine: devices, media and metadata files that fail and crash as real ones do, only
//! more often and always the same way for the same seed. No operating system, no threads, no time.
//!
//! # Fault model
//!
//! Without faults ([`SimFaults::none`]) devices are right, but never obliging:
//! - I/Os in flight complete in random order, after a random number of turns (a turn is one call of
//!   `wait`); a *slow* one takes a hundred times as long.
//! - A read that overlaps a write in flight sees each 512-byte sector old or new.
//!
//! **Process crash** ([`Crash::Process`], `kill -9`): acknowledged writes and finished media stores
//! survive, synced or not. A write in flight survives whole, not at all, or torn at sectors. A
//! media store cut short leaves a prefix of its 8-byte words. A metadata replacement cut short
//! leaves the old or the new content.
//!
//! **Machine crash** ([`Crash::Machine`], power loss): as above, and also everything acknowledged
//! but not synced is at risk: each device write since the last completed sync is kept, lost or
//! torn, in any order; of unsynced media words any subset goes back to its synced value. What was
//! acknowledged before a sync was *submitted*, and only that, is safe once the sync completes. The
//! boot id changes.
//!
//! **Faults**, each with its own probability in [`SimFaults`]:
//! - `read_error`, `write_error`, `sync_error`: EIO. A failed write leaves each sector old or new;
//!   a failed sync makes nothing durable.
//! - `no_space`: a write fails with ENOSPC and changes nothing (thin provisioning).
//! - `short_read`: fails with `UnexpectedEof`.
//! - `flip_on_read`: one bit of the result is wrong, the stored one is right.
//! - `flip_on_write`: acknowledged, one stored bit is wrong.
//! - `misdirected_write`: acknowledged, but the data is elsewhere on the device, over what was
//!   there.
//! - `lost_write`: acknowledged, nothing was stored.
//! - `slow`: see above.
//! - `media_error`: a store leaves a prefix of its words and fails with EIO; a load fails with EIO.
//! - `media_sync_error`: a sync fails with EIO, once: later ones pass over the pages with unsynced
//!   words (4 KiB) until they are stored to again, as kernels do that drop what they could not
//!   write.
//! - `meta_error`: a read fails; a replacement fails with the old or the new content in place.
//!
//! One I/O chosen beforehand may be *held up* for as many turns as told ([`SimMachine::hold_up`]),
//! while all others overtake it.
//!
//! A flush of a media area, and a change of a metadata file, may *block* whoever calls for it while
//! others go on (`SimMachine::block_with`). Flushes of devices are held up as other I/Os.
//!
//! A device may also be *away*: every I/O fails with EIO until it is back, with what it held. And a
//! device may be exchanged for an empty one.
//!
//! Not modelled: sectors that fail again and again in one place, and reads of another device's
//! data.
//!
//! **Crash at any moment**: [`SimMachine::crash_after`] cuts the power in the middle of the n-th
//! effect from now on (a submission, the completion of a write or sync, a media store or sync, a
//! metadata change). From then on everything fails and nothing has an effect, until
//! [`SimMachine::crash`] decides what survives and starts the machine's next life. Handles of an
//! earlier life stay dead, so whatever the crashed engine still does while it is dropped cannot
//! reach the next one.

mod area;
mod device;
mod faults;
mod machine;
mod media;
mod pending;
mod queue;
mod random;
#[cfg(test)]
mod tests;

pub use device::SIM_ALIGNMENT;
pub use faults::{Crash, SimFaults, SimIo};
pub use machine::SimMachine;
#[cfg(test)]
pub(crate) use machine::Spare;
pub use media::{SimMedia, SimMetaStore};
pub use queue::SimDisk;
pub use random::SimRandom;
