//! A setting: its names, and how it is written and read.

use super::{Config, Invalid};

/// Under which heading `--help` lists a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Where clients come in and where the database is.
    FrontEnds,
    /// TLS towards clients of the CQL front end and towards the database.
    CqlTls,
    /// The memcached front end.
    Memcache,
    /// Several instances as one cache.
    Ring,
    /// Memory and flash.
    Cache,
    /// What may be cached.
    Policy,
    /// Threads, admin address, log.
    Process,
}

impl Group {
    /// The heading.
    pub fn heading(self) -> &'static str {
        match self {
            Group::FrontEnds => "Front ends and database",
            Group::CqlTls => "TLS of the CQL front end",
            Group::Memcache => "Memcache front end",
            Group::Ring => "Ring",
            Group::Cache => "Cache",
            Group::Policy => "What may be cached",
            Group::Process => "Process",
        }
    }
}

/// How a setting is written in TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `key = "text"`
    Text,
    /// `key = 4`, or a word in quotes
    Number,
    /// `key = true`
    Switch,
    /// `key = ["one", "two"]`; flag repeatable, environment separated by commas
    List,
}

/// A value that was refused: which of the list, and why.
#[derive(Debug)]
pub struct Refused {
    /// Index into the values given.
    pub index: usize,
    /// Why, and what to write instead.
    pub why: Invalid,
}

/// One setting.
#[derive(Clone, Copy)]
pub struct SettingKey {
    /// As in the file and behind `--`: `flash-size`.
    pub name: &'static str,
    /// Where `--help` lists it.
    pub group: Group,
    /// How it is written in TOML.
    pub shape: Shape,
    /// What stands for the value in `--help`.
    pub value_name: &'static str,
    /// A value one could write.
    pub example: &'static str,
    /// What it does, for `--help` and the example file.
    pub help: &'static str,
    /// Whether SIGHUP puts a change in force.
    pub live: bool,
    /// Reads values (exactly one unless the shape is a list) into the configuration.
    pub set: fn(&mut Config, &[String]) -> Result<(), Refused>,
    /// The values as they would be written; none when it is not set.
    pub get: fn(&Config) -> Vec<String>,
}

impl SettingKey {
    /// The environment variable: `AFTERGLOW_FLASH_SIZE`.
    pub fn variable(&self) -> String {
        format!("AFTERGLOW_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// A line of TOML that gives it these values.
    pub fn toml(&self, values: &[String]) -> String {
        let quoted = |text: &String| toml::Value::String(text.clone()).to_string();
        let value = match self.shape {
            Shape::List => {
                format!("[{}]", values.iter().map(quoted).collect::<Vec<_>>().join(", "))
            }
            Shape::Switch => values[0].clone(),
            Shape::Number if values[0].parse::<u64>().is_ok() => values[0].clone(),
            _ => quoted(&values[0]),
        };
        format!("{} = {value}", self.name)
    }
}
