//! The newest schema, indexed once for all reactors.

use std::sync::Arc;

use afterglow_rowcache::tables::Index;
use parking_lot::Mutex;

use super::super::SchemaStore;

/// The index of the newest snapshot, made when the snapshot is first asked for.
#[derive(Default)]
pub struct Newest(Mutex<Option<Arc<Index>>>);

impl Newest {
    /// The newest snapshot's index.
    pub fn of(&self, store: &SchemaStore) -> Arc<Index> {
        let mut newest = self.0.lock();
        match &*newest {
            Some(index) if index.generation() == store.generation() => index.clone(),
            Some(before) => {
                let index = Index::after(before, store.current());
                newest.insert(Arc::new(index)).clone()
            }
            None => newest.insert(Arc::new(Index::of(store.current()))).clone(),
        }
    }
}
