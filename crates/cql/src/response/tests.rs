//! Responses: bytes by the specification.

use std::net::IpAddr;

use super::*;
use crate::error::ErrorCode;
use crate::frame::notation::range_of;
use crate::message::Consistency;

const V4: Version = Version::V4;
pub(super) const V5: Version = Version::V5;

pub(super) fn header(version: Version, opcode: Opcode) -> Header {
    Header::new(version, 0, opcode)
}

fn parse(version: Version, opcode: Opcode, message: &[u8]) -> Response<'_> {
    Response::parse(&header(version, opcode), message).unwrap()
}

fn result(version: Version, message: &[u8]) -> ResultBody<'_> {
    ResultBody::parse(version, message).unwrap()
}

pub(super) fn rows(version: Version, message: &[u8]) -> Rows<'_> {
    let ResultBody::Rows(rows) = result(version, message) else { panic!("no rows") };
    rows
}

pub(super) const INT: &[u8] = b"\0\x09";
pub(super) const MAP_OF_UDT: &[u8] =
    b"\0\x21\0\x0d\0\x30\0\x02ks\0\x03udt\0\x02\0\x01x\0\x09\0\x01y\0\x20\0\x0c";

pub(super) fn spec<'a>(table: &'a str, name: &'a str, type_bytes: &'a [u8]) -> ColumnSpec<'a> {
    ColumnSpec { keyspace: "ks", table, name, type_bytes }
}

