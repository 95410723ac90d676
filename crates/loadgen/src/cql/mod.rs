//! A native CQL load client.
//!
//! [`Connection`] is a plain blocking client for set-up and histories. [`driver`] makes the load:
//! one thread, a few non-blocking connections with many requests in flight. Frames are encoded once
//! and patched ([`template`]). Only the headers of answers are read, unless they are to be
//! verified. Either speaks TLS with servers of a CA that is [trusted](trusting).

mod answer;
mod connection;
pub mod driver;
mod error;
pub mod load;
mod measured;
mod options;
mod owned;
mod record;
mod row_work;
pub mod run;
mod slice_work;
mod socket;
pub mod table;
pub mod target;
mod template;
mod wire;
mod work;

pub use answer::{Answer, rows};
pub use connection::{ConnectOptions, Connection, Prepared};
pub use error::{CqlError, ServerError};
pub use owned::owned;
pub use template::Template;
pub use wire::{ServerCa, trusting};
