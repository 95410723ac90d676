//! Gives freed memory back to the system.
//!
//! The C library keeps most of what is freed for later allocations. That is right where as much is
//! allocated again, but the DRAM tier's memory becomes the index's, which is a mapping of its own.

#![allow(unsafe_code)]

/// Has the C library give back pages of which nothing is in use. It looks at all of its memory, and
/// other threads' allocations wait meanwhile: for rare occasions.
pub fn give_back() {
    // SAFETY: any thread may call it at any time (malloc_trim(3) says MT-Safe), and no allocation
    // moves.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(test)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
