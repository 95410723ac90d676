//! Actions on an object, the same for every protocol.

use std::borrow::Cow;

use crate::value::NewValue;

/// What to do with an object.
#[derive(Debug, Clone)]
pub enum Action<'a> {
    /// Read it, and perhaps more.
    Get(Get),
    /// Store a value.
    Store(Store<'a>),
    /// Remove it, or mark it stale.
    Delete(Delete),
    /// Count up or down.
    Arithmetic(Arithmetic),
}

impl Action<'_> {
    /// The same, owning all it says.
    #[must_use]
    pub fn into_owned(self) -> Action<'static> {
        match self {
            Action::Get(get) => Action::Get(get),
            Action::Store(store) => {
                Action::Store(Store { value: Cow::Owned(store.value.into_owned()), ..store })
            }
            Action::Delete(delete) => Action::Delete(delete),
            Action::Arithmetic(arithmetic) => Action::Arithmetic(arithmetic),
        }
    }
}

/// A read. Times are as clients write expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Get {
    /// New expiry.
    pub touch: Option<i64>,
    /// On a miss, store an empty object with this expiry.
    pub vivify: Option<i64>,
    /// An object that expires before this is to be made anew by the client that sees it first.
    pub recache: Option<i64>,
    /// `recache` looks at the expiry from before `touch`: the client wrote it first.
    pub recache_first: bool,
    /// What is made on a miss keeps the expiry of `vivify`: the client wrote it behind `touch`.
    pub vivify_last: bool,
    /// The client can be told to make a stale object, or one that runs out, anew.
    pub can_win: bool,
    /// The read is not to count as an access.
    pub silent: bool,
    /// Only a look: nothing is counted.
    pub debug: bool,
}

impl Get {
    /// Whether it can change nothing.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.touch.is_none() && self.vivify.is_none() && self.recache.is_none()
    }
}

/// How to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In any case.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
    /// If what is there has the cas token named.
    Cas,
}

/// A value to store.
#[derive(Debug, Clone)]
pub struct Store<'a> {
    /// How.
    pub mode: Mode,
    /// The client's flags.
    pub flags: u32,
    /// Expiry as clients write it.
    pub ttl: i64,
    /// The cas token that what is there must have; 0 for any.
    pub cas: u64,
    /// The cas token it is to get; otherwise a fresh one.
    pub new_cas: Option<u64>,
    /// An older cas token is allowed, and makes the object stale.
    pub stale: bool,
    /// The key came in base 64 and is to be shown so.
    pub binary_key: bool,
    /// The value; where it is stored in parts, the head that names them.
    pub value: Cow<'a, [u8]>,
    /// Length of a value that is stored in parts already.
    pub in_parts: Option<usize>,
}

impl Store<'_> {
    /// The same without the bytes of the value: only how many they are.
    #[must_use]
    pub fn without_value(&self) -> Store<'static> {
        Store { value: Cow::Borrowed(&[]), in_parts: Some(self.len()), ..*self }
    }

    /// Length of the value that is stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_parts.unwrap_or(self.value.len())
    }

    /// Whether that value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value as it is to be kept.
    #[must_use]
    pub fn new_value(&self) -> NewValue<'_> {
        match self.in_parts {
            Some(len) => NewValue::InParts { head: &self.value, len },
            None => NewValue::Parts([&self.value, &[]]),
        }
    }
}

/// A removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delete {
    /// The cas token that what is there must have; `None` for any.
    pub cas: Option<u64>,
    /// The cas token a marked object is to get; otherwise a fresh one.
    pub new_cas: Option<u64>,
    /// Only mark it stale.
    pub mark_stale: bool,
    /// Only remove its value and flags.
    pub value_only: bool,
    /// New expiry of what is kept.
    pub touch: Option<i64>,
}

/// Counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// Down rather than up; never below 0, while up wraps at 2^64.
    pub down: bool,
    /// By how much.
    pub delta: u64,
    /// The cas token that what is there must have; 0 for any.
    pub cas: u64,
    /// The cas token it is to get; otherwise a fresh one.
    pub new_cas: Option<u64>,
    /// On a miss, store this number with this expiry.
    pub initial: Option<(u64, i64)>,
    /// New expiry.
    pub touch: Option<i64>,
    /// What is made on a miss keeps the expiry of `initial`: the client wrote it behind `touch`.
    pub initial_last: bool,
}
