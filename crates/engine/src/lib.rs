//! The Afterglow cache engine.