#[test]
fn rows_of_one_table() {
    let columns = [spec("t", "k", INT), spec("t", "m", MAP_OF_UDT)];
    let mut message = Vec::new();
    encode_rows_start(V4, &MetadataOut::of_table(&columns), 2, &mut message);
    let cells: [Value<'_>; 4] =
        [Value::Bytes(b"\0\0\0\x07"), Value::Null, Value::Bytes(b""), Value::Bytes(b"x")];
    cells.iter().for_each(|c| message.put_value(*c));
    let golden = [
        b"\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x02ks\0\x01t\0\x01k\0\x09\0\x01m",
        MAP_OF_UDT,
        b"\0\0\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff\0\0\0\0\0\0\0\x01x",
    ]
    .concat();
    assert_eq!(message, golden);

    let rows = rows(V4, &message);
    rows.check().unwrap();
    assert_eq!((rows.count, rows.metadata.column_count, rows.metadata.has_more()), (2, 2, false));
    assert!(rows.metadata.columns.iter().eq(columns));
    assert_eq!(rows.metadata.columns.global(), Some(("ks", "t")));
    let got: Vec<Vec<_>> = rows.iter().map(|row| row.unwrap().cells().collect()).collect();
    assert_eq!(got, [vec![Some(&b"\0\0\0\x07"[..]), None], vec![Some(b""), Some(b"x")]]);
    let row = rows.iter().next().unwrap().unwrap();
    assert_eq!(
        (row.cell(0), row.cell(1), row.cell(2)),
        (Some(Some(&b"\0\0\0\x07"[..])), Some(None), None)
    );
    // What a cache of encoded rows cuts out.
    assert_eq!(range_of(&message, rows.metadata.raw), 4..golden.len() - 25);
    assert_eq!(range_of(&message, rows.raw), golden.len() - 21..golden.len());
}

#[test]
fn rows_with_a_table_per_column_paging_and_a_new_id() {
    let columns = [spec("t", "a", INT), spec("u", "b", INT)];
    let metadata = MetadataOut {
        one_table: false,
        paging_state: Some(b"page"),
        new_metadata_id: Some(b"id"),
        ..MetadataOut::of_table(&columns)
    };
    let mut message = Vec::new();
    encode_rows_start(V5, &metadata, 0, &mut message);
    assert_eq!(
        message,
        b"\0\0\0\x02\0\0\0\x0a\0\0\0\x02\0\0\0\x04page\0\x02id\0\x02ks\0\x01t\0\x01a\0\x09\0\x02ks\0\x01u\0\x01b\0\x09\0\0\0\0"
    );
    let rows = rows(V5, &message);
    rows.check().unwrap();
    assert!(rows.metadata.has_more());
    assert_eq!(rows.metadata.paging_state, Some(&b"page"[..]));
    assert_eq!(rows.metadata.new_metadata_id, Some(&b"id"[..]));
    assert!(rows.metadata.columns.iter().eq(columns));
    assert_eq!(rows.metadata.columns.global(), None);

    let mut message = Vec::new();
    encode_rows_start(V4, &metadata, 0, &mut message);
    assert_eq!(self::rows(V4, &message).metadata.new_metadata_id, None, "v4 knows no metadata ids");
}

#[test]
fn an_answer_has_the_columns_of_prepare_whether_or_not_a_page_more_follows() {
    fn has(metadata: &MetadataOut<'_>, prepared: &[u8]) -> bool {
        let mut message = Vec::new();
        encode_rows_start(V5, metadata, 0, &mut message);
        rows(V5, &message).metadata.has_columns_of(prepared)
    }
    let columns = [spec("t", "k", INT), spec("t", "m", MAP_OF_UDT)];
    let mut message = Vec::new();
    encode_rows_start(V5, &MetadataOut::of_table(&columns), 0, &mut message);
    let prepared = rows(V5, &message).metadata.raw;
    for paging_state in [None, Some(&b""[..]), Some(b"page")] {
        let page = MetadataOut { paging_state, ..MetadataOut::of_table(&columns) };
        assert!(has(&page, prepared), "{paging_state:?}");
        for others in [
            &[spec("t", "k", INT), spec("t", "n", MAP_OF_UDT)][..],
            &[spec("t", "k", MAP_OF_UDT), spec("t", "m", INT)],
            &[spec("u", "k", INT), spec("u", "m", MAP_OF_UDT)],
            &columns[..1],
            &[],
        ] {
            let other = MetadataOut { columns: others, ..page };
            assert!(!has(&other, prepared), "{other:?}");
        }
        for other in [
            MetadataOut { one_table: false, ..page },
            MetadataOut { skip: true, ..page },
            MetadataOut { new_metadata_id: Some(b"id"), ..page },
        ] {
            assert!(!has(&other, prepared), "{other:?}");
        }
        (0..prepared.len()).for_each(|end| assert!(!has(&page, &prepared[..end])));
    }
    // A page more, and no state of it.
    let start = b"\0\0\0\x02\0\0\0\x03\0\0\0\x02\xff\xff\xff\xff";
    let message = [start, &prepared[8..], &[0; 4]].concat();
    assert!(rows(V5, &message).metadata.has_columns_of(prepared));
}

#[test]
fn skipped_metadata_is_two_numbers() {
    let columns = [spec("t", "a", INT), spec("t", "b", INT)];
    let metadata = MetadataOut { skip: true, ..MetadataOut::of_table(&columns) };
    let mut message = Vec::new();
    encode_rows_start(V4, &metadata, 1, &mut message);
    assert_eq!(message, b"\0\0\0\x02\0\0\0\x05\0\0\0\x02\0\0\0\x01");
    message.put_value(Value::Null);
    message.put_value(Value::Null);
    let rows = rows(V4, &message);
    rows.check().unwrap();
    assert!(rows.metadata.is_skipped() && rows.metadata.columns.is_empty());
    assert_eq!(rows.metadata.column_count, 2);
    assert_eq!(rows.iter().next().unwrap().unwrap().cells().count(), 2);
}

#[test]
fn missing_and_extra_cells_are_noticed() {
    let columns = [spec("t", "a", INT)];
    let mut message = Vec::new();
    encode_rows_start(V4, &MetadataOut::of_table(&columns), 2, &mut message);
    message.put_value(Value::Null);
    assert!(rows(V4, &message).check().is_err());
    assert_eq!(
        rows(V4, &message).iter().filter(|r| r.is_ok()).count(),
        1,
        "an error ends the rows"
    );
    assert_eq!(rows(V4, &message).iter().count(), 2);
    message.put_value(Value::Null);
    assert!(rows(V4, &message).check().is_ok());
    message.put_byte(0);
    assert!(rows(V4, &message).check().is_err());
}

#[test]
fn two_thousand_million_rows_without_columns_end_at_once() {
    let message = b"\0\0\0\x02\0\0\0\x04\0\0\0\0\x7f\xff\xff\xff";
    let rows = rows(V4, message);
    assert_eq!((rows.count, rows.iter().count()), (0x7fff_ffff, 0));
}

#[test]
fn prepared_statements() {
    let bound = [spec("t", "v", INT), spec("t", "k", INT)];
    let columns = [spec("t", "v", MAP_OF_UDT)];
    for (version, metadata_id) in [(V4, None), (V5, Some(&b"rmid"[..]))] {
        let mut message = Vec::new();
        encode_prepared(
            version,
            b"id",
            metadata_id,
            &[1, 0],
            &bound,
            &MetadataOut::of_table(&columns),
            &mut message,
        );
        let ids: &[u8] = if version == V4 { b"\0\x02id" } else { b"\0\x02id\0\x04rmid" };
        let golden = [
            b"\0\0\0\x04",
            ids,
            b"\0\0\0\x01\0\0\0\x02\0\0\0\x02\0\x01\0\0\0\x02ks\0\x01t\0\x01v\0\x09\0\x01k\0\x09",
            b"\0\0\0\x01\0\0\0\x01\0\x02ks\0\x01t\0\x01v",
            MAP_OF_UDT,
        ]
        .concat();
        assert_eq!(message, golden);
        assert_eq!(ResultKind::peek(&message), Ok(ResultKind::Prepared));
        let ResultBody::Prepared(prepared) = result(version, &message) else {
            panic!("not prepared")
        };
        assert_eq!((prepared.id, prepared.result_metadata_id), (&b"id"[..], metadata_id));
        assert!(prepared.pk_indexes().eq([1, 0]));
        assert!(prepared.bound.iter().eq(bound));
        assert!(prepared.result.columns.iter().eq(columns));
        for len in 0..message.len() {
            assert!(ResultBody::parse(version, &message[..len]).is_err(), "cut to {len}");
        }
    }
}

#[test]
fn what_is_prepared_of_a_statement_without_variables_or_rows() {
    let message = b"\0\0\0\x04\0\x01i\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0";
    let ResultBody::Prepared(prepared) = result(V4, message) else { panic!("not prepared") };
    assert!(prepared.bound.is_empty() && prepared.result.columns.is_empty());
    assert_eq!((prepared.pk_indexes().len(), prepared.result.column_count), (0, 0));
    let none = MetadataOut { skip: true, ..MetadataOut::of_table(&[]) };
    let mut again = Vec::new();
    encode_prepared(V4, b"i", None, &[], &[], &none, &mut again);
    assert_eq!(again, message);
}

#[test]
fn the_small_results() {
    let mut message = Vec::new();
    encode_void(&mut message);
    assert_eq!(message, b"\0\0\0\x01");
    assert!(matches!(result(V4, &message), ResultBody::Void));
    message.clear();
    encode_set_keyspace("ks", &mut message);
    assert_eq!(message, b"\0\0\0\x03\0\x02ks");
    assert!(matches!(result(V4, &message), ResultBody::SetKeyspace("ks")));
    assert!(ResultBody::parse(V4, b"\0\0\0\x06").is_err());
}

#[test]
fn schema_changes_as_results_and_as_events() {
    let cases: [(&[u8], &str); 5] = [
        (b"\0\x07CREATED\0\x08KEYSPACE\0\x02ks", "Keyspace"),
        (b"\0\x07UPDATED\0\x05TABLE\0\x02ks\0\x01t", "Table(\"t\")"),
        (b"\0\x07DROPPED\0\x04TYPE\0\x02ks\0\x01t", "Type(\"t\")"),
        (
            b"\0\x07CREATED\0\x08FUNCTION\0\x02ks\0\x01f\0\x02\0\x03int\0\x04text",
            "Function(\"f\", [\"int\", \"text\"])",
        ),
        (b"\0\x07CREATED\0\x09AGGREGATE\0\x02ks\0\x01f\0\0", "Aggregate(\"f\", [])"),
    ];
    for (change, target) in cases {
        let message = [b"\0\0\0\x05", change].concat();
        let ResultBody::SchemaChange(parsed) = result(V4, &message) else {
            panic!("not a schema change")
        };
        let shown = match &parsed.target {
            SchemaTarget::Keyspace => "Keyspace".to_owned(),
            SchemaTarget::Table(name) => format!("Table({name:?})"),
            SchemaTarget::Type(name) => format!("Type({name:?})"),
            SchemaTarget::Function(name, args) => {
                format!("Function({name:?}, {:?})", args.iter().collect::<Vec<_>>())
            }
            SchemaTarget::Aggregate(name, args) => {
                format!("Aggregate({name:?}, {:?})", args.iter().collect::<Vec<_>>())
            }
        };
        assert_eq!((parsed.keyspace, shown.as_str()), ("ks", target));
        let mut again = Vec::new();
        encode_schema_change(&parsed, &mut again);
        assert_eq!(again, message);

        let message = [b"\0\x0dSCHEMA_CHANGE", change].concat();
        let Response::Event(event) = parse(V4, Opcode::Event, &message) else { panic!("no event") };
        let mut again = Vec::new();
        event.encode(&mut again);
        assert_eq!(again, message);
    }
}

#[test]
fn events_of_nodes() {
    let v6 = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let cases = [
        (b"\0\x0fTOPOLOGY_CHANGE\0\x08NEW_NODE\x04\x7f\0\0\x01\0\0\x23\x52".to_vec(), "127.0.0.1"),
        (
            [b"\0\x0dSTATUS_CHANGE\0\x04DOWN\x10".as_slice(), &v6, b"\0\0\x23\x52"].concat(),
            "fe80::1",
        ),
    ];
    for (message, expected) in cases {
        let Response::Event(event) = parse(V5, Opcode::Event, &message) else { panic!("no event") };
        let (Event::Topology { address, port, .. } | Event::Status { address, port, .. }) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!((address, port), (expected.parse::<IpAddr>().unwrap(), 9042));
        let mut again = Vec::new();
        event.encode(&mut again);
        assert_eq!(again, message);
    }
    let message = b"\0\x0eTRACE_COMPLETE0123456789abcdef";
    let Response::Event(event) = parse(V4, Opcode::Event, message) else { panic!("no event") };
    assert_eq!(event.kind(), "TRACE_COMPLETE");
    let mut again = Vec::new();
    event.encode(&mut again);
    assert_eq!(again, message, "an unknown kind is kept");
}

#[test]
fn authentication_and_supported() {
    let mut message = Vec::new();
    encode_authenticate("org.Auth", &mut message);
    assert!(matches!(
        parse(V4, Opcode::Authenticate, &message),
        Response::Authenticate("org.Auth")
    ));
    message.clear();
    encode_auth_token(Some(b"token"), &mut message);
    assert!(matches!(
        parse(V4, Opcode::AuthChallenge, &message),
        Response::AuthChallenge(Some(b"token"))
    ));
    message.clear();
    encode_auth_token(None, &mut message);
    assert_eq!(message, b"\xff\xff\xff\xff");
    assert!(matches!(parse(V4, Opcode::AuthSuccess, &message), Response::AuthSuccess(None)));
    assert!(matches!(parse(V4, Opcode::Ready, b""), Response::Ready));
    message.clear();
    encode_supported(&[("A", &["x", "y"]), ("B", &[])], &mut message);
    assert_eq!(message, b"\0\x02\0\x01A\0\x02\0\x01x\0\x01y\0\x01B\0\0");
    let Response::Supported(options) = parse(V4, Opcode::Supported, &message) else {
        panic!("no options")
    };
    let options: Vec<_> = options.iter().map(|(k, v)| (k, v.iter().collect::<Vec<_>>())).collect();
    assert_eq!(options, [("A", vec!["x", "y"]), ("B", vec![])]);
}

fn error(version: Version, message: &[u8]) -> ErrorBody<'_> {
    let Response::Error(error) = parse(version, Opcode::Error, message) else { panic!("no error") };
    let mut again = Vec::new();
    error.encode(&mut again);
    assert_eq!(again, message, "encoded again");
    error
}

