//! Listing the keys of a namespace.

use afterglow_engine::{Keys, Namespace};

use crate::cache::aglow_namespace;
use crate::error::{Failure, aglow_status, guard};
use crate::memory::{copy_out, free, reference, store};

/// A listing under way. Only one thread at a time may use it.
pub struct aglow_keys {
    keys: Keys,
    /// Found, and not yet fetched because the buffer was too small.
    next: Option<Vec<u8>>,
}

impl aglow_keys {
    pub(crate) fn new(ns: &Namespace) -> Self {
        Self { keys: ns.keys(), next: None }
    }

    /// The next key without going past it; `None` at the end.
    pub(crate) fn peek(&mut self) -> Result<Option<&[u8]>, Failure> {
        if self.next.is_none() {
            let next = self.keys.next().transpose();
            self.next =
                next.map_err(|e| Failure::new(aglow_status::AGLOW_E_INCOMPLETE, e.to_string()))?;
        }
        Ok(self.next.as_deref())
    }

    /// Goes past it.
    pub(crate) fn skip(&mut self) {
        self.next = None;
    }
}

/// Begins to list the keys of a namespace. All that are there from now until the end are listed,
/// and maybe some put or removed meanwhile; a key may come twice.
///
/// # Safety
/// `namespace_` is an open handle, `keys` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_keys_open(
    namespace_: *const aglow_namespace,
    keys: *mut *mut aglow_keys,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let ns = unsafe { reference(namespace_, "namespace")? };
        // SAFETY: the caller's promise.
        unsafe { store(keys, Box::into_raw(Box::new(aglow_keys::new(&ns.ns)))) };
        Ok(aglow_status::AGLOW_OK)
    })
}

/// Copies the next key to `buffer`: `AGLOW_OK`, at the end `AGLOW_END`. With `AGLOW_E_TOO_SMALL` it
/// is not passed: call again with room for `*len` bytes. After `AGLOW_E_INCOMPLETE` there are no
/// more keys, and some were not listed.
///
/// # Safety
/// `keys` is an open listing that no other thread uses, `buffer` takes `capacity` bytes, `len` is
/// null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_keys_next(
    keys: *mut aglow_keys,
    buffer: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise: nobody else uses it.
        let keys = unsafe { keys.as_mut() }
            .ok_or_else(|| Failure::argument("the listing is a null pointer"))?;
        let Some(key) = keys.peek()? else { return Ok(aglow_status::AGLOW_END) };
        // SAFETY: the caller's promise.
        unsafe { store(len, key.len()) };
        // SAFETY: the caller's promise.
        if !unsafe { copy_out(key, buffer, capacity) } {
            let message = format!("the key has {} bytes, the buffer {capacity}", key.len());
            return Err(Failure::new(aglow_status::AGLOW_E_TOO_SMALL, message));
        }
        keys.skip();
        Ok(aglow_status::AGLOW_OK)
    })
}

/// Ends a listing. Null is allowed.
///
/// # Safety
/// `keys` is null or an open listing, which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_keys_free(keys: *mut aglow_keys) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(keys) };
        Ok(aglow_status::AGLOW_OK)
    })
}
