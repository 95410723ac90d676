//! The data that every page of the admin address is made from.

use std::sync::{Arc, OnceLock, Weak};

use afterglow_engine::Cache;

use super::health::Health;
use super::hosts::Hosts;
use crate::metrics::Metrics;

/// What the pages are made from.
#[derive(Clone)]
pub struct Shown {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub health: Arc<Health>,
    /// For the dashboard, once the cache is open.
    pub cache: Arc<OnceLock<Weak<Cache>>>,
    /// Under which names the dashboard is given out.
    pub hosts: Hosts,
    /// Whether names of keys are given out.
    pub keys_shown: bool,
}

impl Shown {
    /// The cache, once it is open and until it is closed.
    pub(super) fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.get().and_then(Weak::upgrade)
    }
}
