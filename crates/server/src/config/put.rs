//! Reads values into settings and writes them back. The table of keys is built from these
//! functions.

use std::{fmt::Display, net::SocketAddr, num::NonZeroUsize, path::PathBuf, str::FromStr};

use super::{Invalid, address::parse_listen, key::Refused};

pub(super) fn refused(index: usize) -> impl Fn(Invalid) -> Refused {
    move |why| Refused { index, why }
}

pub(super) fn put<T: FromStr<Err = Invalid>>(
    slot: &mut T,
    values: &[String],
) -> Result<(), Refused> {
    *slot = values[0].parse().map_err(refused(0))?;
    Ok(())
}

pub(super) fn put_list<T: FromStr<Err = Invalid>>(
    slot: &mut Vec<T>,
    values: &[String],
) -> Result<(), Refused> {
    let parse = |(index, value): (usize, &String)| value.parse().map_err(refused(index));
    *slot = values.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    Ok(())
}

pub(super) fn put_listen(slot: &mut Option<SocketAddr>, values: &[String]) -> Result<(), Refused> {
    *slot = match values[0].as_str() {
        "off" => None,
        text => Some(parse_listen(text).map_err(refused(0))?),
    };
    Ok(())
}

pub(super) fn put_switch(slot: &mut bool, values: &[String]) -> Result<(), Refused> {
    *slot = match values[0].as_str() {
        "true" => true,
        "false" => false,
        other => {
            return Err(refused(0)(Invalid::new(format!(
                "`{other}` is not one of `true`, `false`"
            ))));
        }
    };
    Ok(())
}

pub(super) fn put_path(slot: &mut PathBuf, values: &[String]) -> Result<(), Refused> {
    if values[0].is_empty() {
        return Err(refused(0)(Invalid::new(
            "the path is empty: name a directory or file, as in `/var/lib/afterglow`",
        )));
    }
    *slot = PathBuf::from(&values[0]);
    Ok(())
}

pub(super) fn put_optional_path(
    slot: &mut Option<PathBuf>,
    values: &[String],
) -> Result<(), Refused> {
    *slot = match values[0].as_str() {
        "" => return Err(refused(0)(Invalid::new("the path is empty: name a file"))),
        path => Some(PathBuf::from(path)),
    };
    Ok(())
}

/// A value, or `word` for none.
pub(super) fn put_unless<T: FromStr<Err = Invalid>>(
    word: &str,
    slot: &mut Option<T>,
    text: &str,
) -> Result<(), Refused> {
    *slot = if text == word { None } else { Some(text.parse().map_err(refused(0))?) };
    Ok(())
}

/// More connections than this no system gives a process.
const MAX_CONNECTIONS: usize = 1 << 20;

pub(super) fn put_connections(slot: &mut NonZeroUsize, values: &[String]) -> Result<(), Refused> {
    *slot = match values[0].parse::<NonZeroUsize>() {
        Ok(n) if n.get() <= MAX_CONNECTIONS => n,
        _ => {
            let why = format!(
                "`{}` is not a number of connections: write 1 to {MAX_CONNECTIONS}",
                values[0]
            );
            return Err(refused(0)(Invalid::new(why)));
        }
    };
    Ok(())
}

pub(super) fn paths(value: Option<&PathBuf>) -> Vec<String> {
    some(value.map(|path| path.display()))
}

/// More threads than this is a typing error.
const MAX_REACTORS: usize = 1024;

pub(super) fn put_reactors(
    slot: &mut Option<NonZeroUsize>,
    values: &[String],
) -> Result<(), Refused> {
    *slot = match values[0].as_str() {
        "auto" => None,
        text => match text.parse::<NonZeroUsize>() {
            Ok(n) if n.get() <= MAX_REACTORS => Some(n),
            _ => {
                let why = format!(
                    "`{text}` is not a number of threads: write `auto` or 1 to {MAX_REACTORS}"
                );
                return Err(refused(0)(Invalid::new(why)));
            }
        },
    };
    Ok(())
}

pub(super) fn one(value: impl Display) -> Vec<String> {
    vec![value.to_string()]
}

pub(super) fn all(values: &[impl Display]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

pub(super) fn some(value: Option<impl Display>) -> Vec<String> {
    value.iter().map(ToString::to_string).collect()
}
