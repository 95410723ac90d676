//! What is wrong with the ring, as its keeper hears of it, for `afterglow ring status`.

use parking_lot::Mutex;

/// What something can be wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The last read of the map.
    Trouble,
    /// Changes of the map: the database refuses them.
    Refusal,
    /// The keyspace of the map: it lacks replicas.
    Lack,
    /// The lease's row: it is not the ring's, or the database refuses it.
    Lease,
    /// The database's transactions: they promise less than the ring needs.
    Transactions,
}

/// How many kinds there are.
const KINDS: usize = Note::Transactions as usize + 1;

/// What is wrong now, for each kind: with what to do about it.
#[derive(Debug, Default)]
pub struct Notes {
    texts: Mutex<[Option<String>; KINDS]>,
}

impl Notes {
    /// That is wrong from now on, or nothing of this kind is.
    pub fn set(&self, note: Note, text: Option<String>) {
        self.texts.lock()[note as usize] = text;
    }

    /// What is wrong, if anything of this kind is.
    pub fn get(&self, note: Note) -> Option<String> {
        self.texts.lock()[note as usize].clone()
    }
}
