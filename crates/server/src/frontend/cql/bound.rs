//! Values that a request binds to the markers of its statement.

use afterglow_cql::frame::notation::Value;
use afterglow_cql::message::Values;
use afterglow_cql::statement::Marker;

/// Finds bound values by marker.
pub fn bound<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<&'v [u8]> {
    let value = bound_value(values);
    move |marker| value(marker).and_then(|value| value.bytes())
}

/// As [`bound`], with null and unset values. `None`: there is no value.
pub fn bound_value<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<Value<'v>> {
    let values = *values;
    move |marker| match &marker.name {
        Some(name) if values.are_named() => values.by_name(name),
        None if values.are_named() => None,
        _ => values.get(usize::from(marker.index)),
    }
}
