//! A simulated machine: devices, media and metadata files that fail and crash as real ones do. They
//! fail more often, and always the same way for the same seed. There is no operating system, no
//! thread and no time.
//!
//! # Fault model
//!
//! Without faults ([`SimFaults::none`]) devices keep their contract, and nothing beyond it:
//! - I/Os in flight complete in random order, after a random number of turns. A turn is one call of
//!   `wait`. A *slow* I/O takes a hundred times as long.
//! - A read that overlaps a write in flight sees each 512-byte sector old or new.
//!
//! **Process crash** ([`Crash::Process`], `kill -9`): acknowledged writes and finished media stores
//! survive, synced or not. A write in flight survives whole, not at all, or torn at sectors. A
//! media store cut short leaves a prefix of its 8-byte words. A metadata replacement cut short
//! leaves the old or the new content.
//!
//! **Machine crash** ([`Crash::Machine`], power loss): as above, and everything acknowledged but
//! not synced is at risk too. Each device write since the last completed sync is kept, lost or
//! torn, in any order. Any subset of unsynced media words goes back to its synced values. Only what
//! was acknowledged before a sync was *submitted* is safe once that sync completes. The boot id
//! changes.
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
//! - `media_sync_error`: a sync fails with EIO, once. Later syncs skip the pages (4 KiB) with
//!   unsynced words until they are stored to again. Kernels that drop what they could not write do
//!   the same.
//! - `writeback_error`: before a store, the kernel gives up a page with unsynced words, which is
//!   read as it was synced. The next sync says so, of whatever process, or who asks whether all
//!   could be written.
//! - `meta_error`: a read fails; a replacement fails with the old or the new content in place.
//!
//! One I/O, chosen beforehand, may be *held up* for a given number of turns
//! ([`SimMachine::hold_up`]). All others overtake it.
//!
//! A flush of a media area, or a change of a metadata file, may *block* its caller while others go
//! on (`SimMachine::block_with`). Flushes of devices are held up like other I/Os.
//!
//! A device may also be *away*: every I/O fails with EIO until it is back with its contents. It may
//! be *mute*: what is asked of its queue stays in flight until it answers again, or the machine has
//! crashed, or has crashed a given number of times more. A device may be
//! exchanged for an empty one. One may be another *name* of a second one.
//!
//! A device may be rolled back to what it had stored earlier.
//!
//! Areas and metadata files may be brought back as they were earlier, while devices stay as they
//! are: an older copy of the data directory.
//!
//! Bytes of a device may be *bad*: every write to them fails. Random runs have none.
//!
//! Not modelled: sectors that cannot be read again and again in one place, and reads of another
//! device's data.
//!
//! **Crash at any moment**: [`SimMachine::crash_after`] cuts the power in the middle of the n-th
//! effect from now on. An effect is a submission, the completion of a write or sync, a media store
//! or sync, or a metadata change. From then on everything fails and nothing has an effect, until
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
pub(crate) use machine::{Directory, Image, Spare};
pub use media::{SimMedia, SimMetaStore};
pub use queue::SimDisk;
pub use random::SimRandom;
