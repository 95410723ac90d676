//! What an operator may set, and how it is read.
//!
//! Every setting is one key with one spelling: `flash-size` in the TOML file, `--flash-size` on the
//! command line, `AFTERGLOW_FLASH_SIZE` in the environment. A flag beats the environment, which
//! beats the file, which beats the default. [`keys`] is the only table of them; the flags, the file
//! and `check-config` are all made from it.

mod address;
mod check;
pub mod credentials;
mod duration;
mod fault;
mod file;
mod fill_hedge;
mod flash;
pub mod key;
pub mod keys;
mod load;
mod policy;
pub mod private;
mod put;
mod reread;
mod ring;
mod settings;
mod size;
mod value;
mod write_level;

pub use address::{Advertise, HostName, HostPort, parse_listen};
pub use check::{MAX_ITEM, MIN_FLASH, MIN_MEMORY};
pub use duration::Span;
pub use fault::{Fault, Faults, FilePlace, SettingPlace};
pub use fill_hedge::FillHedge;
pub use flash::FlashSpec;
pub use load::{Inputs, Loaded, load};
pub use policy::{LivePolicies, TablePattern, TablePolicies, TablePolicy, TableRule};
pub use reread::check_rereadable;
pub use ring::{ShortName, Weight};
pub use settings::Config;
pub use size::Size;
pub use value::{DurabilityChoice, Invalid, IoChoice, KeySeparator, LogFilter, LogFormat};
pub use write_level::{WriteLevelRule, WriteLevels};
