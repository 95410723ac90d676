//! An intent as one word: what a write may touch, and what a restart must know of it.

use crate::gate::{GateScope, SLOTS};

const KIND_SHIFT: u32 = 32;
const KIND_SLOT: u64 = 1;
const KIND_TABLE: u64 = 2;
const KIND_EVERYTHING: u64 = 3;
const KIND_ROWS: u64 = 5;
const KIND_WEAK_SLOT: u64 = 6;
const KIND_WEAK_TABLE: u64 = 7;
/// A lightweight transaction: once its outcome is unknown it may be completed by any later one,
/// however late.
const CONDITIONAL: u64 = 1 << 63;

const MINUTE_SHIFT: u32 = 35;
/// Its rows are not dropped yet.
const UNDROPPED: u64 = 1 << 62;

/// The part of an intent word that names its scope, and whether it is a lightweight transaction.
pub const SCOPE: u64 = CONDITIONAL | 7 << KIND_SHIFT | u32::MAX as u64;
/// The intent word of acknowledged writes, to any scope, that fills may miss. Those to a slot or a
/// table have kinds of their own.
pub const WEAK: u64 = 4 << KIND_SHIFT;

/// The intent word if it is not known what was in flight.
pub const ANYTHING: u64 = UNDROPPED | KIND_EVERYTHING << KIND_SHIFT;

/// The intent word of rows of a table, named by their group, that are not dropped yet. It closes no
/// gate: other words of the same write do. Versions that do not know the kind drop everything.
pub fn rows_undropped(group: u32) -> u64 {
    UNDROPPED | KIND_ROWS << KIND_SHIFT | u64::from(group)
}

/// The group of the rows that [`rows_undropped`] made this word of; `None` for any other word.
pub fn undropped_rows(word: u64) -> Option<u32> {
    let group = word as u32;
    (word == rows_undropped(group)).then_some(group)
}

/// What an intent says in addition to its scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nature {
    /// It is a lightweight transaction.
    pub conditional: bool,
    /// The rows that it may touch have not been dropped yet: that waits for the database's answer.
    /// They are all rows, or no other word says which they are.
    pub undropped: bool,
    /// Of a lightweight transaction: the minute (since 1970) after which it can no longer take
    /// effect. 0 if that is not known, [`NEVER`] if it always can. Below 2^27.
    pub dead_after: u32,
    /// It was acknowledged, but a fill may miss it. Then it is nothing else. See [`WEAK`].
    pub weak: bool,
}

/// The last minute that an intent can name.
pub const NEVER: u32 = (1 << 27) - 1;

/// A gate scope as the words that the intent table stores: flags and kind in the upper half, slot
/// or gate in the lower.
pub fn intents_of(scopes: &[GateScope], nature: Nature) -> Vec<u64> {
    let flag = |on, flag| if on { flag } else { 0 };
    let (slot, table, everything, flags) = match nature.weak {
        true => (KIND_WEAK_SLOT, KIND_WEAK_TABLE, WEAK >> KIND_SHIFT, 0),
        false => {
            let flags = flag(nature.conditional, CONDITIONAL)
                | flag(nature.undropped, UNDROPPED)
                | u64::from(nature.dead_after.min(NEVER)) << MINUTE_SHIFT;
            (KIND_SLOT, KIND_TABLE, KIND_EVERYTHING, flags)
        }
    };
    let word = |kind: u64, value: u32| flags | (kind << KIND_SHIFT) | u64::from(value);
    let mut words = Vec::new();
    for scope in scopes {
        match scope {
            GateScope::Slots(slots) => {
                words.extend(slots.iter().map(|of| word(slot, *of)));
            }
            GateScope::Table(gate) => words.push(word(table, *gate)),
            GateScope::Everything => words.push(word(everything, 0)),
        }
    }
    words
}

/// The word of the same scope, of a write of this nature.
pub fn with_nature(word: u64, nature: Nature) -> u64 {
    let (scope, _) = scope_of_intent(word);
    intents_of(&[scope], nature)[0]
}

/// The scope of a stored intent, and what else it says. A word that no version of ours wrote counts
/// as everything.
pub fn scope_of_intent(word: u64) -> (GateScope, Nature) {
    let value = word as u32;
    let weak_scope = match word >> KIND_SHIFT {
        KIND_WEAK_SLOT if value < SLOTS => Some(GateScope::Slots(vec![value])),
        KIND_WEAK_TABLE => Some(GateScope::Table(value)),
        _ => (word == WEAK).then_some(GateScope::Everything),
    };
    if let Some(scope) = weak_scope {
        return (scope, Nature { weak: true, ..Nature::default() });
    }
    let scope = match (word >> KIND_SHIFT) & 7 {
        KIND_SLOT if value < SLOTS => GateScope::Slots(vec![value]),
        KIND_TABLE => GateScope::Table(value),
        _ => GateScope::Everything,
    };
    let nature = Nature {
        conditional: word & CONDITIONAL != 0,
        undropped: word & UNDROPPED != 0,
        dead_after: (word >> MINUTE_SHIFT) as u32 & NEVER,
        weak: false,
    };
    (scope, nature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_say_after_a_crash_what_they_said_before() {
        let scopes = [
            GateScope::Slots(vec![0, SLOTS - 1]),
            GateScope::Table(u32::MAX),
            GateScope::Everything,
        ];
        for (conditional, undropped, dead_after, weak) in [
            (false, false, 0, false),
            (true, false, 29_700_000, false),
            (false, true, 0, false),
            (true, true, NEVER, false),
            (false, false, 0, true),
        ] {
            let nature = Nature { conditional, undropped, dead_after, weak };
            let back: Vec<_> =
                intents_of(&scopes, nature).into_iter().map(scope_of_intent).collect();
            let expected = [GateScope::Slots(vec![0]), GateScope::Slots(vec![SLOTS - 1])];
            let expected = expected.into_iter().chain(scopes[1..].iter().cloned());
            assert_eq!(back, expected.map(|scope| (scope, nature)).collect::<Vec<_>>());
        }
        for group in [1, u32::MAX] {
            let word = rows_undropped(group);
            assert_eq!(undropped_rows(word), Some(group));
            assert!(scope_of_intent(word).1.undropped, "other versions drop everything");
        }
        let others = intents_of(&scopes, Nature { undropped: true, ..Nature::default() });
        for word in others.into_iter().chain([WEAK, ANYTHING, u64::MAX]) {
            assert_eq!(undropped_rows(word), None, "{word:x}");
        }
        assert_eq!(
            scope_of_intent(u64::from(SLOTS) | KIND_SLOT << KIND_SHIFT).0,
            GateScope::Everything
        );
        // No version of ours wrote them.
        let weak_slot = |slot: u32| KIND_WEAK_SLOT << KIND_SHIFT | u64::from(slot);
        for odd in [weak_slot(SLOTS), weak_slot(7) | CONDITIONAL, WEAK | 1] {
            let (scope, nature) = scope_of_intent(odd);
            assert_eq!((scope, nature.weak), (GateScope::Everything, false), "{odd:x}");
        }
        assert_eq!(
            scope_of_intent(WEAK),
            (GateScope::Everything, Nature { weak: true, ..Nature::default() })
        );
        assert_eq!(
            scope_of_intent(ANYTHING),
            (GateScope::Everything, Nature { undropped: true, ..Nature::default() })
        );
    }
}
