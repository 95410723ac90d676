//! The eight bytes the index keeps per object.
//!
//! ```text
//!  63        48 47  46 45      39 38             20 19            0
//! +------------+------+----------+-----------------+---------------+
//! |  tag (16)  |freq 2| class (7)|   segment (19)  |  offset (20)  |
//! +------------+------+----------+-----------------+---------------+
//! ```
//!
//! The tag is the top 16 bits of the object's hash, 0 replaced by 1. So no slot is the word 0,
//! which means empty. The offset counts 16-byte units from the start of the segment.
//!
//! Checkpoints of format 1 have slots with a segment of 21 bits and an offset in 64-byte units.

pub use crate::format::UNIT;

/// Segments a location can name.
pub const MAX_SEGMENTS: u32 = 1 << SEGMENT_BITS;
/// Bytes of the smallest step between size classes.
const CLASS_UNIT: u32 = 64;
/// Largest record a size class can describe.
pub const MAX_RECORD: u32 = 4 << 20;

const OFFSET_BITS: u32 = 20;
const SEGMENT_BITS: u32 = 19;
const CLASS_BITS: u32 = 7;
const CLASS_SHIFT: u32 = OFFSET_BITS + SEGMENT_BITS;
const FREQ_SHIFT: u32 = CLASS_SHIFT + CLASS_BITS;
const TAG_SHIFT: u32 = FREQ_SHIFT + 2;
const FREQ_MASK: u64 = 3 << FREQ_SHIFT;
const _: () = assert!(TAG_SHIFT == 48);

/// Where a record is: a logical segment and its first unit there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Logical segment, below [`MAX_SEGMENTS`]; the segment table maps it to a device and an
    /// extent.
    pub segment: u32,
    /// First byte in the segment, in units of [`UNIT`] bytes, below 2^20 (16 MiB).
    pub offset_units: u32,
}

impl Location {
    /// First byte within the segment.
    #[must_use]
    pub fn offset(self) -> u32 {
        self.offset_units * UNIT
    }

    /// As the low 39 bits of a word. Asserts that it fits them.
    pub(crate) fn bits(self) -> u64 {
        assert!(self.segment < MAX_SEGMENTS, "segment {} does not fit a slot", self.segment);
        assert!(
            self.offset_units < 1 << OFFSET_BITS,
            "offset {} does not fit a slot",
            self.offset_units
        );
        u64::from(self.segment) << OFFSET_BITS | u64::from(self.offset_units)
    }

    /// The location in the low 39 bits of a word.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let segment = (bits >> OFFSET_BITS) as u32 & (MAX_SEGMENTS - 1);
        Self { segment, offset_units: bits as u32 & ((1 << OFFSET_BITS) - 1) }
    }
}

/// Upper bound of a record's size in 7 bits, so that one device read fetches it.
///
/// Classes 0-31 are steps of 64 bytes (to 2 KiB), 32-47 of 128 bytes (to 4 KiB). Classes 48-127 are
/// eight geometric steps per octave, rounded up to 64 bytes (to 4 MiB). From 4 KiB
/// on the bound is at most 10 % above the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(pub u8);

/// 2^(i/8) in 1/65536, for the eight steps of an octave.
const STEPS: [u64; 8] = [71_468, 77_936, 84_990, 92_682, 101_070, 110_218, 120_194, 131_072];

impl SizeClass {
    /// The class of a record of `bytes` bytes, header included; `None` above [`MAX_RECORD`].
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        let units = bytes.max(1).div_ceil(CLASS_UNIT);
        let class = match units {
            1..=32 => units - 1,
            33..=64 => 32 + (units - 33) / 2,
            _ if bytes > MAX_RECORD => return None,
            _ => {
                // (4 KiB * 2^octave, twice that], found from the last size of the octave below.
                let octave = ((units - 1) / 64).ilog2();
                let mut class = 48 + octave * 8;
                while Self(class as u8).max_bytes() < bytes {
                    class += 1;
                }
                class
            }
        };
        Some(Self(class as u8))
    }

    /// Largest record of this class in bytes, a multiple of 64.
    #[must_use]
    pub fn max_bytes(self) -> u32 {
        let class = u32::from(self.0 & 127);
        let units = match class {
            0..=31 => class + 1,
            32..=47 => 34 + (class - 32) * 2,
            _ => {
                let (octave, step) = ((class - 48) / 8, (class - 48) % 8);
                ((64 << octave) * STEPS[step as usize]).div_ceil(65_536) as u32
            }
        };
        units * CLASS_UNIT
    }
}

/// An occupied slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

impl Slot {
    /// A slot for an object of this hash.
    ///
    /// # Panics
    /// When `location` is beyond what a slot can name.
    #[must_use]
    pub fn new(hash: u64, location: Location, class: SizeClass, freq: u8) -> Self {
        let class = u64::from(class.0 & 127) << CLASS_SHIFT;
        Self(
            u64::from(tag_of(hash)) << TAG_SHIFT
                | u64::from(freq.min(3)) << FREQ_SHIFT
                | class
                | location.bits(),
        )
    }

