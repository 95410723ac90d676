//! Values in the making.

use crate::number;

/// A value in the making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// These parts, one after the other.
    Parts([&'a [u8]; 2]),
    /// These digits.
    Number {
        /// The number.
        value: u64,
        /// Filled with spaces up to this length.
        width: usize,
    },
    /// A value that is stored in parts already.
    InParts {
        /// What names them, which is kept in its place.
        head: &'a [u8],
        /// Its length.
        len: usize,
    },
    /// An old and a new value joined, where one of them is in parts at least: who stores it joins
    /// them.
    Join {
        /// Its length.
        len: usize,
    },
}

impl NewValue<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            NewValue::Parts([a, b]) => a.len() + b.len(),
            NewValue::Number { value, width } => {
                number::digits_of(*value, &mut [0; 20]).len().max(*width)
            }
            NewValue::InParts { len, .. } | NewValue::Join { len } => *len,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends what is kept of it: of a value in parts, its head.
    ///
    /// # Panics
    /// Of values that are still to be joined.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            NewValue::InParts { head, .. } => out.extend_from_slice(head),
            NewValue::Join { .. } => unreachable!("values in parts are joined before"),
            NewValue::Parts(parts) => parts.iter().for_each(|part| out.extend_from_slice(part)),
            NewValue::Number { value, width } => {
                let end = out.len() + width;
                number::push(out, *value);
                if out.len() < end {
                    out.resize(end, b' ');
                }
            }
        }
    }
}
