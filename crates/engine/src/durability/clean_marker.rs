//! The clean marker: it says that nothing has changed since a clean stop.
//!
//! The marker is written after the last checkpoint. A later change takes the marker back before the
//! change is acknowledged. Each side first writes its own flag and then reads the other's. So at
//! least one of them sees both.

use std::io;

use crate::core::Core;
use crate::sync::atomic::Ordering;
use crate::version;

impl Core {
    /// Writes the clean marker. Whoever removes something from now on takes it back first
    /// ([`Core::clear_clean_marker`]). False if something was removed meanwhile, so that there is
    /// no marker.
    pub(crate) fn mark_clean(&self, checkpoint: u64) -> io::Result<bool> {
        self.state.marked.store(true, Ordering::SeqCst);
        for slot in &self.shards {
            drop(slot.lock());
        }
        drop(self.namespaces.removing.write());
        // Who removed something without seeing the mark is in the journal by now, which must last
        // as long as the marker.
        self.journal.sync()?;
        // A change that cannot take the marker back still takes its version from beyond it. A power
        // loss may take all other traces of that change. So the next run begins behind them.
        let (limit, time) = (self.versions.peek() + version::BLOCK, self.time.now());
        let mut state = self.state.lock();
        if self.state.marker_cleared.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.state.replace(&mut state, |state| {
            (state.clean, state.checkpoint) = (true, checkpoint);
            (state.version_limit, state.time) = (limit, time);
        })?;
        Ok(true)
    }

    /// Takes the clean marker back before a change after the clean stop is acknowledged.
    pub(crate) fn clear_clean_marker(&self) {
        if !self.state.marked.load(Ordering::SeqCst) {
            return;
        }
        // Nobody goes on before the one who takes it back has done so.
        let mut state = self.state.lock();
        if self.state.marker_cleared.swap(true, Ordering::SeqCst) {
            return;
        }
        coverage_mark!(Spoiled);
        let limit = self.versions.peek() + version::BLOCK;
        if self.state.replace(&mut state, |s| (s.clean, s.version_limit) = (false, limit)).is_err()
        {
            self.journal.poison_now();
            // The marker lasts: so must what contradicts it.
            self.sync_journal();
        }
    }
}