    /// The slot in a word of the index, `None` for an empty one.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    /// The word of today for one of a checkpoint of format 1: its offset counts 64-byte units. 0
    /// where it is empty, or names a segment that no cache has now.
    #[must_use]
    pub fn word_of_format_1(word: u64) -> u64 {
        let (segment, offset) = ((word >> 18) & ((1 << 21) - 1), word & ((1 << 18) - 1));
        match word != 0 && segment < u64::from(MAX_SEGMENTS) {
            true => {
                word & !(u64::MAX >> 25)
                    | segment << OFFSET_BITS
                    | (offset * (64 / u64::from(UNIT)))
            }
            false => 0,
        }
    }

    /// The word in a checkpoint of format 1 for one of today: for tests of reading it.
    #[cfg(test)]
    #[must_use]
    pub fn word_in_format_1(word: u64) -> u64 {
        let Some(at) = Self::from_word(word).map(Self::location) else { return 0 };
        assert!(at.offset().is_multiple_of(64), "a record of format 1 at {}", at.offset());
        word & !(u64::MAX >> 25) | u64::from(at.segment) << 18 | u64::from(at.offset() / 64)
    }

    /// The word as the index and checkpoints hold it, never 0.
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }

    /// The tag, never 0 in a slot made by [`Slot::new`].
    #[must_use]
    pub fn tag(self) -> u16 {
        (self.0 >> TAG_SHIFT) as u16
    }

    /// Where the record is.
    #[must_use]
    pub fn location(self) -> Location {
        Location::from_bits(self.0)
    }

    /// Upper bound of the record's size.
    #[must_use]
    pub fn size_class(self) -> SizeClass {
        SizeClass((self.0 >> CLASS_SHIFT) as u8 & 127)
    }

    /// Recent lookups, 0 to 3.
    #[must_use]
    pub fn freq(self) -> u8 {
        (self.0 >> FREQ_SHIFT) as u8 & 3
    }

    /// The same slot with another frequency.
    #[must_use]
    pub(super) fn with_freq(self, freq: u8) -> Self {
        Self(self.0 & !FREQ_MASK | u64::from(freq.min(3)) << FREQ_SHIFT)
    }
}

/// The tag of a hash.
#[must_use]
pub(super) fn tag_of(hash: u64) -> u16 {
    ((hash >> TAG_SHIFT) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_cover_every_size_closely() {
        let mut last = 0;
        for class in 0..128u8 {
            let max = SizeClass(class).max_bytes();
            assert!(
                max > last && max.is_multiple_of(CLASS_UNIT),
                "class {class} ends at {max}, the one before at {last}"
            );
            assert_eq!(SizeClass::from_bytes(last + 1), Some(SizeClass(class)));
            assert_eq!(SizeClass::from_bytes(max), Some(SizeClass(class)));
            if last >= 4096 {
                assert!(
                    f64::from(max) / f64::from(last + 1) <= 1.10,
                    "class {class} over-reads: {last}..{max}"
                );
            }
            last = max;
        }
        assert_eq!(last, MAX_RECORD);
        assert_eq!(SizeClass::from_bytes(MAX_RECORD + 1), None);
    }

    proptest! {
        #[test]
        fn a_slot_of_format_1_names_the_same_byte(
            hash: u64,
            segment in 0..1u64 << 21,
            offset in 0..1u64 << 18, class in 0..128u8, freq in 0..4u8,
        ) {
            let tagged = u64::from(tag_of(hash)) << 48 | u64::from(freq) << 46;
            let word = tagged | u64::from(class) << 39 | segment << 18 | offset;
            let Some(slot) = Slot::from_word(Slot::word_of_format_1(word)) else {
                prop_assert!(segment >= u64::from(MAX_SEGMENTS));
                return Ok(());
            };
            let location = Location { segment: segment as u32, offset_units: offset as u32 * 4 };
            prop_assert_eq!(slot, Slot::new(hash, location, SizeClass(class), freq));
            prop_assert_eq!(slot.location().offset(), offset as u32 * 64);
            prop_assert_eq!(Slot::word_in_format_1(slot.word()), word);
        }

        #[test]
        fn a_slot_keeps_its_fields(
            hash: u64,
            segment in 0..MAX_SEGMENTS,
            offset_units in 0..1u32 << 20, class in 0..128u8, freq in 0..4u8,
        ) {
            let location = Location { segment, offset_units };
            let slot = Slot::new(hash, location, SizeClass(class), freq);
            prop_assert_ne!(slot.word(), 0);
            prop_assert_eq!(slot.location(), location);
            prop_assert_eq!(slot.size_class(), SizeClass(class));
            prop_assert_eq!(slot.freq(), freq);
            prop_assert_eq!(slot.tag(), tag_of(hash));
            prop_assert_eq!(Slot::from_word(slot.word()), Some(slot));
            let bumped = slot.with_freq(3);
            let fields = (bumped.freq(), bumped.location(), bumped.tag());
            prop_assert_eq!(fields, (3, location, slot.tag()));
        }
    }
}