#[test]
fn errors_with_details() {
    let message = b"\0\0\x10\0\0\x01m\0\x04\0\0\0\x03\0\0\0\x02";
    let ErrorDetail::Unavailable { consistency, required, alive } = error(V4, message).detail
    else {
        panic!()
    };
    assert_eq!((consistency, required, alive), (Consistency::Quorum, 3, 2));

    let message = b"\0\0\x11\0\0\x01m\0\x06\0\0\0\x01\0\0\0\x02\0\x05BATCH";
    let ErrorDetail::WriteTimeout { received, block_for, write_type, contentions, .. } =
        error(V4, message).detail
    else {
        panic!()
    };
    assert_eq!((received, block_for, write_type, contentions), (1, 2, "BATCH", None));
    let message = b"\0\0\x11\0\0\x01m\0\x08\0\0\0\x01\0\0\0\x02\0\x03CAS\0\x07";
    let ErrorDetail::WriteTimeout { contentions, .. } = error(V5, message).detail else { panic!() };
    assert_eq!(contentions, Some(7));

    let message = b"\0\0\x12\0\0\x01m\0\x01\0\0\0\x01\0\0\0\x02\x01";
    let ErrorDetail::ReadTimeout { data_present, .. } = error(V4, message).detail else { panic!() };
    assert!(data_present);

    let message = b"\0\0\x17\0\0\x01m\0\x08\0\0\0\x01\0\0\0\x02";
    assert!(matches!(
        error(V5, message).detail,
        ErrorDetail::CasWriteUnknown {
            consistency: Consistency::Serial,
            received: 1,
            block_for: 2
        }
    ));
    let message = b"\0\0\x14\0\0\x01m\0\x02ks\0\x01f\0\x01\0\x03int";
    let ErrorDetail::FunctionFailure { keyspace, function, arg_types } = error(V4, message).detail
    else {
        panic!()
    };
    assert_eq!(
        (keyspace, function, arg_types.iter().collect::<Vec<_>>()),
        ("ks", "f", vec!["int"])
    );
    let message = b"\0\0\x24\0\0\x01m\0\x02ks\0\0";
    assert!(matches!(
        error(V4, message).detail,
        ErrorDetail::AlreadyExists { keyspace: "ks", table: "" }
    ));
}

