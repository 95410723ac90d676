//! Responses captured from Cassandra 5.0: read, and built again byte for byte.
//!
//! The table: `CREATE TABLE g.t (a int, b text, c int, m map<text, frozen<u>>, d duration, v
//! vector<float, 3>, s tuple<int, text> static, PRIMARY KEY ((a, b), c))` with `CREATE TYPE g.u (x
//! int, y frozen<list<uuid>>)`.

use super::*;
use crate::error::ErrorCode;
use crate::frame::{Decoder, Envelope, Version};
use crate::message::Consistency;

/// The bytes of hexadecimal parts in a row.
macro_rules! hex {
    ($($part:expr),* $(,)?) => { unhex(&[$($part),*].concat()) };
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn envelope(bytes: &[u8]) -> Envelope {
    let mut decoder = Decoder::for_responses();
    decoder.feed(bytes);
    let envelope = decoder.next_envelope().unwrap().expect("a whole envelope");
    assert_eq!(decoder.buffered(), 0);
    envelope
}

fn result(envelope: &Envelope) -> ResultBody<'_> {
    ResultBody::parse(envelope.header.version, &envelope.body).unwrap()
}

/// Keyspace, table, and the columns a, b, c, s of every full metadata.
const GLOBAL: &str = "000167000174";
const KEY_AND_STATIC: &str = "0001610009000162000d0001630009000173003100020009000d";
const DURATION_V4: &str = "0001640000002c6f72672e6170616368652e63617373616e6472612e64622e6d61727368616c2e4475726174696f6e54797065";
const DURATION_V5: &str = "0001640015";
const MAP: &str = "00016d0021000d0030000167000175000200017800090001790020000c";
const VECTOR: &str = concat!(
    "000176000000596f72672e6170616368652e63617373616e6472612e64622e6d61727368616c2e566563746f7254797065286f72672e",
    "6170616368652e63617373616e6472612e64622e6d61727368616c2e466c6f617454797065202c203329",
);
const ROW: &str = concat!(
    "0000000400000001000000016b00000004000000020000000d0000000400000003000000017a000000030204000000001900000001",
    "00000001700000000c0000000400000007ffffffff0000000c3f8000004000000040400000",
);
const ID: &str = "68a18952b8238e18ba5104d376b8c41f";
const METADATA_ID: &str = "f4ff1d5d6b2b68b82b90685314e75533";

#[test]
fn a_prepared_select() {
    let bound =
        ["000000010000000300000002000100000001", "67000174", "000162000d00016100090001630009"]
            .concat();
    let columns =
        |duration| ["0000000100000007", GLOBAL, KEY_AND_STATIC, duration, MAP, VECTOR].concat();
    let v4 = hex!["840000050800000113000000040010", ID, &bound, &columns(DURATION_V4)];
    let v5 = hex![
        "8500000508000000f7000000040010",
        ID,
        "0010",
        METADATA_ID,
        &bound,
        &columns(DURATION_V5)
    ];
    for (version, bytes) in [(Version::V4, v4), (Version::V5, v5)] {
        let envelope = envelope(&bytes);
        let ResultBody::Prepared(prepared) = result(&envelope) else { panic!("not prepared") };
        assert_eq!(prepared.id, unhex(ID));
        let metadata_id = unhex(METADATA_ID);
        assert_eq!(
            prepared.result_metadata_id,
            (version == Version::V5).then_some(&metadata_id[..])
        );
        assert!(
            prepared.pk_indexes().eq([1, 0]),
            "the partition key is (a, b), the markers are b, a, c"
        );
        let bound: Vec<_> = prepared.bound.iter().collect();
        assert_eq!(bound.iter().map(|c| c.name).collect::<Vec<_>>(), ["b", "a", "c"]);
        let columns: Vec<_> = prepared.result.columns.iter().collect();
        assert_eq!(
            columns.iter().map(|c| c.name).collect::<Vec<_>>(),
            ["a", "b", "c", "s", "d", "m", "v"]
        );
        assert!(columns.iter().all(|c| (c.keyspace, c.table) == ("g", "t")));
        let types: Vec<_> = columns.iter().map(|c| c.cql_type().unwrap()).collect();
        assert_eq!(types[3], CqlType::Tuple(vec![CqlType::Int, CqlType::Varchar]));
        assert!(types[4].is_duration() && types[5].is_collection());
        assert_eq!(types[6].as_vector(), Some(("org.apache.cassandra.db.marshal.FloatType", 3)));

        let mut again = Vec::new();
        let result = MetadataOut::of_table(&columns);
        let pk: Vec<_> = prepared.pk_indexes().collect();
        let metadata_id = prepared.result_metadata_id;
        encode_prepared(version, prepared.id, metadata_id, &pk, &bound, &result, &mut again);
        assert_eq!(again, envelope.body);
    }
}

