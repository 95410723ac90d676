//! Decides what an action does to the object it names. It knows the present object and the time,
//! but not where objects are stored.

use crate::action::{Action, Arithmetic, Delete, Get, Mode, Store};
use crate::number;
use crate::ttl::{NEVER, PAST, expiry_of};
use crate::value::NewValue;

/// An object as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Item<'a> {
    /// Its value; where that is stored in parts, the head that names them.
    pub value: &'a [u8],
    /// Length of a value that is stored in parts.
    pub in_parts: Option<usize>,
    /// The client's flags.
    pub flags: u32,
    /// Its cas token.
    pub cas: u64,
    /// The second in which it expires, [`NEVER`] for never.
    pub expiry: u32,
    /// Marked stale.
    pub stale: bool,
    /// Some client was told to make it anew.
    pub token_sent: bool,
    /// Its key came in base 64.
    pub binary_key: bool,
    /// It was read before.
    pub fetched: bool,
    /// Seconds since it was last read or stored.
    pub idle: u32,
}

impl<'a> Item<'a> {
    /// Length of its value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_parts.unwrap_or(self.value.len())
    }

    /// Whether its value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its value, to be kept as it is.
    fn kept_value(&self) -> NewValue<'a> {
        match self.in_parts {
            Some(len) => NewValue::InParts { head: self.value, len },
            None => NewValue::Parts([self.value, &[]]),
        }
    }

    /// What memcached counts of it on a machine of 64 bits, with cas tokens.
    #[must_use]
    pub fn counted_size(&self, key: &[u8]) -> usize {
        key.len() + self.len() + if self.flags == 0 { 59 } else { 63 }
    }
}

/// What is to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// Nothing.
    None,
    /// Put this in its place.
    Put(NewItem<'a>),
    /// Remove it.
    Remove,
}

/// An object as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem<'a> {
    /// Its value.
    pub value: NewValue<'a>,
    /// The client's flags.
    pub flags: u32,
    /// The second in which it expires.
    pub expiry: u32,
    /// Its cas token.
    pub cas: NewCas,
    /// Marked stale.
    pub stale: bool,
    /// Some client was told to make it anew.
    pub token_sent: bool,
    /// Its key came in base 64.
    pub binary_key: bool,
}

/// Which cas token a changed object gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewCas {
    /// One that none ever had.
    Fresh,
    /// This one.
    Is(u64),
}

impl From<Option<u64>> for NewCas {
    fn from(wanted: Option<u64>) -> Self {
        wanted.map_or(NewCas::Fresh, NewCas::Is)
    }
}

/// What came of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Read.
    Found {
        /// The object as it was, or an empty one just made.
        item: Item<'a>,
        /// Its expiry from now on.
        expiry: u32,
        /// This client is to make it anew.
        won: bool,
    },
    /// There is no such object.
    Missing,
    /// Stored.
    Stored {
        /// Its cas token.
        cas: u64,
        /// Length of its value.
        size: usize,
    },
    /// Not stored: there is one, or there is none.
    NotStored,
    /// Not done: the cas token is another.
    Exists,
    /// Removed or marked stale.
    Deleted,
    /// Counted.
    Number {
        /// The new number.
        value: u64,
        /// Its cas token.
        cas: u64,
        /// It was made: there was none.
        made: bool,
        /// Its expiry before; of what was made, that which it was made with.
        before: u32,
        /// The expiry that it was given besides; `before` if none was.
        expiry: u32,
    },
    /// What is there is no number.
    NotANumber,
    /// Too large to be stored.
    TooLarge,
    /// It could not be stored for another reason.
    Failed,
}

impl Outcome<'_> {
    /// Fills in the cas token that a changed object got.
    pub fn set_cas(&mut self, new: u64) {
        match self {
            Outcome::Found { item, .. } => item.cas = new,
            Outcome::Stored { cas, .. } | Outcome::Number { cas, .. } => *cas = new,
            _ => {}
        }
    }
}

/// What is to be changed, and what the client is told once that is done (with the cas token filled
/// in).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'a> {
    /// What is to be changed.
    pub change: Change<'a>,
    /// What came of it.
    pub outcome: Outcome<'a>,
}

