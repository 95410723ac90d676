//! All namespaces of a cache.

use std::sync::Arc;

use super::state::NamespaceState;
use crate::sync::{Mutex, RwLock};

/// Every namespace ever opened, and what keeps their changes apart.
pub struct Namespaces {
    /// By id.
    pub list: RwLock<Vec<Arc<NamespaceState>>>,
    /// Held while a namespace is opened.
    pub opening: Mutex<()>,
    /// Held for writing while a group, epoch or namespace is removed, from taking the version to
    /// the change of the table. Held for reading from seeing that an object is alive to taking the
    /// version of its replacement.
    pub removing: RwLock<()>,
}

impl Namespaces {
    /// Those of `list`, by id.
    pub fn new(list: Vec<Arc<NamespaceState>>) -> Self {
        Self { list: RwLock::new(list), opening: Mutex::new(()), removing: RwLock::new(()) }
    }

    /// The namespace of that id.
    pub fn by_id(&self, id: u16) -> Option<Arc<NamespaceState>> {
        self.list.read().get(usize::from(id)).cloned()
    }
}
