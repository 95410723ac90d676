//! Rows of which nothing is served while it is not known whether a write has changed them.
//!
//! A write that may drop a whole table or more may be refused: its client has no right to it, or it
//! is no statement at all. So no whole table is dropped for it before the database has answered.
//! What it would drop is *in doubt* meanwhile:
//!
//! ```text
//! write:  gates closed, doubt noted -> sent -> answered -> dropped, unless refused
//!         -> doubt ended -> gates opened -> client told
//! read:   is its table in doubt? no: row looked up
//! ```
//!
//! A read that looked before the doubt was noted came before the write was sent. What it finds is
//! as it was when it came.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::write_scope::Invalidation;

/// Most groups that one doubt names for a restart, each in a place of its own in the file of
/// intents.
const MOST_GROUPS: usize = 64;

/// What a write has put in doubt, until [`Doubts::end`] is called with it.
pub(crate) struct Doubt(Box<[Invalidation]>);

impl Doubt {
    /// What would be dropped.
    pub(crate) fn dropped(&self) -> &[Invalidation] {
        &self.0
    }

    /// The groups of rows that it names, each once. `None` if it names more than tables, or more
    /// of them than [`MOST_GROUPS`].
    pub(crate) fn only_groups(&self) -> Option<Vec<u32>> {
        let mut groups = self.groups().collect::<Option<Vec<u32>>>()?;
        groups.sort_unstable();
        groups.dedup();
        (groups.len() <= MOST_GROUPS).then_some(groups)
    }

    /// The groups of rows that this names; `None` stands for everything.
    fn groups(&self) -> impl Iterator<Item = Option<u32>> {
        self.0.iter().map(|dropped| match dropped {
            Invalidation::Table(group) => Some(*group),
            // Rows, units and partitions do not say of which table they are.
            Invalidation::Everything
            | Invalidation::Row(_)
            | Invalidation::Unit(_)
            | Invalidation::Partition(_) => None,
        })
    }
}

/// What is in doubt now. A look takes as long whatever there is: clients may have many writes under
/// way, of many tables each.
#[derive(Default)]
pub(crate) struct Doubts {
    /// How many there are, for reads that find none.
    count: AtomicUsize,
    in_doubt: RwLock<DoubtCounts>,
}

/// How many doubts there are of everything, and of each group of rows.
#[derive(Default)]
struct DoubtCounts {
    everything: usize,
    groups: HashMap<u32, usize>,
}

impl DoubtCounts {
    fn note(&mut self, group: Option<u32>) {
        match group {
            None => self.everything += 1,
            Some(group) => *self.groups.entry(group).or_default() += 1,
        }
    }

    fn forget(&mut self, group: Option<u32>) {
        let Some(group) = group else {
            self.everything -= 1;
            return;
        };
        let left = self.groups.get_mut(&group).expect("each end follows its begin");
        *left -= 1;
        if *left == 0 {
            self.groups.remove(&group);
        }
    }
}

impl Doubts {
    /// Nothing of this is served until [`Doubts::end`] is called with what is returned.
    pub(crate) fn begin<'d>(&self, dropped: impl Iterator<Item = &'d Invalidation>) -> Doubt {
        let doubt = Doubt(dropped.cloned().collect());
        let mut in_doubt = self.in_doubt.write();
        doubt.groups().for_each(|group| in_doubt.note(group));
        self.count.fetch_add(1, Ordering::Release);
        doubt
    }

    pub(crate) fn end(&self, doubt: &Doubt) {
        let mut in_doubt = self.in_doubt.write();
        doubt.groups().for_each(|group| in_doubt.forget(group));
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// Whether anything is in doubt.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether rows of this group are.
    pub(crate) fn has(&self, group: impl FnOnce() -> u32) -> bool {
        if !self.is_any() {
            return false;
        }
        let in_doubt = self.in_doubt.read();
        in_doubt.everything > 0 || in_doubt.groups.contains_key(&group())
    }
}
