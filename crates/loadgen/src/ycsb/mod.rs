//! The key choosers of YCSB core (`site.ycsb:core` 0.17), reimplemented from their published
//! algorithms.
//!
//! They follow YCSB where its behaviour is surprising, because figures are only comparable when the
//! skew is the same: see [`ScrambledZipfian`] and [`SkewedLatest`]. `ycsb-check/` compares every
//! one of them with the real jar.

mod check;
mod chooser;
mod generator;
mod growth;
mod latest;
mod uniform;
mod workload;
mod zipfian;

pub use check::{Bucketing, CheckCase, CheckError, cases, chi_square_z, compare, parse_golden};
pub use chooser::{Distribution, HOT_SET, KeyChooser};
pub use generator::{Generator, fnv_hash64};
pub use growth::Growth;
pub use latest::SkewedLatest;
pub use uniform::{Counter, Hotspot, Sequential, Uniform};
pub use workload::{Action, OpMix, Workload};
pub use zipfian::{
    SCRAMBLED_ITEMS, SCRAMBLED_ZETAN, ScrambledZipfian, ZIPFIAN_CONSTANT, Zipfian, zeta,
};
