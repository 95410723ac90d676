//! What every kind of value shares, and the small enumerations.

use std::{fmt, str::FromStr};

/// Why a value was refused, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Invalid(message.into())
    }
}

/// Defines an enumeration that is written as one of a few words.
macro_rules! words {
    (
        $(#[$doc:meta])* $name:ident {
            $($(#[$vdoc:meta])* $variant:ident => $word:literal),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl FromStr for $name {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => {
                        let words = [$(concat!("`", $word, "`")),+].join(", ");
                        Err(Invalid::new(format!("`{text}` is not one of {words}")))
                    }
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

words! {
    /// How flash is read and written.
    IoChoice {
        /// io_uring where the kernel allows it, else `pread`, said in one log line.
        Auto => "auto",
        /// io_uring or nothing.
        Uring => "uring",
        /// `pread` and `pwrite`, for kernels and containers that refuse io_uring.
        Pread => "pread",
    }
}

words! {
    /// When a store is acknowledged.
    DurabilityChoice {
        /// At once; the copy on flash follows within 10 s.
        WriteBack => "write-back",
        /// With the copy on its way to flash.
        WriteThrough => "write-through",
        /// Once it would be remembered after power loss that the older value is gone.
        Synced => "synced",
    }
}

words! {
    /// How log lines are written, always to standard error.
    LogFormat {
        /// For people.
        Text => "text",
        /// One JSON object a line.
        Json => "json",
    }
}

/// The character that ends a prefix of keys: one that can be printed, of ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySeparator(u8);

impl KeySeparator {
    /// As it is in a key.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for KeySeparator {
    fn default() -> Self {
        KeySeparator(b':')
    }
}

impl FromStr for KeySeparator {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.as_bytes() {
            [byte] if byte.is_ascii_graphic() => Ok(KeySeparator(*byte)),
            _ => Err(Invalid::new(format!(
                "`{text}` is not one character that a key can have: write one such as `:`, `/` or `.`"
            ))),
        }
    }
}

impl fmt::Display for KeySeparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Write::write_char(f, self.0.into())
    }
}

/// Which log lines are written: a level (`info`) or a list of `target=level` directives
/// (`info,afterglow::frontend=debug`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter in the words of `tracing_subscriber::EnvFilter`; always accepted by it.
    pub fn directives(&self) -> &str {
        &self.0
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        LogFilter("info".into())
    }
}

impl FromStr for LogFilter {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let known = |directive: &str| {
            let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
            LEVELS.contains(&level.trim().to_ascii_lowercase().as_str())
        };
        if text.split(',').all(known) && tracing_subscriber::EnvFilter::try_new(text).is_ok() {
            return Ok(LogFilter(text.into()));
        }
        Err(Invalid::new(format!(
            "`{text}` is not a log level: write one of {}, or a list such as `info,afterglow::frontend=debug`",
            LEVELS.map(|level| format!("`{level}`")).join(", ")
        )))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_others_are_told_the_choice() {
        assert_eq!("pread".parse(), Ok(IoChoice::Pread));
        assert_eq!(IoChoice::Uring.to_string(), "uring");
        let refused = "io_uring".parse::<IoChoice>().unwrap_err().to_string();
        assert_eq!(refused, "`io_uring` is not one of `auto`, `uring`, `pread`");
    }

    #[test]
    fn a_separator_is_one_character_of_a_key() {
        assert_eq!("/".parse::<KeySeparator>().unwrap().to_string(), "/");
        for bad in ["", "::", " ", "é", "\n"] {
            assert!(bad.parse::<KeySeparator>().unwrap_err().0.contains("such as `:`"), "{bad:?}");
        }
    }

    #[test]
    fn a_log_filter_is_a_level_or_directives() {
        for good in ["info", "DEBUG", "off", "warn,afterglow=trace"] {
            assert_eq!(good.parse::<LogFilter>().unwrap().to_string(), good);
        }
        for bad in ["", "loud", "info,", "info,afterglow=loud"] {
            assert!(bad.parse::<LogFilter>().unwrap_err().0.contains("`warn`"), "{bad}");
        }
    }
}
