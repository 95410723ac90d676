//! Every access to addresses that callers pass in.

use std::ffi::{CStr, c_char};

use crate::error::Failure;

/// The bytes a caller points at.
///
/// # Safety
/// `data` is null with `len` 0, or `len` readable bytes that nobody changes while the result is in
/// use.
pub unsafe fn bytes<'a>(data: *const u8, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Failure::argument(format!("the {what} is {len} bytes at {data:p}")));
    }
    // SAFETY: the caller's promise; null and impossible lengths are excluded above.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Copies `value` to a caller's buffer if it fits, and says whether it did.
///
/// # Safety
/// `buffer` is null or `capacity` bytes that may be written and that nobody else uses meanwhile.
pub unsafe fn copy_out(value: &[u8], buffer: *mut u8, capacity: usize) -> bool {
    if value.len() > capacity || (buffer.is_null() && !value.is_empty()) {
        return false;
    }
    if !value.is_empty() {
        // SAFETY: the buffer has room for the value, and cannot overlap memory of the engine, which
        // callers never see.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer, value.len()) };
    }
    true
}

/// Stores a result where the caller wants it, if it does.
///
/// # Safety
/// `to` is null or may be written, and aligned.
pub unsafe fn store<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// A structure or handle a caller points at.
///
/// # Safety
/// `at` is null, or what it points at is valid, aligned, and not changed or freed while the result
/// is in use.
pub unsafe fn reference<'a, T>(at: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { at.as_ref() }.ok_or_else(|| Failure::argument(format!("the {what} is a null pointer")))
}

/// A text a caller points at.
///
/// # Safety
/// `at` is null, or a text that ends with a zero byte and is not changed while the result is in
/// use.
pub unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(Failure::argument(format!("the {what} is a null pointer")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::argument(format!("the {what} is not UTF-8")))
}

/// Frees a handle made by `Box::into_raw`.
///
/// # Safety
/// `handle` is null, or was made so and is not used any more by anybody.
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}
