//! A native CQL load client.
//!
//! [`Connection`] is a plain blocking client for set-up and histories. [`driver`] is the one that makes load: one thread, a few
//! non-blocking connections with many requests in flight, frames encoded once and patched ([`template`]), answers looked at by
//! header only unless they are to be verified.

mod answer;
mod connection;
pub mod driver;
pub mod load;
mod measured;
pub mod run;
mod socket;
pub mod table;
pub mod target;
mod template;

pub use answer::{Answer, ServerError, rows};
pub use connection::{ConnectOptions, Connection, CqlError, Prepared};
pub use template::Template;