#[test]
fn failures_count_nodes_in_v4_and_name_them_in_v5() {
    let acks = b"\0\x01\0\0\0\x01\0\0\0\x02";
    let v4 = [b"\0\0\x13\0\0\x01m", &acks[..], b"\0\0\0\x02\x01"].concat();
    let ErrorDetail::ReadFailure { failures, data_present, .. } = error(V4, &v4).detail else {
        panic!()
    };
    assert_eq!((failures.count, failures.reasons().count(), data_present), (2, 0, true));

    let reasons = b"\0\0\0\x02\x04\x7f\0\0\x01\0\x01\x04\x7f\0\0\x02\0\x04";
    let v5 = [b"\0\0\x13\0\0\x01m", &acks[..], reasons, b"\0"].concat();
    let ErrorDetail::ReadFailure { failures, data_present, .. } = error(V5, &v5).detail else {
        panic!()
    };
    let named: Vec<_> = failures.reasons().map(|(ip, code)| (ip.to_string(), code)).collect();
    assert_eq!(named, [("127.0.0.1".to_owned(), 1), ("127.0.0.2".to_owned(), 4)]);
    assert!(!data_present);

    let v5 = [b"\0\0\x15\0\0\x01m", &acks[..], reasons, b"\0\x06SIMPLE"].concat();
    let ErrorDetail::WriteFailure { failures, write_type, .. } = error(V5, &v5).detail else {
        panic!()
    };
    assert_eq!((failures.reasons().count(), write_type), (2, "SIMPLE"));
}

