//! Tables that may have changed by something that is no write of ours, until it is known whether
//! they have.

use std::sync::Arc;

use crate::doubts::Doubt;
use crate::gate::{GateScope, Settled};
use crate::row_cache::RowCache;
use crate::write_scope::WriteScope;

/// Rows that may have changed by something that is no write of ours. They are neither served nor
/// filled until [`Suspected::end`]. If this is dropped before, so are they.
///
/// It has no intent: a restart knows tables by their shape, not by what was heard of them.
pub struct Suspected<W> {
    cache: Arc<RowCache<W>>,
    gates: Vec<GateScope>,
    doubt: Doubt,
    has_changed: bool,
}

impl<W> RowCache<W> {
    /// Suspects all of these tables.
    pub fn suspect(self: &Arc<Self>, scope: &WriteScope) -> Suspected<W> {
        let gates = scope.gates();
        let doubt = self.doubts.begin(scope.invalidations().iter());
        gates.iter().for_each(|gate| self.gates.begin_write(gate));
        Suspected { cache: self.clone(), gates, doubt, has_changed: true }
    }
}

impl<W> Suspected<W> {
    /// It is known now: they have changed, and are dropped, or they have not.
    pub fn end(mut self, has_changed: bool) {
        self.has_changed = has_changed;
    }
}

impl<W> Drop for Suspected<W> {
    fn drop(&mut self) {
        if self.has_changed {
            self.doubt.dropped().iter().for_each(|one| self.cache.drop_rows(one));
        }
        self.cache.doubts.end(&self.doubt);
        self.gates.iter().for_each(|gate| self.cache.gates.end_write(gate, Settled::Definite));
    }
}
