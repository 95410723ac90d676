//! Where answers are written.

/// What takes the bytes of answers. A value may be long; a sink that has it at hand elsewhere need
/// not copy it.
pub trait Sink {
    /// Takes whatever is appended here, behind all that was written before.
    fn text(&mut self) -> &mut Vec<u8>;

    /// Takes the value of an object, behind all that was written before. Of one that is stored in
    /// parts, this is its head: a sink that may come by one puts the parts in its place.
    fn value(&mut self, value: &[u8]);
}

impl Sink for Vec<u8> {
    fn text(&mut self) -> &mut Vec<u8> {
        self
    }

    fn value(&mut self, value: &[u8]) {
        self.extend_from_slice(value);
    }
}
