//! The Afterglow server: configuration, metrics, admin HTTP, and the wiring of front ends to the
//! engine.
//!
//! `main.rs` is only the process's entry; everything it does lives here, so that tests and tools
//! can use it.

pub mod admin;
pub mod cli;
pub mod config;
pub mod control;
mod data_dir;
pub mod frontend;
pub mod hotkeys;
pub mod inspect;
pub mod logging;
pub mod metrics;
pub mod operator;
pub mod reactor;
pub mod ring_link;
pub mod serve;
pub mod service_manager;
pub mod size;
pub mod slow_log;
pub mod tls;
pub mod version;
