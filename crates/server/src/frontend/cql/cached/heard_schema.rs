//! Up to which version of the schema all changes have been heard of.
//!
//! 1. A change is heard of: by an event of the control connection, or by the answer to a statement
//!    of a client. Its version is not known yet.
//! 2. The control connection reads the version. It has all changes that were heard of before the
//!    reading began.
//!
//! Invariant: a version is vouched for only if it has every change that was heard of. In between,
//! another instance that still names the version of before may lack what we have.
//!
//! The race between an answer and a reading that is under way: the answer has a number, and a
//! reading says which number was the last when it began. Events and readings are of one task, so
//! events need no number.

use parking_lot::RwLock;
use uuid::Uuid;

use crate::frontend::cql::{ChangeNumber, SeenVersion};

/// What has been heard of the schema's changes.
#[derive(Debug, Default)]
pub(super) struct HeardSchema(RwLock<HeardChanges>);

#[derive(Debug, Default)]
struct HeardChanges {
    seen: SeenVersion,
    /// An event has told of a change since the version was read.
    is_behind: bool,
    /// The last change that an answer has told of.
    answered: ChangeNumber,
}

impl HeardSchema {
    /// An event has told of a change.
    pub(super) fn told(&self) {
        self.0.write().is_behind = true;
    }

    /// The answer to a client has told of this change.
    pub(super) fn answered(&self, change: ChangeNumber) {
        let mut heard = self.0.write();
        heard.answered = heard.answered.max(change);
    }

    /// The version was read, and no event is left that tells of it. The version noted before.
    pub(super) fn note(&self, seen: SeenVersion) -> Option<String> {
        let mut heard = self.0.write();
        heard.is_behind = false;
        std::mem::replace(&mut heard.seen, seen).version
    }

    /// The version that has all changes that were heard of; none while that is not known.
    pub(super) fn version(&self) -> Option<Uuid> {
        let heard = self.0.read();
        if heard.is_behind || heard.seen.began < heard.answered {
            return None;
        }
        Uuid::parse_str(heard.seen.version.as_deref()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::cql::SchemaStore;

    const VERSIONS: [Uuid; 2] = [Uuid::from_u128(1), Uuid::from_u128(2)];

    fn seen(version: Uuid, began: ChangeNumber) -> SeenVersion {
        SeenVersion { version: Some(version.to_string()), began }
    }

    #[test]
    fn a_version_is_vouched_for_until_more_is_heard_of_and_again_when_that_is_read() {
        let (heard, store) = (HeardSchema::default(), SchemaStore::default());
        assert_eq!(heard.version(), None, "nothing was read");
        assert_eq!(heard.note(seen(VERSIONS[0], store.begin_load())), None);
        assert_eq!(heard.version(), Some(VERSIONS[0]));
        for hears in [
            (|heard, _| HeardSchema::told(heard)) as fn(&HeardSchema, &SchemaStore),
            |heard, store| heard.answered(store.note_change()),
        ] {
            hears(&heard, &store);
            assert_eq!(heard.version(), None, "the version of before lacks it");
            heard.note(seen(VERSIONS[1], store.begin_load()));
            assert_eq!(heard.version(), Some(VERSIONS[1]));
        }
    }

    #[test]
    fn a_reading_that_began_before_an_answer_vouches_for_nothing() {
        let (heard, store) = (HeardSchema::default(), SchemaStore::default());
        let began = store.begin_load();
        heard.answered(store.note_change());
        heard.note(seen(VERSIONS[0], began));
        assert_eq!(heard.version(), None);
        let before = heard.note(seen(VERSIONS[1], store.begin_load()));
        assert_eq!(before, Some(VERSIONS[0].to_string()), "a reconnection compares it");
        assert_eq!(heard.version(), Some(VERSIONS[1]));
    }
}
