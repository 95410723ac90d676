//! The Afterglow engine behind a C ABI, and for Java behind JNI entry points that take addresses.
//!
//! `include/afterglow.h` is made from this source by cbindgen and checked in.
//! `cargo test -p afterglow-ffi` fails when it is not current, and builds and runs a C program
//! against it. Rules that hold for every function:
//!
//! - No panic crosses the ABI: it becomes [`aglow_status::AGLOW_E_PANIC`].
//! - A failure leaves a message for the calling thread ([`aglow_error`]).
//! - Handles may be used by any number of threads at once, but for [`aglow_keys`]; freeing one is
//!   the caller's last use of it.
//! - No signal handlers, no allocator of its own, no threads but those of the caches that are open.

#![allow(unsafe_code)]
#![allow(non_camel_case_types)]

mod cache;
mod error;
mod jni;
mod keys;
mod log;
mod memory;
mod objects;
mod reads;
mod stats;

pub use cache::{
    AGLOW_IMMUTABLE, AGLOW_SURVIVES_CLEAN_STOP_ONLY, AGLOW_SYNCED, AGLOW_WRITE_THROUGH,
    aglow_cache, aglow_cache_close, aglow_cache_free, aglow_cache_open, aglow_config, aglow_device,
    aglow_namespace, aglow_namespace_free, aglow_namespace_open,
};
pub use error::{aglow_error, aglow_status};
pub use jni::*;
pub use keys::{aglow_keys, aglow_keys_free, aglow_keys_next, aglow_keys_open};
pub use log::aglow_log_next;
pub use objects::{
    aglow_clear, aglow_get, aglow_hit, aglow_put, aglow_put_if, aglow_put_options, aglow_remove,
    aglow_remove_group,
};
pub use stats::aglow_stats;

/// Grows when a function or structure changes in a way that a caller built before would not
/// survive.
pub const AGLOW_ABI: u32 = 1;

/// [`AGLOW_ABI`] of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn aglow_abi() -> u32 {
    AGLOW_ABI
}
