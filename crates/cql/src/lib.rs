//! CQL native protocol and statement analysis, sans-io.
pub mod freshness;

mod lexer;
pub mod normal;
mod parser;
pub mod plan;
pub mod row;
pub mod statement;
pub mod system;
