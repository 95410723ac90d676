//! The Afterglow binary.

fn main() {}