#[test]
fn unprepared_carries_the_id_and_other_errors_nothing() {
    let mut message = Vec::new();
    ErrorBody::unprepared("gone", b"\x01\x02").encode(&mut message);
    assert_eq!(message, b"\0\0\x25\0\0\x04gone\0\x02\x01\x02");
    assert!(matches!(error(V4, &message).detail, ErrorDetail::Unprepared { id: b"\x01\x02" }));
    message.clear();
    ErrorBody::new(ErrorCode::Overloaded, "busy").encode(&mut message);
    assert_eq!(message, b"\0\0\x10\x01\0\x04busy");
    assert_eq!(error(V4, &message).code, ErrorCode::Overloaded);
}

#[test]
fn an_error_with_an_unknown_code_or_detail_keeps_code_and_bytes() {
    let unknown = error(V4, b"\0\0\x77\x77\0\x01mmore");
    assert_eq!(unknown.code, ErrorCode::Other(0x7777));
    assert!(matches!(unknown.detail, ErrorDetail::Other(b"more")));
    // A consistency level of the future.
    let timeout = error(V4, b"\0\0\x11\0\0\x01m\0\x63\0\0\0\x01\0\0\0\x02\0\x03CAS");
    assert_eq!(timeout.code, ErrorCode::WriteTimeout);
    assert!(matches!(timeout.detail, ErrorDetail::Other(rest) if rest.len() == 15));
}

