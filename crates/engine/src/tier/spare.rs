//! Key and value in one allocation, and the memory of the last put for the next one.
//!
//! A put joins key and value before it takes the shard's lock. The DRAM tier packs small objects
//! into its own slots, and the joined bytes are free again. Each thread keeps them for the next
//! object of that size, so that such puts neither allocate nor free.
//!
//! Invariant: memory is kept only if nobody else holds it, and used only for exactly its size: the
//! tier counts large objects by their bytes, and holds them in this memory.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};

/// Largest object whose memory is kept: a thread holds no more than this.
const MAX_KEPT: usize = 16 << 10;

thread_local! {
    static SPARE: Cell<Option<BytesMut>> = const { Cell::new(None) };
}

/// Keeps the memory of an object, if nobody else holds it, for the next one of exactly its size on
/// this thread.
pub fn keep_memory(data: Bytes) {
    if data.len() <= MAX_KEPT
        && let Ok(spare) = data.try_into_mut()
    {
        SPARE.set(Some(spare));
    }
}

/// Key and value in one allocation of their size.
pub fn join(key: &[u8], value: &[u8]) -> Bytes {
    let size = key.len() + value.len();
    match SPARE.take() {
        Some(mut again) if again.len() == size => {
            let (key_part, value_part) = again.split_at_mut(key.len());
            key_part.copy_from_slice(key);
            value_part.copy_from_slice(value);
            again.freeze()
        }
        other => {
            SPARE.set(other);
            let mut data = Vec::with_capacity(size);
            data.extend_from_slice(key);
            data.extend_from_slice(value);
            Bytes::from(data)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_serves_again_only_at_its_size_and_once_no_reader_holds_it() {
        let first = join(b"key", b"value");
        let at = first.as_ptr();
        let reader = first.slice(3..);
        keep_memory(first);
        assert_ne!(join(b"yek", b"other").as_ptr(), at, "a reader holds it");
        assert_eq!(&reader[..], b"value");
        keep_memory(reader);
        let longer = join(b"key", b"longer value");
        assert_eq!(&longer[..], b"keylonger value");

        let own = join(b"own", b"value");
        let at = own.as_ptr();
        keep_memory(own);
        assert_ne!(join(b"k", b"v").as_ptr(), at, "another size");
        let again = join(b"new", b"bytes");
        assert_eq!((again.as_ptr(), &again[..]), (at, &b"newbytes"[..]));
    }
}
