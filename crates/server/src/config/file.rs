//! Reading the TOML file into values with their places.

use std::{ops::Range, path::Path};

use toml::de::{DeTable, DeValue};

use super::{
    fault::{Fault, FilePlace, SettingPlace},
    key::{SettingKey, Shape},
    keys,
};

/// A value, where it stands, and where each member of a list stands.
pub(super) struct FileValue {
    pub key: &'static SettingKey,
    pub values: Vec<String>,
    pub places: Vec<SettingPlace>,
    pub place: SettingPlace,
}

/// Reads the whole file. What is wrong goes to `faults`; the rest is still returned, so that all
/// errors are seen at once.
pub(super) fn read(path: &Path, content: &str, faults: &mut Vec<Fault>) -> Vec<FileValue> {
    let place = |range: Range<usize>| SettingPlace::File(FilePlace::new(path, content, range));
    let (table, errors) = DeTable::parse_recoverable(content);
    if !errors.is_empty() {
        let fault = |e: &toml::de::Error| Fault {
            place: place(e.span().unwrap_or(0..0)),
            message: format!("not TOML: {}", e.message()),
        };
        faults.extend(errors.iter().map(fault));
        return Vec::new();
    }
    let mut read = Vec::new();
    for (name, value) in table.get_ref() {
        let mut wrong =
            |range, message: String| faults.push(Fault { place: place(range), message });
        let Some(key) = keys::find(name.get_ref()) else {
            wrong(
                name.span(),
                unknown(name.get_ref(), matches!(value.get_ref(), DeValue::Table(_))),
            );
            continue;
        };
        match texts(key, value.get_ref(), &value.span()) {
            Ok(texts) => read.push(FileValue {
                key,
                places: texts.iter().map(|(range, _)| place(range.clone())).collect(),
                values: texts.into_iter().map(|(_, text)| text).collect(),
                place: place(value.span()),
            }),
            Err(range) => wrong(
                range,
                format!("{}: write it as in `{}`", key.name, key.toml(&[key.example.into()])),
            ),
        }
    }
    read
}

fn unknown(name: &str, is_table: bool) -> String {
    if is_table {
        return format!(
            "there are no sections: write every key at the top level, without `[{name}]`"
        );
    }
    match keys::nearest(name) {
        Some(meant) => format!("unknown key `{name}`: did you mean `{meant}`?"),
        None => format!("unknown key `{name}`: `afterglow serve --help` lists all of them"),
    }
}

/// The value as text, as a flag would have it; or the range that has the wrong type.
fn texts(
    key: &SettingKey,
    value: &DeValue<'_>,
    range: &Range<usize>,
) -> Result<Vec<(Range<usize>, String)>, Range<usize>> {
    let one = |text: String| Ok(vec![(range.clone(), text)]);
    match (key.shape, value) {
        (Shape::Text | Shape::Number | Shape::List, DeValue::String(text)) => one(text.to_string()),
        (Shape::Number, DeValue::Integer(n)) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => one(n.to_string()),
            Err(_) => Err(range.clone()),
        },
        (Shape::Switch, DeValue::Boolean(on)) => one(on.to_string()),
        (Shape::List, DeValue::Array(members)) => members
            .iter()
            .map(|member| match member.get_ref() {
                DeValue::String(text) => Ok((member.span(), text.to_string())),
                _ => Err(member.span()),
            })
            .collect(),
        _ => Err(range.clone()),
    }
}
