//! The topics that a client may `watch`.

/// What `watch` names, any number of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Topics(u8);

impl Topics {
    /// Look-ups of objects.
    pub const FETCHERS: Topics = Topics(1);
    /// Stores.
    pub const MUTATIONS: Topics = Topics(2);
    /// Objects that are evicted.
    pub const EVICTIONS: Topics = Topics(4);
    /// Connections that come and go.
    pub const CONNECTIONS: Topics = Topics(8);

    /// All of both.
    #[must_use]
    pub fn with(self, other: Topics) -> Topics {
        Topics(self.0 | other.0)
    }

    /// Whether both have one in common.
    #[must_use]
    pub fn meets(self, other: Topics) -> bool {
        self.0 & other.0 != 0
    }

    /// As a number, for [`Topics::from_bits`].
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// What [`Topics::bits`] was called on.
    #[must_use]
    pub fn from_bits(bits: u8) -> Topics {
        Topics(bits)
    }

    /// What a word stands for. Of some memcached never says anything, or only as a proxy; they are
    /// taken, and nothing comes of them.
    pub(crate) fn named(word: &[u8]) -> Option<Topics> {
        Some(match word {
            b"fetchers" => Topics::FETCHERS,
            b"mutations" => Topics::MUTATIONS,
            b"evictions" => Topics::EVICTIONS,
            b"connevents" => Topics::CONNECTIONS,
            b"rawcmds" | b"sysevents" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => {
                Topics::default()
            }
            _ => return None,
        })
    }
}
