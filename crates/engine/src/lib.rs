//! The Afterglow cache engine.

pub mod disk;
pub mod index;
pub mod media;
