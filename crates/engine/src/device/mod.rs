//! Devices, the queue that drives them, and the small durable [areas](area) beside them.
//!
//! [`Disk`] is the one interface between the engine and storage. It has three implementations:
//!
//! - [`UringDisk`]: io_uring, `O_DIRECT`.
//! - [`PreadDisk`]: `pread` and `pwrite` on a few threads, for kernels and containers that refuse
//!   io_uring.
//! - [`SimDisk`](sim::SimDisk): deterministic, with a stated fault model.
//!
//! [`DeviceSet`] is the shared view of the same devices for reads on the caller's own thread or
//! ring.
//!
//! A buffer given to [`Disk::submit`] belongs to the disk until its [`Done`] is handed out. So no
//! future can be dropped while the kernel still writes into its memory.

pub(crate) mod answer;
pub mod area;
mod buf;
mod claim;
mod disk;
mod error;
mod files;
mod long_bufs;
mod open;
mod patient;
mod pread;
mod read_limit;
pub mod sim;
mod uring;

pub(crate) use answer::{silent_among, within};
pub use buf::{AlignedBuf, BUF_ALIGN, WriteBuf};
pub use disk::{
    DeviceConfig, DeviceId, DeviceInfo, DeviceSet, Disk, Done, Io, IoEngine, IoKind, IoOutput,
    Truncated, memlock_hint,
};
pub(crate) use disk::{check, check_io};
pub use error::DeviceError;
pub(crate) use error::is_of_process;
pub(crate) use files::examine;
pub use files::open_read_only;
pub use open::{OpenDevices, open};
pub(crate) use open::{open_with, try_engine};
pub(crate) use patient::{PATIENCE, PatientSet, is_no_answer, no_answer};
pub use pread::PreadDisk;
pub(crate) use read_limit::BlockingReads;
pub use uring::UringDisk;

#[cfg(test)]
mod tests;