#[test]
fn rows_in_full_skipped_and_with_changed_metadata() {
    let columns = |duration| [GLOBAL, KEY_AND_STATIC, duration, MAP, VECTOR].concat();
    let count = "00000001";
    let full_v4 =
        hex!["84000005080000013a000000020000000100000007", &columns(DURATION_V4), count, ROW];
    let full_v5 =
        hex!["85000005080000010c000000020000000100000007", &columns(DURATION_V5), count, ROW];
    let skipped_v4 = hex!["84000005080000006a000000020000000500000007", count, ROW];
    let skipped_v5 = hex!["85000005080000006a000000020000000500000007", count, ROW];
    let changed = hex![
        "85000005080000011e000000020000000900000007",
        "0010",
        METADATA_ID,
        &columns(DURATION_V5),
        count,
        ROW
    ];
    let full = [envelope(&full_v4), envelope(&full_v5)];
    for bytes in [&full_v4, &full_v5, &skipped_v4, &skipped_v5, &changed] {
        let envelope = envelope(bytes);
        let version = envelope.header.version;
        let ResultBody::Rows(rows) = result(&envelope) else { panic!("no rows") };
        rows.check().unwrap();
        assert_eq!((rows.count, rows.metadata.column_count), (1, 7));
        assert_eq!(rows.raw, unhex(ROW));
        let row = rows.iter().next().unwrap().unwrap();
        assert_eq!(
            (row.cell(0), row.cell(1)),
            (Some(Some(&[0, 0, 0, 1][..])), Some(Some(&b"k"[..])))
        );

        // Served again from what was once seen in full.
        let seen = result(&full[usize::from(version == Version::V5)]);
        let ResultBody::Rows(seen) = seen else { panic!("no rows") };
        let columns: Vec<_> = seen.metadata.columns.iter().collect();
        let metadata = MetadataOut {
            skip: rows.metadata.is_skipped(),
            new_metadata_id: rows.metadata.new_metadata_id,
            ..MetadataOut::of_table(&columns)
        };
        let mut again = Vec::new();
        encode_rows_start(version, &metadata, 1, &mut again);
        again.extend_from_slice(seen.raw);
        assert_eq!(again, envelope.body);
    }
}

#[test]
fn a_page_has_a_state() {
    let page = envelope(&hex![
        "8400000508000000400000000200000003000000010000000d056c6f63616c00f07ffffffe00000673797374656d00056c6f63616c",
        "00036b6579000d00000001000000056c6f63616c",
    ]);
    let ResultBody::Rows(rows) = result(&page) else { panic!("no rows") };
    rows.check().unwrap();
    assert!(rows.metadata.has_more());
    assert_eq!(rows.metadata.paging_state.map(<[u8]>::len), Some(13));
    assert_eq!(rows.metadata.columns.global(), Some(("system", "local")));
}

