//! Counts requests by kind, and times them by how they are answered.

use std::time::Duration;

use afterglow_memcache::{Action, Operation, Request};

use crate::hotkeys::report::readable;
use crate::metrics::{FrontEndMetrics, Label, Path, RequestKind};
use crate::slow_log::SlowRequest;

/// What a request counts as.
pub fn kind(request: &Request<'_>) -> RequestKind {
    match request {
        Request::Retrieve { .. } => RequestKind::Get,
        Request::TooLarge { .. } => RequestKind::Store,
        Request::Operation(Operation { action, .. }) => match action {
            Action::Get(_) => RequestKind::Get,
            Action::Store(_) => RequestKind::Store,
            Action::Delete(_) => RequestKind::Delete,
            Action::Arithmetic(_) => RequestKind::Arithmetic,
        },
        Request::Answer { .. }
        | Request::Stats { .. }
        | Request::Flush { .. }
        | Request::Version(_)
        | Request::Authenticate { .. }
        | Request::Dump(_)
        | Request::Watch(_)
        | Request::MemoryLimit { .. }
        | Request::Verbosity { .. }
        | Request::RefreshCertificates => RequestKind::Other,
    }
}

/// A command for the slow-request log; `key` is empty where it has none.
pub fn slow(kind: &'static str, key: &[u8]) -> SlowRequest {
    let key = (!key.is_empty()).then(|| readable(key));
    SlowRequest { front_end: "memcache", kind, key, requests: 1, ..SlowRequest::default() }
}

/// The name of an action for the same.
pub fn name(action: &Action<'_>) -> &'static str {
    match action {
        Action::Get(_) => RequestKind::Get,
        Action::Store(_) => RequestKind::Store,
        Action::Delete(_) => RequestKind::Delete,
        Action::Arithmetic(_) => RequestKind::Arithmetic,
    }
    .word()
}

/// What was answered since [`AtOnce::record`] was last called, by the way it was answered.
///
/// Requests that come together share their time: none of them costs a look at the clock. Those that
/// wait for a disk are timed each by its own task. Each key of a multi-get is timed.
#[derive(Debug, Default)]
pub struct AtOnce([u64; Path::ALL.len()]);

impl AtOnce {
    /// One more that was answered this way.
    pub fn add(&mut self, path: Path) {
        self.0[path.index()] += 1;
    }

    /// Counts them all as having taken so long.
    pub fn record(&mut self, took: Duration, metrics: &FrontEndMetrics) {
        for (&path, count) in Path::ALL.iter().zip(&mut self.0) {
            match std::mem::take(count) {
                0 => {}
                count => {
                    metrics.latency.of(path).record_many(took, count);
                    if metrics.slow.is_slow(took) {
                        let together = SlowRequest { requests: count, ..slow("batch", b"") };
                        metrics.slow.log(&together, path, took);
                    }
                }
            }
        }
    }

    /// Whether there is nothing to record.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}
