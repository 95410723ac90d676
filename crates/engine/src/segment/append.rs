//! What goes into a stream, and what comes out of it.

use crate::format::record::Meta;
use crate::index::Location;

/// Why a record was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendError {
    /// No segment is free.
    NoFreeSegment,
    /// Too many chunks wait for the device.
    QueueFull,
    /// Writes failed a moment ago.
    Failing,
}

/// An object to append.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    /// Hash of namespace and key.
    pub hash: u64,
    /// What is stored with it.
    pub meta: Meta,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// A record that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Where it is.
    pub at: Location,
    /// Its bytes, without padding.
    pub len: u32,
}
