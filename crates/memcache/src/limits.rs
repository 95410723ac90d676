//! Limits of the protocols, and the bytes that an object counts.

/// Longest key, in bytes.
pub const MAX_KEY: usize = 250;
/// Longest command line, but for those that name many keys.
pub const MAX_LINE: usize = 2048;
/// Longest line of `get`, `gets`, `gat` and `gats`. memcached has no bound here; 1 MiB is four
/// thousand of the longest keys.
pub const MAX_GET_LINE: usize = 1 << 20;
/// The one slab class that all objects are said to be in.
pub const CLASS: u32 = 1;
/// What an object counts beside its key and value against the largest item size.
pub const ITEM_OVERHEAD: usize = 64;
