//! A fuzz target.

/// Something that takes any bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, also that of its folder in `corpus`.
    pub name: &'static str,
    /// Takes any bytes; panics when something is wrong.
    pub run: fn(&[u8]),
    /// Whole inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Mutated inputs of the short form: less for targets that are slow.
    pub mutations: u32,
}
