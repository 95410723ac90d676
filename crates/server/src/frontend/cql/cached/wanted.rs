//! The metadata that the client of a read wants, and what its answer carries.
//!
//! - It leaves it out: the client knows the columns from PREPARE.
//! - It has what PREPARE told.
//! - The statement came as text: it is made from the types that the fill statement has.
//!
//! Invariant: where it is known that nodes differ about the types of columns, the client of a
//! prepared statement is answered only if it knows those of what is cached.

use std::sync::Arc;

use afterglow_cql::frame::Version;
use afterglow_cql::plan::ReadPlan;

use super::super::PreparedAnswer;
use super::answer::Metadata;
use super::state::CachedState;

/// The metadata that the client wants.
pub(super) enum Wanted {
    Skipped,
    Prepared(Arc<PreparedAnswer>),
    /// As one of these, if what is cached has the columns that the client knows: nodes differ about
    /// the types of some.
    IfSuited {
        known: Arc<PreparedAnswer>,
        skip: bool,
        generation: u64,
    },
    /// For a statement that came as text: made from the types that PREPARE of the fill statement
    /// gave.
    ByFillStatement {
        generation: u64,
    },
}

/// The metadata that an answer is to carry.
pub(super) enum Ready {
    Skipped,
    Prepared(Arc<PreparedAnswer>),
    Made(Vec<u8>),
}

impl Ready {
    pub(super) fn view(&self) -> Metadata<'_> {
        match self {
            Ready::Skipped => Metadata::Skipped,
            Ready::Prepared(answer) => Metadata::Whole(&answer.metadata),
            Ready::Made(bytes) => Metadata::Whole(bytes),
        }
    }
}

impl Wanted {
    /// For a statement that came as text.
    pub(super) fn by_text(skip: bool, generation: u64) -> Wanted {
        if skip { Wanted::Skipped } else { Wanted::ByFillStatement { generation } }
    }

    /// For a prepared statement, of whose columns its client knows these. `None`: they are not
    /// those of what is cached.
    ///
    /// The race with a fill that brings other types: the answer looks again.
    pub(super) fn by_prepared(
        shared: &CachedState,
        read: &ReadPlan,
        (version, generation): (Version, u64),
        known: &Arc<PreparedAnswer>,
        skip: bool,
    ) -> Option<Wanted> {
        if shared.statements.is_disputed(generation) {
            let suits = shared.statements.suit(read, version, generation, known);
            let known = known.clone();
            return suits.then_some(Wanted::IfSuited { known, skip, generation });
        }
        Some(if skip { Wanted::Skipped } else { Wanted::Prepared(known.clone()) })
    }

    /// What the answer carries, if it is known.
    pub(super) fn ready(
        &self,
        shared: &CachedState,
        read: &ReadPlan,
        version: Version,
    ) -> Option<Ready> {
        match self {
            Wanted::Skipped => Some(Ready::Skipped),
            Wanted::Prepared(answer) => Some(Ready::Prepared(answer.clone())),
            Wanted::IfSuited { known, skip, generation } => {
                let suits = shared.statements.suit(read, version, *generation, known);
                let ready = || if *skip { Ready::Skipped } else { Ready::Prepared(known.clone()) };
                suits.then(ready)
            }
            Wanted::ByFillStatement { generation } => {
                let statement = shared.statements.ready(read, version, *generation)?;
                statement.metadata(version, &read.projection, &read.names).map(Ready::Made)
            }
        }
    }
}