impl<'a> Decision<'a> {
    fn nothing(outcome: Outcome<'a>) -> Self {
        Decision { change: Change::None, outcome }
    }

    /// Whoever takes an object away is told that there is none, and it is removed all the same. A
    /// lookup that finds nothing does not show that flash has nothing: an eviction leaves the bytes
    /// where they are, and a restart after a crash may find them.
    fn gone() -> Self {
        Decision { change: Change::Remove, outcome: Outcome::Missing }
    }

    fn store(item: NewItem<'a>) -> Self {
        let outcome = Outcome::Stored { cas: 0, size: item.value.len() };
        Decision { change: Change::Put(item), outcome }
    }
}

/// What `action` does to `old` (which has not expired) at second `now`.
#[must_use]
pub fn decide<'a>(action: &'a Action<'_>, old: Option<Item<'a>>, now: u64) -> Decision<'a> {
    match action {
        Action::Get(get) => read(get, old, now),
        Action::Store(store) => write(store, old, now),
        Action::Delete(delete) => remove(delete, old, now),
        Action::Arithmetic(arithmetic) => count(arithmetic, old, now),
    }
}

/// An object as it is, to be changed a little.
fn kept(item: Item<'_>) -> NewItem<'_> {
    NewItem {
        value: item.kept_value(),
        flags: item.flags,
        expiry: item.expiry,
        cas: NewCas::Is(item.cas),
        stale: item.stale,
        token_sent: item.token_sent,
        binary_key: item.binary_key,
    }
}

fn read<'a>(get: &Get, old: Option<Item<'a>>, now: u64) -> Decision<'a> {
    let Some(item) = old else { return vivify(get, now) };
    let expiry = get.touch.map_or(item.expiry, |ttl| expiry_of(ttl, now));
    let looked_at = if get.recache_first { item.expiry } else { expiry };
    let runs_out =
        get.recache.is_some_and(|ttl| looked_at != NEVER && looked_at < expiry_of(ttl, now));
    let won = get.can_win && !item.token_sent && (runs_out || item.stale);
    let change = match won || expiry != item.expiry {
        true => Change::Put(NewItem { expiry, token_sent: item.token_sent || won, ..kept(item) }),
        false => Change::None,
    };
    Decision { change, outcome: Outcome::Found { item, expiry, won } }
}

fn vivify<'a>(get: &Get, now: u64) -> Decision<'a> {
    let Some(ttl) = get.vivify else {
        return match get.touch.map(|ttl| expiry_of(ttl, now)) {
            Some(PAST) => Decision::gone(),
            _ => Decision::nothing(Outcome::Missing),
        };
    };
    let ttl = get.touch.filter(|_| !get.vivify_last).unwrap_or(ttl);
    let (item, expiry) = (Item::default(), expiry_of(ttl, now));
    let new = NewItem { expiry, token_sent: true, cas: NewCas::Fresh, ..kept(item) };
    Decision { change: Change::Put(new), outcome: Outcome::Found { item, expiry, won: true } }
}

fn write<'a>(store: &'a Store<'_>, old: Option<Item<'a>>, now: u64) -> Decision<'a> {
    let mut new = NewItem {
        value: store.new_value(),
        flags: store.flags,
        expiry: expiry_of(store.ttl, now),
        cas: store.new_cas.into(),
        stale: false,
        token_sent: false,
        binary_key: store.binary_key,
    };
    let Some(old) = old else {
        return match store.mode {
            Mode::Set | Mode::Add => Decision::store(new),
            Mode::Cas => Decision::nothing(Outcome::Missing),
            Mode::Replace | Mode::Append | Mode::Prepend => Decision::nothing(Outcome::NotStored),
        };
    };
    let matches = store.cas == old.cas;
    match store.mode {
        Mode::Set | Mode::Replace => {}
        Mode::Add => return Decision::nothing(Outcome::NotStored),
        Mode::Cas if matches => {}
        Mode::Cas if store.stale && store.cas != 0 && store.cas < old.cas => {
            (new.expiry, new.stale, new.token_sent) = (old.expiry, true, old.token_sent);
        }
        Mode::Cas => return Decision::nothing(Outcome::Exists),
        Mode::Append | Mode::Prepend if store.cas != 0 && !matches => {
            return Decision::nothing(Outcome::Exists);
        }
        Mode::Append => {
            new = NewItem {
                value: joined(&old, store, [old.value, &store.value]),
                cas: new.cas,
                stale: false,
                token_sent: false,
                ..kept(old)
            };
        }
        Mode::Prepend => {
            new = NewItem {
                value: joined(&old, store, [&store.value, old.value]),
                cas: new.cas,
                stale: false,
                token_sent: false,
                ..kept(old)
            };
        }
    }
    Decision::store(new)
}

