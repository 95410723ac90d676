//! The meaning of a command line.

use std::borrow::Cow;

use crate::request::{Operation, Request};

/// A line that is nothing known.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";

/// What a line calls for.
#[derive(Debug)]
pub enum Line<'a> {
    /// It is a request of its own.
    Whole(Request<'a>),
    /// So many bytes and a line end follow, which are the value of this store.
    Value(usize, Operation<'a>),
    /// It is refused, and so many bytes that follow it are of no use.
    Refused(Request<'a>, u64),
    /// What no client says: the connection ends.
    Close,
}

/// An answer that is known already.
pub fn answer(text: &'static str) -> Request<'static> {
    Request::Answer { bytes: Cow::Borrowed(text.as_bytes()), close: false }
}
