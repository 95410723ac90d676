//! `afterglow check-config FILE`: the mistakes in a configuration, its values, and the memory and
//! flash it takes.

use std::{fmt::Write, path::Path};

use clap::ArgMatches;

use afterglow_engine::{Looked, Outlook};

use super::{
    inputs,
    output::{Failure, print},
};
use crate::{
    config::{Config, Loaded, SettingPlace, TablePolicy, key::Group, keys::KEYS, load},
    inspect,
    serve::{self, Checked},
};

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    if arguments.get_flag("example") {
        return print(&example());
    }
    let file = arguments.get_one::<String>("FILE").map(Path::new);
    let loaded = load(&inputs::gather(arguments, file)?).map_err(Failure::usage)?;
    let checked =
        serve::check(&loaded.config).map_err(|e| Failure::usage(format!("error: {e}")))?;
    let mut text = explain(&loaded);
    divide(&mut text, &loaded.config, &checked);
    print(&text)
}

/// How memory and flash would be divided.
fn divide(text: &mut String, config: &Config, checked: &Checked) {
    let Looked { outlook, left_out } = &checked.looked;
    let Outlook { flash, segments, index_bytes, index_slots, dram, .. } = *outlook;
    let most = outlook.index_slots_most;
    let size = inspect::size;
    text.push_str("\n# Memory and flash:\n");
    let memory = config.memory;
    let (index, dram, flash) = (size(index_bytes), size(dram), size(flash));
    let divided = format!(
        "{memory} of memory: {index} are index, for {index_slots} objects on flash, and {dram} hold objects. With more objects on \
         flash the index grows, to {most} slots at most, and fewer are held in memory"
    );
    comment(text, "#   ", &divided);
    comment(text, "#   ", &format!("{flash} of flash in {segments} segments"));
    for why in left_out {
        comment(text, "#   ", &format!("the cache would go on without a device: {why}"));
    }
    if let Some(warning) = serve::small_index(outlook) {
        comment(text, "#   ", &warning);
    }
    if let Some(doubt) = &checked.intents {
        let hold = config.unknown_outcome_hold;
        let said = format!(
            "the table of intents cannot be used ({doubt:?}): `exclusive` tables are not cached for {hold} after the start"
        );
        comment(text, "#   ", &said);
    }
    if let Some(pid) = checked.served_by {
        comment(
            text,
            "#   ",
            &format!(
                "process {pid} serves from this data directory now: its addresses were not tried"
            ),
        );
    }
}

/// A file with every key, commented out where there is no default to show.
fn example() -> String {
    let mut text = String::from(
        "# Every setting of `afterglow serve`, with its default or, behind `#`, an example.\n",
    );
    let mut group: Option<Group> = None;
    for key in KEYS {
        if group != Some(key.group) {
            group = Some(key.group);
            let _ = write!(text, "\n# ---- {} ----\n", key.group.heading());
        }
        let defaults = (key.get)(&Config::default());
        text.push('\n');
        comment(&mut text, "# ", key.help);
        let _ = match defaults.is_empty() {
            true => writeln!(text, "# {}", key.toml(&[key.example.into()])),
            false => writeln!(text, "{}", key.toml(&defaults)),
        };
    }
    text
}

/// The effective configuration as a file one could keep, then what it means.
fn explain(loaded: &Loaded) -> String {
    let mut text = String::from("# The configuration in force, and where each value comes from.\n");
    for key in KEYS {
        let values = (key.get)(&loaded.config);
        let line = match values.is_empty() {
            true => format!("# {} is not set", key.name),
            false => key.toml(&values),
        };
        let _ = match loaded.place(key.name) {
            SettingPlace::Default if values.is_empty() => writeln!(text, "{line}"),
            place => writeln!(text, "{line:<48} # {place}"),
        };
    }
    text.push_str("\n# Table policies: the first pattern that matches holds.\n");
    for rule in &loaded.config.table_policy.rules {
        policy(&mut text, &rule.pattern.to_string(), rule.policy);
    }
    policy(&mut text, "every other table", TablePolicy::default());
    if !loaded.notes.is_empty() {
        text.push_str("\n# Notes:\n");
    }
    for note in &loaded.notes {
        comment(&mut text, "#   ", note);
    }
    let reload: Vec<_> = KEYS.iter().filter(|key| key.live).map(|key| key.name).collect();
    let _ = writeln!(
        text,
        "\n# SIGHUP puts changes of {} in force; all else needs a restart.",
        reload.join(", ")
    );
    text
}

fn policy(text: &mut String, tables: &str, policy: TablePolicy) {
    let _ = writeln!(text, "#   {tables}: {policy}");
    comment(text, "#       ", &policy.explain());
}

/// Adds a sentence in lines of at most 100 columns, each behind `prefix`.
fn comment(text: &mut String, prefix: &str, sentence: &str) {
    let mut width = usize::MAX;
    for word in sentence.split_whitespace() {
        if width.saturating_add(1 + word.len()) > 100 {
            if width != usize::MAX {
                text.push('\n');
            }
            text.push_str(prefix);
            width = prefix.len();
        } else {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += word.len();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_become_several_lines_of_comment() {
        let sentence = "word ".repeat(50);
        let mut text = String::new();
        comment(&mut text, "#   ", &sentence);
        assert!(
            text.lines().all(|line| line.starts_with("#   word") && line.len() <= 100),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 50);
        assert!(text.ends_with("word\n") && text.lines().count() == 3, "{text}");
    }
}
