//! Statements: what is prepared, what is kept of it across restarts, and what is answered here.

pub(crate) mod local;
pub(crate) mod outdated;
pub(crate) mod plan_file;
pub(crate) mod prepared;
