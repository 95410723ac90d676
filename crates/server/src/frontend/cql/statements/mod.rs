//! Statements: which are prepared, what survives a restart, and which are answered here.

pub(crate) mod keyspaces;
pub(crate) mod local;
pub(crate) mod outdated;
pub(crate) mod plan_file;
pub(crate) mod prepared;
