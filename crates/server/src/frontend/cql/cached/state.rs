//! The state of the cached path besides its cache: what is known of the database, and how flash is
//! read.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use afterglow_engine::device::{DeviceId, DeviceSet};
use afterglow_rowcache::paxos::Paxos;
use parking_lot::RwLock;

use super::RowCache;
use super::fill::FillStatements;
use super::newest::Newest;
use crate::reactor::FlashFile;

/// What the tasks of a router share.
pub(super) struct CachedState {
    pub(super) cache: Arc<RowCache>,
    pub(super) statements: FillStatements,
    pub(super) newest: Newest,
    pub(super) flash: Vec<FlashFile>,
    /// See [`Times::fill`](super::Times::fill).
    pub(super) fill_timeout: Duration,
    /// What is known of the database's lightweight transactions.
    pub(super) paxos: Paxos,
    /// The data centre of the node that we talk to.
    pub(super) data_center: RwLock<Option<String>>,
    /// Name of the cluster that we talk to.
    pub(super) cluster: RwLock<Option<String>>,
    /// `schema_version` when the control connection was last there.
    pub(super) schema_version: RwLock<Option<String>>,
    /// The lease has been asked for, and the answer is known; or none is needed.
    pub(super) settled: AtomicBool,
    /// The database has required authentication since the control connection was last there.
    pub(super) guarded: AtomicBool,
}

impl CachedState {
    /// Over `cache`, whose flash devices are read on the reactors' own rings.
    pub(super) fn new(
        cache: Arc<RowCache>,
        devices: &Arc<dyn DeviceSet>,
        fill_timeout: Duration,
    ) -> CachedState {
        let device = |n: usize| FlashFile::new(devices.clone(), DeviceId(n as u16));
        let flash = (0..devices.infos().len()).filter_map(device).collect();
        CachedState {
            cache,
            statements: FillStatements::default(),
            newest: Newest::default(),
            flash,
            fill_timeout,
            paxos: Paxos::default(),
            data_center: RwLock::default(),
            cluster: RwLock::default(),
            schema_version: RwLock::default(),
            settled: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
        }
    }
}
