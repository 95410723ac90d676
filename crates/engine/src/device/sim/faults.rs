//! Faults of a simulated machine, as listed in the fault model at the head of
//! [`crate::device::sim`].

/// What happens to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, the kernel lives on.
    Process,
    /// Power loss or a kernel crash.
    Machine,
}

/// Kinds of I/Os in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they say what they are")]
pub enum SimIo {
    Read,
    Write,
    Sync,
}

/// Probabilities (0.0 to 1.0) of faults; see the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(missing_docs, reason = "each is described in the fault model")]
pub struct SimFaults {
    pub read_error: f64,
    pub write_error: f64,
    pub sync_error: f64,
    pub no_space: f64,
    pub short_read: f64,
    pub flip_on_read: f64,
    pub flip_on_write: f64,
    pub misdirected_write: f64,
    pub lost_write: f64,
    pub slow: f64,
    pub media_error: f64,
    pub media_sync_error: f64,
    pub writeback_error: f64,
    pub meta_error: f64,
}

impl SimFaults {
    /// Nothing fails; crashes are the caller's.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Everything fails now and then: each fault with this probability.
    #[must_use]
    pub fn all(probability: f64) -> Self {
        let p = probability;
        Self {
            read_error: p,
            write_error: p,
            sync_error: p,
            no_space: p,
            short_read: p,
            flip_on_read: p,
            flip_on_write: p,
            misdirected_write: p,
            lost_write: p,
            slow: p,
            media_error: p,
            media_sync_error: p,
            writeback_error: p,
            meta_error: p,
        }
    }
}
