//! Outcomes, and the message behind a failure.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended. Failures are negative.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum aglow_status {
    /// Done; a lookup has found the object.
    AGLOW_OK = 0,
    /// A lookup found nothing, whatever the reason (the counters know it).
    AGLOW_MISS = 1,
    /// A put was refused; the older object is gone all the same, unless the message says that
    /// nothing was changed.
    AGLOW_REFUSED = 2,
    /// A listing is over, and complete.
    AGLOW_END = 3,
    /// An argument cannot be.
    AGLOW_E_ARGUMENT = -1,
    /// The cache or namespace could not be opened: the message says why and what to do.
    AGLOW_E_OPEN = -2,
    /// The buffer is too small; the length that is needed was told.
    AGLOW_E_TOO_SMALL = -3,
    /// The listing ended before it was complete.
    AGLOW_E_INCOMPLETE = -4,
    /// A bug in Afterglow. What was called may have been carried out or not: drop the cache.
    AGLOW_E_PANIC = -5,
    /// The cache is closed, and the next opening is as after a crash.
    AGLOW_E_NOT_CLEAN = -6,
}

/// A failure with its message.
pub struct Failure {
    pub status: aglow_status,
    pub message: String,
}

impl Failure {
    pub fn new(status: aglow_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(aglow_status::AGLOW_E_ARGUMENT, message)
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The message of the calling thread's last call that was refused or failed; empty if there was
/// none. Valid until this thread's next such call. UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn aglow_error() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

pub fn set_message(message: &str) {
    let bytes: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    MESSAGE.set(CString::new(bytes).unwrap_or_default());
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

/// Runs what a call from outside asks for: a panic ends here.
pub fn catch<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // What a panic leaves half done is behind the engine's own locks; callers are told to drop the
    // cache.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = format!("a bug in Afterglow: {}", panic_message(&*panic));
        Err(Failure::new(aglow_status::AGLOW_E_PANIC, message))
    })
}

/// [`catch`] for functions of the C ABI.
pub fn guard(body: impl FnOnce() -> Result<aglow_status, Failure>) -> aglow_status {
    catch(body).unwrap_or_else(|failure| {
        set_message(&failure.message);
        failure.status
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        assert_eq!(guard(|| panic!("seen\0here")), aglow_status::AGLOW_E_PANIC);
        // SAFETY: the message of this thread, which makes no other call meanwhile.
        let message = unsafe { CStr::from_ptr(aglow_error()) };
        assert_eq!(message.to_str(), Ok("a bug in Afterglow: seenhere"));
    }
}
