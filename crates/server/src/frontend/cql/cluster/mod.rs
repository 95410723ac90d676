//! The database: its nodes, the connections to them, its schema, and who logs in there.

pub(crate) mod agreement;
pub(crate) mod answer;
pub(crate) mod backend;
pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod first;
mod handshake;
pub(crate) mod hedge;
pub(crate) mod idle_users;
pub(crate) mod login;
pub(crate) mod nodes;
pub(crate) mod permissions;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod routes;
pub(crate) mod rows;
mod schema;
mod schema_load;
pub(crate) mod schema_store;
mod secure;
pub(crate) mod system_read;
pub(crate) mod system_tables;
pub(crate) mod trial;