/// Both values, in their order.
fn joined<'a>(old: &Item<'a>, store: &Store<'_>, order: [&'a [u8]; 2]) -> NewValue<'a> {
    match (old.in_parts, store.in_parts) {
        (None, None) => NewValue::Parts(order),
        _ => NewValue::Join { len: old.len() + store.len() },
    }
}

fn remove<'a>(delete: &Delete, old: Option<Item<'a>>, now: u64) -> Decision<'a> {
    let Some(item) = old else { return Decision::gone() };
    if delete.cas.is_some_and(|cas| cas != item.cas) {
        return Decision::nothing(Outcome::Exists);
    }
    if !delete.mark_stale && !delete.value_only {
        return Decision { change: Change::Remove, outcome: Outcome::Deleted };
    }
    let mut new = NewItem { cas: delete.new_cas.into(), ..kept(item) };
    if let Some(ttl) = delete.touch {
        new.expiry = expiry_of(ttl, now);
    }
    if delete.mark_stale {
        (new.stale, new.token_sent) = (true, false);
    }
    if delete.value_only {
        (new.value, new.flags) = (NewValue::Parts([&[], &[]]), 0);
    }
    Decision { change: Change::Put(new), outcome: Outcome::Deleted }
}

fn count<'a>(arithmetic: &Arithmetic, old: Option<Item<'a>>, now: u64) -> Decision<'a> {
    let Some(item) = old else { return begin(arithmetic, now) };
    if item.is_empty() {
        return Decision::nothing(Outcome::NotANumber);
    }
    if arithmetic.cas != 0 && arithmetic.cas != item.cas {
        return Decision::nothing(Outcome::Exists);
    }
    // What is in parts is longer than any number.
    let digits = Some(item.value).filter(|_| item.in_parts.is_none());
    let Some(value) = digits.and_then(number::unsigned) else {
        return Decision::nothing(Outcome::NotANumber);
    };
    let value = match arithmetic.down {
        true => value.saturating_sub(arithmetic.delta),
        false => value.wrapping_add(arithmetic.delta),
    };
    let expiry = arithmetic.touch.map_or(item.expiry, |ttl| expiry_of(ttl, now));
    let number = NewValue::Number { value, width: item.value.len() };
    // memcached writes in place what fits; a longer number is an object of its own.
    let fits = number.len() <= item.value.len();
    let new = NewItem {
        value: number,
        cas: arithmetic.new_cas.into(),
        expiry,
        stale: item.stale && fits,
        token_sent: item.token_sent && fits,
        binary_key: item.binary_key && fits,
        ..kept(item)
    };
    let outcome = Outcome::Number { value, cas: 0, made: false, before: item.expiry, expiry };
    Decision { change: Change::Put(new), outcome }
}

/// Counting what is not there yet.
fn begin<'a>(arithmetic: &Arithmetic, now: u64) -> Decision<'a> {
    let Some((value, ttl)) = arithmetic.initial else { return Decision::nothing(Outcome::Missing) };
    let before = expiry_of(ttl, now);
    let expiry = arithmetic.touch.map_or(before, |ttl| expiry_of(ttl, now));
    let new = NewItem {
        value: NewValue::Number { value, width: 0 },
        cas: arithmetic.new_cas.into(),
        expiry: if arithmetic.initial_last { before } else { expiry },
        ..kept(Item::default())
    };
    Decision {
        change: Change::Put(new),
        outcome: Outcome::Number { value, cas: 0, made: true, before, expiry },
    }
}
