//! Loads a configuration: flags override the environment, which overrides the file, which overrides
//! defaults.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::{
    Config,
    check::check,
    fault::{Fault, Faults, SettingPlace},
    file,
    key::{SettingKey, Shape},
    keys::{self, KEYS},
};

/// Where the memcached front end listens when no front end is named at all.
const DEFAULT_MEMCACHE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 11211);

/// What the operator wrote, not yet understood.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The file's name and content.
    pub file: Option<(PathBuf, String)>,
    /// The whole environment; only `AFTERGLOW_*` is looked at.
    pub environment: Vec<(String, String)>,
    /// Flags by the names of their keys, with their values.
    pub flags: Vec<(&'static str, Vec<String>)>,
}

/// A configuration that a server can start with, and how it came about.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// What is allowed but perhaps not meant.
    pub notes: Vec<String>,
    places: BTreeMap<&'static str, SettingPlace>,
}

impl Loaded {
    /// Where a setting was written.
    pub fn place(&self, name: &str) -> &SettingPlace {
        self.places.get(name).unwrap_or(&SettingPlace::Default)
    }
}

/// Puts the inputs over each other and checks the result.
///
/// # Errors
/// All mistakes at once, each with its place. A wrong value in the file is an error even if a flag
/// overrides it.
pub fn load(inputs: &Inputs) -> Result<Loaded, Faults> {
    let mut state =
        LoadState { config: Config::default(), places: BTreeMap::new(), faults: Vec::new() };
    let mut notes = Vec::new();
    if let Some((path, content)) = &inputs.file {
        for value in file::read(path, content, &mut state.faults) {
            state.set(value.key, &value.values, &value.places, value.place);
        }
    }
    for key in KEYS {
        let variable = key.variable();
        // An empty variable is what a container file makes of one that nobody set.
        let Some((_, text)) =
            inputs.environment.iter().find(|(name, text)| *name == variable && !text.is_empty())
        else {
            continue;
        };
        let values: Vec<String> = match key.shape {
            Shape::List => text.split(',').map(|member| member.trim().to_string()).collect(),
            _ => vec![text.clone()],
        };
        state.set(key, &values, &[], SettingPlace::Variable(variable));
    }
    notes.extend(inputs.environment.iter().filter_map(|(name, _)| unknown_variable(name)));
    for (name, values) in &inputs.flags {
        let key = keys::find(name).expect("flags are made from the table of keys");
        state.set(key, values, &[], SettingPlace::Flag((*name).to_string()));
    }
    if state.config.cql.is_none()
        && !state.config.has_memcache()
        && !state.places.contains_key("memcache")
    {
        state.config.memcache = Some(DEFAULT_MEMCACHE);
    }
    if state.faults.is_empty() {
        check(&state.config, &state.places, &mut state.faults, &mut notes);
    }
    match state.faults.is_empty() {
        true => Ok(Loaded { config: state.config, notes, places: state.places }),
        false => Err(Faults(state.faults)),
    }
}

struct LoadState {
    config: Config,
    places: BTreeMap<&'static str, SettingPlace>,
    faults: Vec<Fault>,
}

impl LoadState {
    /// `members` are the places of a list's members, where they are known.
    fn set(
        &mut self,
        key: &SettingKey,
        values: &[String],
        members: &[SettingPlace],
        place: SettingPlace,
    ) {
        if let Err(refused) = (key.set)(&mut self.config, values) {
            let at = members.get(refused.index).unwrap_or(&place).clone();
            let message = match at {
                SettingPlace::File(_) => format!("{}: {}", key.name, refused.why),
                _ => refused.why.to_string(),
            };
            self.faults.push(Fault { place: at, message });
        }
        self.places.insert(key.name, place);
    }
}

/// Container platforms set variables of their own with any prefix, so an unknown one is no error; a
/// near miss deserves a word.
fn unknown_variable(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("AFTERGLOW_")?;
    let meant = keys::find(keys::nearest(name)?)?.variable();
    (meant != variable).then(|| {
        format!("environment variable {variable} means nothing here: did you mean {meant}?")
    })
}
