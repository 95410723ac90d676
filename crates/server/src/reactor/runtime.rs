//! Which driver a reactor's runtime gets, and the loop that runs it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Context;
use std::time::Duration;

use afterglow_engine::device::memlock_hint;
use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};

use super::wake::{has_yielded, wake_yielded};

/// Rounds of ready tasks between two looks at sockets and disks, at most. A round has 61 tasks at
/// most.
const ROUNDS: usize = 4;

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
        tracing::warn!(reason = %plain, "{}", readiness_instead(&plain, &refused));
    }
    with(&readiness())
}

/// What the log says where both rings were refused, for these reasons. The better one may have been
/// refused for another cause, such as a kernel that is too old for it.
fn readiness_instead(plain: &io::Error, best: &io::Error) -> String {
    let hint = memlock_hint(plain).or_else(|| memlock_hint(best)).unwrap_or_default();
    format!("io_uring is refused here: reactors use readiness (epoll) instead{hint}")
}

fn readiness() -> ProactorBuilder {
    let mut builder = ProactorBuilder::new();
    builder.driver_type(DriverType::Poll);
    builder
}

fn with(builder: &ProactorBuilder) -> io::Result<Runtime> {
    RuntimeBuilder::new().with_proactor(builder.clone()).build()
}

/// Runs `future` on this thread to its end, and the tasks of `runtime` with it. Tasks that are left
/// then are dropped.
///
/// The kernel is asked once no task is ready. So what a task wants of it that another one has woken
/// just now, as a read of flash wakes its connection, goes there with the same call. Tasks that are
/// always ready hold up sockets and disks for [`ROUNDS`] rounds and no longer. A task that yields
/// ([`yield_now`](super::yield_now)) goes on after the next look, so it holds up nothing.
///
/// # Panics
/// When `future` does. Tasks are dropped before the panic goes on: they may wake others, which a
/// thread that panics must not.
pub fn run(runtime: Runtime, future: impl Future<Output = ()>) {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.enter(|| turn(&runtime, future))));
    drop(runtime);
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

/// The loop of [`run`].
fn turn(runtime: &Runtime, future: impl Future<Output = ()>) {
    let (waker, mut future) = (runtime.waker(), pin!(future));
    let mut context = Context::from_waker(&waker);
    while future.as_mut().poll(&mut context).is_pending() {
        let is_ready = (0..ROUNDS).all(|_| runtime.run());
        match is_ready || has_yielded() {
            true => runtime.poll_with(Some(Duration::ZERO)),
            false => runtime.poll(),
        }
        wake_yielded();
    }
    runtime.run();
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn readiness_for_want_of_locked_memory_names_the_limit() {
        for (plain, best) in [(Errno::NOMEM, Errno::NOMEM), (Errno::INVAL, Errno::NOMEM)] {
            let said = readiness_instead(&plain.into(), &best.into());
            assert!(said.contains("epoll") && said.contains("RLIMIT_MEMLOCK"), "{said}");
        }
        let said = readiness_instead(&Errno::PERM.into(), &Errno::INVAL.into());
        assert!(!said.contains("MEMLOCK"), "{said}");
    }
}
