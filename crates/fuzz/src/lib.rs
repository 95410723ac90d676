//! Fuzz targets: one for every parser whose bytes come from a disk or from a network.
//!
//! A [`Target`] takes any bytes and panics only when something is wrong. The same targets run in
//! three ways:
//!
//! * `cargo test -p afterglow-fuzz` replays seeds and corpus, then seeded mutations of them:
//!   seconds, stable, deterministic;
//! * `make fuzz [TARGET=name] [TIME=seconds]` drives them with libFuzzer (nightly),
//!   coverage-guided, for as long as you like;
//! * `cargo run -p afterglow-fuzz -- replay NAME FILE` runs one input.
//!
//! A new target is a line in the `TARGETS` of its module here, with seeds: whole, valid inputs to
//! start from. What libFuzzer finds worth keeping goes to `corpus/NAME/`.

mod cql;
pub mod format;
mod image;
pub mod memcache;
pub mod mutate;
mod ring;
mod ring_link;
mod seal;
mod target;
mod unit;
pub mod whole;

pub use target::Target;

/// Every target.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    let stored = format::TARGETS.iter().chain(whole::TARGETS).chain(unit::TARGETS);
    let rings = ring::TARGETS.iter().chain(ring_link::TARGETS);
    stored.chain(memcache::TARGETS).chain(cql::TARGETS).chain(rings)
}

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}
