//! Which driver a reactor's runtime gets.

use std::io;

use afterglow_engine::device::memlock_hint;
use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};

/// What drives a reactor's sockets and disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Driver {
    /// io_uring, or readiness where the kernel or the container refuses it.
    #[default]
    Auto,
    /// Readiness (epoll), flash reads by a few helper threads.
    Readiness,
}

/// Builds the runtime of the calling thread. With `announce`, says once in the log when it is not
/// what one would want.
///
/// # Errors
/// When not even the readiness driver can be made.
pub fn build(driver: Driver, announce: bool) -> io::Result<Runtime> {
    if driver == Driver::Readiness {
        return with(&readiness());
    }
    // Completions are handled when this thread asks for them, with no interrupt in between: Linux
    // 6.1 and later.
    let mut best = ProactorBuilder::new();
    best.driver_type(DriverType::IoUring)
        .single_issuer(true)
        .defer_taskrun(true)
        .taskrun_flag(true);
    let refused = match with(&best) {
        Ok(runtime) => return Ok(runtime),
        Err(refused) => refused,
    };
    let mut plain = ProactorBuilder::new();
    plain.driver_type(DriverType::IoUring);
    let plain = match with(&plain) {
        Ok(runtime) => {
            if announce {
                tracing::info!(reason = %refused, "this kernel lacks deferred io_uring completions: using a plain ring");
            }
            return Ok(runtime);
        }
        Err(refused) => refused,
    };
    if announce {
        // The first may have been refused for another cause, such as a kernel that is too old for
        // it.
        let hint = memlock_hint(&plain).or_else(|| memlock_hint(&refused)).unwrap_or_default();
        tracing::warn!(reason = %plain, "io_uring is refused here: reactors use readiness (epoll) instead{hint}");
    }
    with(&readiness())
}

fn readiness() -> ProactorBuilder {
    let mut builder = ProactorBuilder::new();
    builder.driver_type(DriverType::Poll);
    builder
}

fn with(builder: &ProactorBuilder) -> io::Result<Runtime> {
    RuntimeBuilder::new().with_proactor(builder.clone()).build()
}
