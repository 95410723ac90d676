//! The Afterglow cache engine.

pub mod disk;
pub mod dram;
pub mod index;
pub mod media;

#[cfg(test)]
mod testing;
