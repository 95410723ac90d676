//! The state file of an open cache, and whether it says that the cache was closed properly.

use std::io;
use std::sync::Arc;

use crate::device::area::MetaStore;
use crate::format::state::{STATE, StateFile};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, MutexGuard};

/// The state file: what is in it, and the way to replace it.
pub struct StateStore {
    /// What the file holds; held while it is replaced.
    file: Mutex<StateFile>,
    meta: Arc<dyn MetaStore>,
    /// The clean marker is being written, or was.
    pub marked: AtomicBool,
    /// Something changed after that.
    pub marker_cleared: AtomicBool,
}

impl StateStore {
    /// The file holds `state`.
    pub fn new(meta: Arc<dyn MetaStore>, state: StateFile) -> Self {
        Self {
            file: Mutex::new(state),
            meta,
            marked: AtomicBool::new(false),
            marker_cleared: AtomicBool::new(false),
        }
    }

    /// The files beside it.
    pub fn files(&self) -> &dyn MetaStore {
        &*self.meta
    }

    /// What the file holds. Nobody replaces it meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, StateFile> {
        self.file.lock()
    }

    /// Changes the file; the change holds only if it became durable.
    ///
    /// # Errors
    /// What the medium said.
    pub fn update(&self, change: impl FnOnce(&mut StateFile)) -> io::Result<()> {
        self.replace(&mut self.lock(), change)
    }

    /// [`StateStore::update`] of who holds the lock.
    ///
    /// # Errors
    /// What the medium said.
    pub fn replace(
        &self,
        held: &mut StateFile,
        change: impl FnOnce(&mut StateFile),
    ) -> io::Result<()> {
        let mut new = held.clone();
        change(&mut new);
        self.meta.replace(STATE, &new.encode())?;
        *held = new;
        Ok(())
    }
}
