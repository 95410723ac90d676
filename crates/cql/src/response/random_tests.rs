//! Random responses: what is sent comes back the same, and what is damaged is refused at worst.

use proptest::prelude::*;

use super::tests::{INT, MAP_OF_UDT, V5, header, rows, spec};
use super::*;

fn cql_type() -> impl Strategy<Value = CqlType> {
    let scalars = (1..=0x15u16).prop_map(|code| CqlType::parse(&code.to_be_bytes()).unwrap());
    let leaf = prop_oneof![4 => scalars, 1 => "[a-zA-Z.(), 0-9]{0,20}".prop_map(CqlType::Custom)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            boxed.clone().prop_map(CqlType::List),
            boxed.clone().prop_map(CqlType::Set),
            (boxed.clone(), boxed).prop_map(|(k, v)| CqlType::Map(k, v)),
            prop::collection::vec(inner.clone(), 0..4).prop_map(CqlType::Tuple),
            ("[a-z]{1,4}", "[a-z]{1,4}", prop::collection::vec(("[a-z]{1,4}", inner), 0..4))
                .prop_map(|(keyspace, name, fields)| CqlType::Udt { keyspace, name, fields }),
        ]
    })
}

proptest! {
    #[test]
    fn types_survive_the_round_trip(types in prop::collection::vec(cql_type(), 0..4)) {
        let encoded: Vec<_> = types.iter().map(|t| {
            let mut out = Vec::new();
            t.encode(&mut out);
            out
        }).collect();
        let columns: Vec<_> = encoded.iter().map(|bytes| spec("t", "c", bytes)).collect();
        let mut message = Vec::new();
        encode_rows_start(V5, &MetadataOut::of_table(&columns), 0, &mut message);
        let rows = rows(V5, &message);
        for (column, sent) in rows.metadata.columns.iter().zip(&types) {
            prop_assert_eq!(&column.cql_type().unwrap(), sent);
        }
        prop_assert_eq!(rows.metadata.columns.iter().count(), types.len());
    }

    #[test]
    fn rows_survive_the_round_trip(
        version in prop::sample::select(Version::ALL),
        (columns, cells) in (1..5usize, 0..6usize).prop_flat_map(|(columns, rows)| {
            let cell = prop::option::of(prop::collection::vec(any::<u8>(), 0..10));
            (Just(columns), prop::collection::vec(cell, columns * rows))
        }),
        one_table: bool, skip: bool,
        paging_state in prop::option::of(prop::collection::vec(any::<u8>(), 0..10)),
        new_id in prop::option::of(prop::collection::vec(any::<u8>(), 0..10)),
    ) {
        let specs = vec![spec("t", "c", INT); columns];
        let metadata = MetadataOut {
            columns: &specs, one_table, skip,
            paging_state: paging_state.as_deref(), new_metadata_id: new_id.as_deref(),
        };
        let mut message = Vec::new();
        encode_rows_start(version, &metadata, cells.len() / columns, &mut message);
        cells.iter().for_each(|c| message.put_value(Value::from(c.as_deref())));
        let rows = rows(version, &message);
        rows.check().unwrap();
        prop_assert_eq!(rows.metadata.column_count, columns);
        prop_assert_eq!(rows.metadata.paging_state, paging_state.as_deref());
        prop_assert_eq!(rows.metadata.new_metadata_id, new_id.as_deref().filter(|_| version == V5));
        prop_assert_eq!(rows.metadata.columns.len(), if skip { 0 } else { columns });
        let got: Vec<_> = rows.iter().flat_map(|r| r.unwrap().cells()).collect();
        prop_assert_eq!(got, cells.iter().map(Option::as_deref).collect::<Vec<_>>());
    }

    #[test]
    fn garbage_is_refused_at_worst(
        version in prop::sample::select(Version::ALL),
        opcode in prop::sample::select(Opcode::ALL),
        flags: u8,
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(prop_oneof![8 => 0..6u8, 1 => any::<u8>()], 0..200),
        ],
    ) {
        let mut header = header(version, opcode);
        header.flags = Flags(flags);
        let Ok((_, message)) = split(&header, &body) else { return Ok(()) };
        match Response::parse(&header, message) {
            Ok(Response::Result(ResultBody::Rows(rows))) => {
                let _ = rows.check();
                prop_assert_eq!(rows.metadata.columns.iter().count(), rows.metadata.columns.len());
            }
            Ok(Response::Result(ResultBody::Prepared(prepared))) => {
                prop_assert_eq!(prepared.bound.iter().count(), prepared.bound.len());
            }
            Ok(Response::Error(error)) => error.encode(&mut Vec::new()),
            Ok(Response::Event(event)) => event.encode(&mut Vec::new()),
            _ => {}
        }
    }

    #[test]
    fn damaged_rows_are_refused_at_worst(at: prop::sample::Index, byte: u8, kind in 2..=4u8) {
        let columns = [spec("t", "k", INT), spec("t", "m", MAP_OF_UDT)];
        let mut message = Vec::new();
        if kind == 2 {
            encode_rows_start(V5, &MetadataOut::of_table(&columns), 1, &mut message);
            message.put_value(Value::Bytes(b"cell"));
            message.put_value(Value::Null);
        } else {
            encode_prepared(V5, b"id", Some(b"m"), &[0], &columns, &MetadataOut::of_table(&columns), &mut message);
        }
        let at = at.index(message.len());
        message[at] = byte;
        match ResultBody::parse(V5, &message) {
            Ok(ResultBody::Rows(rows)) => {
                let _ = rows.check();
                rows.metadata.columns.iter().for_each(|c| drop(c.cql_type()));
            }
            Ok(ResultBody::Prepared(p)) => prop_assert_eq!(p.bound.iter().count(), p.bound.len()),
            _ => {}
        }
    }
}
