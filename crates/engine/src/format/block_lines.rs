//! How many index lines a block of a checkpoint has: [`BLOCK_LINES`], whatever the cache. A block
//! is read by the number that it was written by: on a disk there is no other.
//!
//! The simulation has a few lines in a block in some of its runs. Its indexes are so small that
//! each shard would have one block otherwise. A run stays on its thread, and so does its number.

/// Most lines in a block.
pub const BLOCK_LINES: u64 = 1023;

/// Most lines in a block of the caches of this build.
#[cfg(not(test))]
pub(crate) const fn block_lines() -> u64 {
    BLOCK_LINES
}

#[cfg(test)]
thread_local! {
    static LINES: std::cell::Cell<u64> = const { std::cell::Cell::new(BLOCK_LINES) };
}

/// Most lines in a block of the caches of this thread.
#[cfg(test)]
pub(crate) fn block_lines() -> u64 {
    LINES.get()
}

/// Has blocks of the caches of this thread so many lines at most.
#[cfg(test)]
pub(crate) fn set_block_lines(lines: u64) {
    LINES.set(lines);
}
