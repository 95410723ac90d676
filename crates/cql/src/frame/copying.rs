//! Which envelopes are copied out of the bytes that came with them.

/// From so many bytes of input, an envelope that is much shorter is copied. Otherwise a slow small
/// request would keep all bytes that came with it.
pub(super) const WORTH_A_COPY: usize = 16 * 1024;

/// Whether an envelope out of so many bytes is to be a copy.
pub(super) fn is_to_be_copied(length: usize, of: usize) -> bool {
    of > WORTH_A_COPY && length < of / 4
}
