//! An allocator that counts, for telling what an object costs.
//!
//! The binary installs it; until [`count`] is called it costs one load of a flag that never changes
//! per allocation.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
};

static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counting once told to.
pub struct Counting;

/// Counts from now on. Call it before the first allocation of interest.
pub fn count() {
    COUNTING.store(true, Ordering::Relaxed);
}

/// Bytes asked for since [`count`] and not given back, without what the allocator itself adds.
/// Memory from before that is given back counts as negative: look at differences.
pub fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// Whether the program has installed [`Counting`] and it counts.
pub fn is_counting() -> bool {
    let before = live();
    let probe = std::hint::black_box(Box::new(0u64));
    let counted = live() != before;
    drop(probe);
    counted
}

fn add(bytes: usize) {
    if COUNTING.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes as i64, Ordering::Relaxed);
    }
}

fn sub(bytes: usize) {
    if COUNTING.load(Ordering::Relaxed) {
        LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call goes on to `System` unchanged, which upholds the contract; counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size);
        sub(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        sub(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}
