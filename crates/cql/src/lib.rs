//! CQL native protocol and statement analysis, sans-io.

pub mod error;
pub mod frame;
pub mod graces;
mod json_object;
mod lexer;
pub mod message;
pub mod name;
pub mod negotiate;
pub mod normal;
mod parser;
pub mod plan;
pub mod response;
pub mod ring;
pub mod schema;
pub mod statement;
mod syntax;
pub mod system;
pub mod token;
