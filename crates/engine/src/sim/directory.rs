//! Data directories that are brought back as they were, while devices have gone on.

use super::coverage::{Path, reach};
use super::state::Run;

impl Run {
    /// Copies the data directory between two lives, or brings the copy back. Only where the life
    /// that has ended, or one since the copy, has `covered` its changes with a checkpoint: what
    /// leaves nothing on a device cannot be missed. Whatever comes back must be the newest.
    ///
    /// Nor where a namespace has other options than the copy says: it is cleared then.
    pub(super) fn change_directory(&mut self, covered: bool) {
        let copies = &mut self.copies;
        copies.shows |= covered && copies.copy.is_some();
        if std::mem::take(&mut copies.comes_back)
            && copies.shows
            && !self.foul
            && let Some((copy, options)) = copies.copy.take()
            && options == self.options
            && options == self.world.options
        {
            reach(Path::DirectoryBroughtBack);
            self.world.machine.bring_back(&copy);
            self.foul = true;
        }
        if std::mem::take(&mut copies.is_due) {
            let copy = (self.world.machine.copy_directory(), self.options.clone());
            (copies.copy, copies.shows) = (Some(copy), false);
        }
    }
}
