//! Values that a request binds to the markers of its statement.

use std::cell::OnceCell;
use std::collections::HashMap;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::message::Values;
use afterglow_cql::statement::Marker;

/// A request's first values are found by reading all before them. With more values than this it is
/// written down once where each is, or finding all would take the square of their number.
const FEW: usize = 16;

/// Finds bound values by marker.
pub fn bound<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<&'v [u8]> {
    let value = bound_value(values);
    move |marker| value(marker).and_then(|value| value.bytes())
}

/// As [`bound`], with null and unset values. `None`: there is no value.
pub fn bound_value<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<Value<'v>> {
    let (are_named, value) = (values.are_named(), value_by_place(values));
    move |marker| match &marker.name {
        None if are_named => None,
        _ => value(marker),
    }
}

/// As [`bound`]. Where values have names and a marker has none, its place counts.
pub fn bound_by_place<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<&'v [u8]> {
    let value = value_by_place(values);
    move |marker| value(marker).and_then(|value| value.bytes())
}

fn value_by_place<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<Value<'v>> {
    let values = *values;
    let (positions, names) = (OnceCell::new(), OnceCell::new());
    move |marker| match &marker.name {
        Some(name) if values.are_named() => by_name(&values, name, &names),
        _ => at(&values, usize::from(marker.index), &positions),
    }
}

fn at<'v>(
    values: &Values<'v>,
    index: usize,
    known: &OnceCell<Vec<Value<'v>>>,
) -> Option<Value<'v>> {
    if index < FEW {
        return values.get(index);
    }
    known.get_or_init(|| values.iter().map(|(_, value)| value).collect()).get(index).copied()
}

/// The value of a name: of the first, if there are several.
fn by_name<'v>(
    values: &Values<'v>,
    name: &str,
    known: &OnceCell<HashMap<&'v str, Value<'v>>>,
) -> Option<Value<'v>> {
    if values.len() <= FEW {
        return values.by_name(name);
    }
    let all = || {
        let mut all = HashMap::new();
        for (name, value) in values.iter() {
            all.entry(name.unwrap_or_default()).or_insert(value);
        }
        all
    };
    known.get_or_init(all).get(name).copied()
}

#[cfg(test)]
mod tests {
    use afterglow_cql::message::ValuesBuilder;

    use super::*;

    #[test]
    fn of_many_values_each_is_found_at_its_place() {
        const MANY: u16 = 60_000;
        let (mut positional, mut named) = (ValuesBuilder::positional(), ValuesBuilder::named());
        for n in 0..MANY {
            positional.push(Value::Bytes(&n.to_be_bytes()));
            named.push_named(&format!("n{n}"), Value::Bytes(&n.to_be_bytes()));
        }
        named.push_named("n7", Value::Null);
        let (positional, named) = (positional.view(), named.view());
        let (by_position, by_name) = (bound(&positional), bound(&named));
        for index in 0..MANY {
            let name = Some(format!("n{index}").into());
            let expected = Some(&index.to_be_bytes()[..]);
            assert_eq!(by_position(&Marker { index, name: name.clone() }), expected);
            assert_eq!(by_name(&Marker { index: 0, name }), expected, "{index}");
        }
        assert_eq!(by_position(&Marker { index: MANY, name: None }), None);
        assert_eq!(by_name(&Marker { index: 0, name: Some("other".into()) }), None);
        assert_eq!(by_name(&Marker { index: 0, name: None }), None);
    }
}
