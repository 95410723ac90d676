//! Reactors: one thread a core, each with its own runtime, sockets and flash reads on one ring.
//!
//! What lives on a reactor is `!Send` and needs no locks: connections, pools, sessions. Front ends
//! put work on a reactor with [`Reactors::spawn_on`]. Reactors talk to each other the same way, and
//! only for rare events (a new connection, a schema event). A hit never crosses reactors: any
//! reactor may take the lock of any shard of the cache.

mod device_read;
mod flash;
mod listen;
mod reactors;
mod runtime;
mod silence;
#[cfg(test)]
mod tests;
mod wake;

pub use device_read::FlashFile;
pub use flash::read_flash;
pub use listen::{Bound, BoundUnix, ListenError, Listener};
pub use reactors::{ConnectionGuard, Reactors, ReactorsConfig};
pub use runtime::{Driver, build as build_runtime};
pub use wake::{Wake, wake_in_drop, yield_now};
