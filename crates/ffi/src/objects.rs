//! Looking up, putting and removing objects.

use afterglow_engine::{PutOptions, PutOutcome, RefuseReason};

use crate::cache::aglow_namespace;
use crate::error::{Failure, aglow_status, guard, set_message};
use crate::memory::{bytes, copy_out, reference, store};

/// What a lookup tells of an object besides its value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct aglow_hit {
    /// Length of the value.
    pub len: usize,
    /// Its version: larger for every later put of any key.
    pub version: u64,
    /// Unix seconds when it expires, 0 for never.
    pub expiry: u32,
    /// The group it was put into, 0 for none.
    pub group: u32,
    /// Where it was found: 0 DRAM, 1 memory not yet written, 2 flash.
    pub tier: u32,
}

/// What a put carries besides key and value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct aglow_put_options {
    /// Unix seconds when the object expires, 0 for never.
    pub expiry: u32,
    /// Objects of one group die together by [`aglow_remove_group`]; 0 is no group.
    pub group: u32,
}

/// Looks a key up, with one read from flash on the calling thread if need be, and copies the value
/// to `buffer`. A value that is larger than `capacity` is not copied: the call is
/// `AGLOW_E_TOO_SMALL` and `hit` has the length.
///
/// # Safety
/// `namespace_` is an open handle, `key` has `key_len` bytes, `buffer` takes `capacity` bytes,
/// `hit` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_get(
    namespace_: *const aglow_namespace,
    key: *const u8,
    key_len: usize,
    buffer: *mut u8,
    capacity: usize,
    hit: *mut aglow_hit,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ns, key) =
            unsafe { (reference(namespace_, "namespace")?, bytes(key, key_len, "key")?) };
        let Some(found) = ns.ns.get_blocking(key) else { return Ok(aglow_status::AGLOW_MISS) };
        let len = found.value.len();
        let told = aglow_hit {
            len,
            version: found.version,
            expiry: found.expiry,
            group: found.group,
            tier: found.tier as u32,
        };
        // SAFETY: the caller's promise.
        unsafe { store(hit, told) };
        // SAFETY: the caller's promise.
        if unsafe { copy_out(&found.value, buffer, capacity) } {
            return Ok(aglow_status::AGLOW_OK);
        }
        let message = format!("the value has {len} bytes, the buffer {capacity}");
        Err(Failure::new(aglow_status::AGLOW_E_TOO_SMALL, message))
    })
}

/// Puts an object. After this returns, no lookup returns an older value of the key, even if the put
/// was refused. The exception is a closed cache, which changes nothing.
///
/// # Safety
/// `namespace_` is an open handle. `key` and `value` have so many bytes. `options` is null (no
/// expiry, no group) or valid. `version` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_put(
    namespace_: *const aglow_namespace,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    options: *const aglow_put_options,
    version: *mut u64,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ns, key) =
            unsafe { (reference(namespace_, "namespace")?, bytes(key, key_len, "key")?) };
        // SAFETY: the caller's promise.
        let (value, options) = unsafe { (bytes(value, value_len, "value")?, options.as_ref()) };
        let outcome = ns.ns.put(key, value, put_options(options));
        // SAFETY: the caller's promise.
        Ok(unsafe { tell(outcome, version) })
    })
}

/// Puts an object if the key's version is `*expected`, or with `expected` null if there is no such
/// object. Otherwise it is refused and nothing is changed, also when the object cannot be looked at
/// now.
///
/// # Safety
/// As [`aglow_put`]; `expected` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_put_if(
    namespace_: *const aglow_namespace,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    options: *const aglow_put_options,
    expected: *const u64,
    version: *mut u64,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ns, key) =
            unsafe { (reference(namespace_, "namespace")?, bytes(key, key_len, "key")?) };
        // SAFETY: the caller's promise.
        let (value, options) = unsafe { (bytes(value, value_len, "value")?, options.as_ref()) };
        // SAFETY: the caller's promise.
        let expected = unsafe { expected.as_ref() }.copied();
        let outcome = ns.ns.put_if(key, value, put_options(options), expected);
        // SAFETY: the caller's promise.
        Ok(unsafe { tell(outcome, version) })
    })
}

fn put_options(given: Option<&aglow_put_options>) -> PutOptions {
    given.map_or_else(PutOptions::default, |o| PutOptions {
        expiry: o.expiry,
        group: o.group,
        ..PutOptions::default()
    })
}

/// # Safety
/// `version` is null or may be written.
unsafe fn tell(outcome: PutOutcome, version: *mut u64) -> aglow_status {
    match outcome {
        PutOutcome::Stored { version: given } => {
            // SAFETY: the caller's promise.
            unsafe { store(version, given) };
            aglow_status::AGLOW_OK
        }
        PutOutcome::Refused(reason) => {
            let changed = match reason {
                RefuseReason::Closed | RefuseReason::VersionMismatch => "nothing was changed",
                _ => "the older object is gone",
            };
            set_message(&format!("the put was refused ({}): {changed}", reason.label()));
            aglow_status::AGLOW_REFUSED
        }
    }
}

/// Removes an object. When this returns no lookup finds it.
///
/// # Safety
/// `namespace_` is an open handle, `key` has `key_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_remove(
    namespace_: *const aglow_namespace,
    key: *const u8,
    key_len: usize,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ns, key) =
            unsafe { (reference(namespace_, "namespace")?, bytes(key, key_len, "key")?) };
        ns.ns.remove(key);
        Ok(aglow_status::AGLOW_OK)
    })
}

/// Removes all objects put into a group before, in constant time.
///
/// # Safety
/// `namespace_` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_remove_group(
    namespace_: *const aglow_namespace,
    group: u32,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let ns = unsafe { reference(namespace_, "namespace")? };
        if group == 0 {
            return Err(Failure::argument("group 0 is no group"));
        }
        ns.ns.remove_group(group);
        Ok(aglow_status::AGLOW_OK)
    })
}

/// Removes all objects of a namespace, in constant time.
///
/// # Safety
/// `namespace_` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_clear(namespace_: *const aglow_namespace) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { reference(namespace_, "namespace")? }.ns.clear();
        Ok(aglow_status::AGLOW_OK)
    })
}
