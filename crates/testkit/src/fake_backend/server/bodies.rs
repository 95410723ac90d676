//! Parts of answers: metadata, errors, ids; and the values of requests.

use afterglow_cql::{
    error::ErrorCode,
    frame::notation::Value,
    message::{Consistency, QueryParams},
    response::{ColumnSpec, CqlType, ErrorBody, ErrorDetail},
};
use afterglow_loadgen::rng::mix;

use crate::fake_backend::{refusal::Refusal, term::Bound};

/// The id of a result's columns.
pub fn metadata_id(columns: &[(String, CqlType)]) -> Vec<u8> {
    digest(&format!("{columns:?}"))
}

/// The columns of a table in metadata.
pub fn specs<'s>(
    keyspace: &'s str,
    table: &'s str,
    columns: &'s [(String, CqlType)],
    types: &'s [Vec<u8>],
) -> Vec<ColumnSpec<'s>> {
    let spec = |((name, _), bytes): (&'s (String, _), &'s Vec<u8>)| ColumnSpec {
        keyspace,
        table,
        name,
        type_bytes: bytes,
    };
    columns.iter().zip(types).map(spec).collect()
}

/// A copy of a value.
pub fn own(value: Value<'_>) -> Bound {
    match value {
        Value::Bytes(bytes) => Bound::Bytes(bytes.to_vec()),
        Value::Null => Bound::Null,
        Value::Unset => Bound::Unset,
    }
}

/// The bound values in the order of the markers, whose names are known for prepared statements.
pub fn bound(params: &QueryParams<'_>, names: &[(String, CqlType)]) -> Vec<Bound> {
    if params.values.are_named() && !names.is_empty() {
        return names
            .iter()
            .map(|(name, _)| params.values.by_name(name).map_or(Bound::Unset, own))
            .collect();
    }
    params.values.iter().map(|(_, value)| own(value)).collect()
}

/// The answer that a refusal is.
pub fn error_body(refusal: &Refusal) -> ErrorBody<'_> {
    let mut body = ErrorBody::new(refusal.code, &refusal.message);
    let (consistency, received, block_for) = (Consistency::LocalQuorum, 0, 1);
    body.detail = match refusal.code {
        ErrorCode::WriteTimeout => ErrorDetail::WriteTimeout {
            consistency,
            received,
            block_for,
            write_type: "SIMPLE",
            contentions: None,
        },
        ErrorCode::Unavailable => ErrorDetail::Unavailable { consistency, required: 2, alive: 1 },
        ErrorCode::CasWriteUnknown => {
            ErrorDetail::CasWriteUnknown { consistency, received, block_for }
        }
        _ => body.detail,
    };
    body
}

/// 16 bytes that stand for a text. Not MD5, which a client must not rely on anyway.
pub fn digest(text: &str) -> Vec<u8> {
    let (mut a, mut b) = (0x243F_6A88_85A3_08D3u64, 0x1319_8A2E_0370_7344u64);
    for byte in text.bytes() {
        a = mix(a ^ u64::from(byte));
        b = mix(b.wrapping_add(a));
    }
    [a.to_be_bytes(), b.to_be_bytes()].concat()
}