#[test]
fn warnings_and_a_trace_precede_the_message() {
    let warned = envelope(&hex![
        "84080005080000005b0001002c4167677265676174696f6e207175657279207573656420776974686f757420706172746974696f6e",
        "206b65790000000200000001000000010001670001740005636f756e74000200000001000000080000000000000001",
    ]);
    let (extras, message) = split(&warned.header, &warned.body).unwrap();
    let warnings: Vec<_> = extras.warnings.unwrap().iter().collect();
    assert_eq!(warnings, ["Aggregation query used without partition key"]);
    assert_eq!(ResultKind::peek(message), Ok(ResultKind::Rows));

    let traced =
        envelope(&hex!["84020005080000001775d6cbd0e5f711f1a08b43d9e6eb0cfb00000003000167"]);
    let (extras, message) = split(&traced.header, &traced.body).unwrap();
    assert_eq!(extras.tracing_id.unwrap().to_string(), "75d6cbd0-e5f7-11f1-a08b-43d9e6eb0cfb");
    assert!(matches!(ResultBody::parse(Version::V4, message), Ok(ResultBody::SetKeyspace("g"))));
}

#[test]
fn a_schema_change_as_event_and_as_result() {
    let event = envelope(&hex![
        "8500ffff0c00000035000d534348454d415f4348414e4745000743524541544544000846554e4354494f4e00016700016600020003",
        "696e74000474657874",
    ]);
    assert_eq!(event.header.stream, -1);
    let Event::Schema(change) = Event::parse(&event.body).unwrap() else {
        panic!("no schema change")
    };
    assert_eq!((change.change, change.keyspace), ("CREATED", "g"));
    let SchemaTarget::Function("f", arguments) = &change.target else {
        panic!("{:?}", change.target)
    };
    assert_eq!(arguments.iter().collect::<Vec<_>>(), ["int", "text"]);
    let mut again = Vec::new();
    Event::Schema(change).encode(&mut again);
    assert_eq!(again, event.body);

    let dropped = envelope(&hex![
        "84000005080000002a00000005000744524f50504544000846554e4354494f4e00016700016600020003696e74000474657874",
    ]);
    let ResultBody::SchemaChange(change) = result(&dropped) else { panic!("no schema change") };
    assert_eq!(change.change, "DROPPED");
    let mut again = Vec::new();
    encode_schema_change(&change, &mut again);
    assert_eq!(again, dropped.body);
}

#[test]
fn errors() {
    let parse = |bytes: &[u8], check: &dyn Fn(&ErrorBody<'_>)| {
        let envelope = envelope(bytes);
        let error = ErrorBody::parse(envelope.header.version, &envelope.body).unwrap();
        check(&error);
        let mut again = Vec::new();
        error.encode(&mut again);
        assert_eq!(again, envelope.body);
    };
    for version in ["84", "85"] {
        let unprepared = hex![
            version,
            "00000500000001050000250000ed50726570617265642071756572792077697468204944203032303230323032303230323032",
            "303230323032303230323032303230323032206e6f7420666f756e6420286569746865722074686520717565727920776173206e",
            "6f74207072657061726564206f6e207468697320686f737420286d617962652074686520686f737420686173206265656e207265",
            "737461727465643f29206f7220796f75206861766520707265706172656420746f6f206d616e79207175657269657320616e6420",
            "697420686173206265656e20657669637465642066726f6d2074686520696e7465726e616c206361636865290010020202020202",
            "02020202020202020202",
        ];
        parse(&unprepared, &|error| {
            assert_eq!(error.code, ErrorCode::Unprepared);
            assert!(matches!(error.detail, ErrorDetail::Unprepared { id } if id == [2; 16]));
        });
        let exists = hex![
            version,
            "000005000000002b00002400002043616e6e6f7420616464206578697374696e67206b65797370616365202267220001670000",
        ];
        parse(&exists, &|error| {
            assert!(matches!(
                error.detail,
                ErrorDetail::AlreadyExists { keyspace: "g", table: "" }
            ));
        });
        let unavailable = hex![
            version,
            "000005000000003400001000002443616e6e6f74206163686965766520636f6e73697374656e6379206c6576656c2054574f00",
            "020000000200000001",
        ];
        parse(&unavailable, &|error| {
            assert!(matches!(
                error.detail,
                ErrorDetail::Unavailable { consistency: Consistency::Two, required: 2, alive: 1 }
            ));
        });
    }
}
