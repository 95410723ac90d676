//! Reactors: one thread a core, each with its own runtime, sockets and flash reads on one ring.
//!
//! What lives on a reactor is `!Send` and needs no locks: connections, pools, sessions. Front ends
//! put work on a reactor with [`Reactors::spawn_on`]; reactors talk to each other the same way, and
//! only for rare things (a new connection, a schema event). A hit never crosses reactors: shards of
//! the cache are reached by their lock from wherever the request is.

mod flash;
mod listen;
mod reactors;
mod runtime;
#[cfg(test)]
mod tests;
mod wake;

pub use flash::{FlashFile, read_flash};
pub use listen::{Bound, BoundUnix, ListenError, Listener};
pub use reactors::{ConnectionGuard, Reactors, ReactorsConfig};
pub use runtime::Driver;
pub use wake::{Wake, yield_now};
