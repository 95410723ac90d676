//! Requests of clients, the same for every protocol.

use std::borrow::Cow;

use crate::action::{Action, Get, Mode};
use crate::dump::Dump;
use crate::reply::Reply;
use crate::topics::Topics;

/// One request.
#[derive(Debug)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: one answer for each key that is there, then [`Reply::END`].
    Retrieve {
        /// Which objects.
        keys: Keys<'a>,
        /// What to do with each of them.
        get: Get,
        /// How to answer.
        reply: Reply<'a>,
    },
    /// Something to do with one object.
    Operation(Operation<'a>),
    /// An object was to be stored that is too large: an older one under its key must go all the
    /// same if `remove` says so.
    TooLarge {
        /// Its key.
        key: Cow<'a, [u8]>,
        /// How it was to be stored.
        mode: Mode,
        /// Whether the older object goes.
        remove: bool,
        /// How to answer.
        reply: Reply<'a>,
    },
    /// The answer is known already (an error, mostly).
    Answer {
        /// The answer; may be empty.
        bytes: Cow<'static, [u8]>,
        /// Whether the connection ends after it.
        close: bool,
    },
    /// Statistics are asked for; the argument is what follows `stats`.
    Stats {
        /// Which statistics, empty for the general ones.
        argument: &'a [u8],
        /// How to answer.
        reply: Reply<'a>,
    },
    /// Every object that is there in so many seconds (at once when not positive), or at that
    /// moment, is to be dropped.
    Flush {
        /// As clients write expiry; `None` when it is no number, which is said only where a flush
        /// is allowed.
        delay: Option<i64>,
        /// How to answer.
        reply: Reply<'a>,
    },
    /// The version is asked for.
    Version(Reply<'a>),
    /// A client says who it is.
    Authenticate {
        /// Name.
        user: &'a [u8],
        /// Password.
        password: &'a [u8],
        /// How to answer.
        reply: Reply<'a>,
    },
    /// All objects are to be shown.
    Dump(Dump),
    /// The connection is to be told of what happens, from now until it ends.
    Watch(Topics),
    /// Memory is to be limited to so many megabytes.
    MemoryLimit {
        /// How many.
        megabytes: u32,
        /// Nothing is answered.
        quiet: bool,
    },
    /// More or less is to be said in the log; memcached knows levels up to 2.
    Verbosity {
        /// How much.
        level: u32,
        /// Nothing is answered.
        quiet: bool,
    },
    /// Certificates are to be read again.
    RefreshCertificates,
}

/// The keys of a retrieval; all of lawful length.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a>(pub(crate) &'a [u8]);

impl<'a> Keys<'a> {
    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.behind(0).map(|(_, key)| key)
    }

    /// Those behind a byte where one ends, or behind 0, each with the byte where it ends.
    pub fn behind(&self, end: usize) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let (line, mut end): (&'a [u8], _) = (self.0, end);
        std::iter::from_fn(move || {
            let start = end + line.get(end..)?.iter().position(|byte| *byte != b' ')?;
            let len = line[start..].iter().position(|byte| *byte == b' ');
            end = len.map_or(line.len(), |len| start + len);
            Some((end, &line[start..end]))
        })
    }
}

/// Something to do with one object.
#[derive(Debug, Clone)]
pub struct Operation<'a> {
    /// Which object.
    pub key: Cow<'a, [u8]>,
    /// What to do.
    pub action: Action<'a>,
    /// How to answer.
    pub reply: Reply<'a>,
}

impl Operation<'_> {
    /// The same, owning all it says but for the value that it stores.
    #[must_use]
    pub fn without_value(&self) -> Operation<'static> {
        let action = match &self.action {
            Action::Store(store) => Action::Store(store.without_value()),
            other => other.clone().into_owned(),
        };
        Operation {
            key: Cow::Owned(self.key.to_vec()),
            action,
            reply: self.reply.clone().into_owned(),
        }
    }

    /// The same, owning all it says.
    #[must_use]
    pub fn into_owned(self) -> Operation<'static> {
        Operation {
            key: Cow::Owned(self.key.into_owned()),
            action: self.action.into_owned(),
            reply: self.reply.into_owned(),
        }
    }
}
