//! A small in-memory CQL server to test against without a database. It has nodes of one store,
//! tables of plain columns, and lightweight transactions. The last write wins, by timestamp. It has
//! the system tables that drivers and Afterglow read. It can delay, fail, drop connections and lie
//! on purpose, and a test can answer requests itself, see [`FakeBackend::scripted`].
//!
//! It is not a Cassandra: no paging, consistency levels only for [`FakeBackend::replicate`], no
//! collections beyond those of the system tables. What it does not understand
//! it refuses with an Invalid error, never with a guess.

mod accounts;
mod exec;
mod faults;
mod identity;
mod parse;
mod refusal;
mod replicas;
mod row;
mod server;
mod statement;
mod store;
mod system;
mod term;

pub use exec::Served;
pub use faults::{Faults, StatementKind};
pub use replicas::COPIES;
pub use server::{Ask, FakeBackend, Frozen, Held, Script, TEXT, rows_body};