#[test]
fn error_codes_are_their_numbers() {
    for &code in ErrorCode::NAMED {
        assert_eq!(ErrorCode::from_i32(code.as_i32()), code);
    }
    assert_eq!(ErrorCode::CdcWriteFailure.as_i32(), 0x1600);
    assert_eq!(ErrorCode::from_i32(-1), ErrorCode::Other(-1));
    assert_eq!(ErrorCode::Other(5).as_i32(), 5);
}

#[test]
fn what_precedes_a_message_comes_in_the_order_trace_warnings_payload() {
    let id = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    let mut body = Vec::new();
    let flags =
        encode_extras(Some(id), &["w1", "w2"], &[("k", Some(b"v")), ("n", None)], &mut body);
    encode_void(&mut body);
    let golden = [
        &id.as_bytes()[..],
        b"\0\x02\0\x02w1\0\x02w2",
        b"\0\x02\0\x01k\0\0\0\x01v\0\x01n\xff\xff\xff\xff",
        b"\0\0\0\x01",
    ]
    .concat();
    assert_eq!(body, golden);
    let mut header = header(V4, Opcode::Result);
    header.flags = flags;
    let (extras, message) = split(&header, &body).unwrap();
    assert_eq!(extras.tracing_id, Some(id));
    assert_eq!(extras.warnings.unwrap().iter().collect::<Vec<_>>(), ["w1", "w2"]);
    assert_eq!(extras.custom_payload.unwrap().len(), 2);
    assert!(!extras.is_plain());
    assert_eq!(message, b"\0\0\0\x01");
    let plain = Header::new(V4, 0, Opcode::Result);
    assert!(split(&plain, message).unwrap().0.is_plain());
}

#[test]
fn the_code_of_a_native_type_is_its_option() {
    let natives = "ascii bigint blob boolean date decimal double float inet int smallint text time \
                   timestamp timeuuid tinyint uuid varint";
    for name in natives.split_whitespace() {
        let option = scalar_code(name).unwrap().to_be_bytes();
        let parsed = format!("{:?}", CqlType::parse(&option).unwrap()).to_lowercase();
        assert_eq!(parsed.replace("varchar", "text"), name);
    }
    for name in ["counter", "duration", "frozen<int>", "list<int>", "address", ""] {
        assert_eq!(scalar_code(name), None, "{name}");
    }
}

#[test]
fn types_tell_what_they_are() {
    let custom = |class: &str| CqlType::Custom(class.to_owned());
    let parse = |bytes: &[u8]| CqlType::parse(bytes).unwrap();
    assert!(parse(b"\0\x05").is_counter());
    assert!(parse(b"\0\x15").is_duration());
    assert!(custom("org.apache.cassandra.db.marshal.DurationType").is_duration());
    assert!(parse(b"\0\x22\0\x0c").is_collection() && !parse(b"\0\x31\0\0").is_collection());
    let vector = custom(
        "org.apache.cassandra.db.marshal.VectorType(org.apache.cassandra.db.marshal.FloatType , 3)",
    );
    assert_eq!(vector.as_vector(), Some(("org.apache.cassandra.db.marshal.FloatType", 3)));
    assert_eq!(custom("org.example.VectorType(x, 3)").as_vector(), None);
    assert_eq!(
        parse(MAP_OF_UDT),
        CqlType::Map(
            Box::new(CqlType::Varchar),
            Box::new(CqlType::Udt {
                keyspace: "ks".into(),
                name: "udt".into(),
                fields: vec![
                    ("x".into(), CqlType::Int),
                    ("y".into(), CqlType::List(Box::new(CqlType::Uuid)))
                ],
            })
        )
    );
    assert!(CqlType::parse(b"\0\x09\0").is_err(), "nothing may follow");
    assert!(CqlType::parse(b"\0\x16").is_err());
}

#[test]
fn types_nested_without_end_are_refused() {
    let nested = |depth: usize| [b"\0\x20".repeat(depth), INT.to_vec()].concat();
    assert!(CqlType::parse(&nested(MAX_TYPE_DEPTH - 1)).is_ok());
    let too_deep = nested(200_000);
    assert!(CqlType::parse(&too_deep).is_err());
    let columns = [spec("t", "a", &too_deep)];
    let mut message = Vec::new();
    encode_rows_start(V4, &MetadataOut::of_table(&columns), 0, &mut message);
    assert!(ResultBody::parse(V4, &message).is_err());
}
