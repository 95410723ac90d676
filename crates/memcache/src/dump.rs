//! Dumps: the lines that list every key, with or without facts about its object.

use crate::base64;
use crate::decide::Item;
use crate::limits::CLASS;
use crate::ttl::NEVER;
use crate::uri;

/// What is dumped, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dump {
    /// How.
    pub form: Form,
    /// Whether the class that all objects are in is among those named.
    pub is_named: bool,
}

/// How objects are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `lru_crawler metadump`: key, expiry, last use, cas token, whether it was read, class and
    /// size.
    Metadata,
    /// `lru_crawler mgdump`: an `mg` of each key.
    Keys,
    /// `stats cachedump`: key, length and expiry.
    Cached {
        /// Of so many objects at most; 0 for any number.
        limit: u32,
    },
}

impl Dump {
    /// What ends it.
    #[must_use]
    pub fn end(&self) -> &'static [u8] {
        match self.form {
            Form::Keys => b"EN\r\n",
            Form::Metadata | Form::Cached { .. } => b"END\r\n",
        }
    }

    /// What memcached says where dumps are switched off.
    #[must_use]
    pub fn refused(&self) -> &'static [u8] {
        match self.form {
            Form::Metadata => b"ERROR metadump not allowed\r\n",
            Form::Keys => b"ERROR key dump not allowed\r\n",
            Form::Cached { .. } => b"CLIENT_ERROR stats cachedump not allowed\r\n",
        }
    }

    /// Appends the line of an object at second `now`; false when it has none.
    pub fn line(&self, key: &[u8], item: &Item<'_>, now: u64, out: &mut Vec<u8>) -> bool {
        match self.form {
            Form::Metadata => metadata(key, item, now, out),
            Form::Keys => {
                out.extend_from_slice(b"mg ");
                match item.binary_key {
                    true => base64::encode(key, out),
                    false => out.extend_from_slice(key),
                }
                out.extend_from_slice(if item.binary_key { b" b\r\n" } else { b"\r\n" });
            }
            Form::Cached { .. } if item.binary_key => return false,
            Form::Cached { .. } => {
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(key);
                let text = format!(" [{} b; {} s]\r\n", item.len(), item.expiry);
                out.extend_from_slice(text.as_bytes());
            }
        }
        true
    }
}

fn metadata(key: &[u8], item: &Item<'_>, now: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    uri::encode(key, out);
    let exp = if item.expiry == NEVER { -1 } else { i64::from(item.expiry) };
    let used = now.saturating_sub(item.idle.into());
    let fetch = if item.fetched { "yes" } else { "no" };
    let text = format!(
        " exp={exp} la={used} cas={} fetch={fetch} cls={CLASS} size={}\n",
        item.cas,
        item.counted_size(key)
    );
    out.extend_from_slice(text.as_bytes());
}
