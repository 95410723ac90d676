//! Prefetch hints to the processor.
//!
//! Index, sketch and DRAM tier are larger than any processor cache. An operation would wait for
//! memory once for each of them, one after the other. The hash alone gives their addresses, so all
//! are prefetched together, before the first is read.

#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes asked for at once at most: the processor notices longer runs itself.
const RUN: usize = 4096;

/// Asks for `bytes`, or the first part of them.
#[inline(always)]
pub fn prefetch_bytes(bytes: &[u8]) {
    bytes.iter().take(RUN).step_by(LINE).for_each(prefetch);
}

/// Asks for the cache lines of `place`. A hint: it changes nothing, and `place` need not be looked
/// at.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
    // The last byte too: what is not aligned to lines may reach into one more.
    for byte in
        (0..size_of::<T>()).step_by(LINE).chain((size_of::<T>() > LINE).then(|| size_of::<T>() - 1))
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(place).cast::<i8>().wrapping_add(byte);
        // SAFETY: a prefetch never faults, shows nothing to the program and writes nothing; every
        // x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
    let _ = (place, LINE);
}
