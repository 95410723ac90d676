//! Requests: bytes of an independent driver, round trips, and what servers refuse.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorCode;
use crate::frame::notation::Value;
use crate::frame::{Decoder, Version};

/// A whole envelope written by the Python driver 3.30, as its body.
fn unhex(envelope: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    envelope.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Decodes a golden envelope, hands its request to `check`, and sees that `encode` gives the same
/// body.
fn golden(envelope: &str, check: impl Fn(Version, Request<'_>, &mut Vec<u8>)) {
    let mut decoder = Decoder::for_requests();
    decoder.feed(&unhex(envelope));
    let received = decoder.next_envelope().unwrap().expect("a whole envelope");
    assert_eq!(received.header.stream, 5);
    let (extras, request) = parse(&received.header, &received.body).unwrap();
    assert!(extras.is_plain());
    let mut again = Vec::new();
    check(received.header.version, request, &mut again);
    assert_eq!(again, received.body, "encoded again");
}

#[test]
fn startup_register_and_auth_response_of_a_driver() {
    for version in ["04", "05"] {
        golden(
            &format!(
                "{version}00000501000000260002000b4452495645525f4e414d45000178000b43514c5f56455253494f4e0005332e342e35"
            ),
            |_, request, again| {
                let Request::Startup(startup) = request else { panic!("{request:?}") };
                let options: Vec<_> = startup.options().iter().collect();
                assert_eq!(options, [("DRIVER_NAME", "x"), ("CQL_VERSION", "3.4.5")]);
                Startup::encode(&options, again);
            },
        );
        golden(
            &format!(
                "{version}0000050b000000200002000d5354415455535f4348414e4745000d534348454d415f4348414e4745"
            ),
            |_, request, again| {
                let Request::Register(register) = request else { panic!("{request:?}") };
                assert!(register.asks_for("STATUS_CHANGE") && register.asks_for("SCHEMA_CHANGE"));
                assert!(!register.asks_for("TOPOLOGY_CHANGE"));
                Register::encode(&register.events().iter().collect::<Vec<_>>(), again);
            },
        );
        golden(&format!("{version}0000050f000000080000000400750070"), |_, request, again| {
            let Request::AuthResponse(auth) = request else { panic!("{request:?}") };
            assert_eq!(auth.token, Some(AuthResponse::plain("u", "p").as_slice()));
            auth.encode(again);
        });
        golden(&format!("{version}0000050500000000"), |_, request, _| {
            assert!(matches!(request, Request::Options));
        });
    }
}

#[test]
fn queries_of_a_driver() {
    for envelope in [
        "0400000507000000360000001b53454c45435420612046524f4d2074205748455245206b203d203f00063c00001388000000020102000900007048860ddf79",
        "0500000507000000390000001b53454c45435420612046524f4d2074205748455245206b203d203f00060000003c00001388000000020102000900007048860ddf79",
    ] {
        golden(envelope, |version, request, again| {
            let Request::Query(query) = request else { panic!("{request:?}") };
            assert_eq!(query.text, "SELECT a FROM t WHERE k = ?");
            let params = query.params;
            assert_eq!(params.consistency, Consistency::LocalQuorum);
            assert_eq!(params.serial_consistency, Some(Consistency::LocalSerial));
            assert_eq!((params.page_size, params.paging_state), (Some(5000), Some(&[1, 2][..])));
            assert_eq!(params.timestamp, Some(123_456_789_012_345));
            assert!(params.values.is_empty() && !params.skip_metadata && params.keyspace.is_none());
            query.encode(version, again);
        });
    }
    golden("05000005070000000f000000015300010000008000026b73", |version, request, again| {
        let Request::Query(query) = request else { panic!("{request:?}") };
        assert_eq!(query.params.keyspace, Some("ks"));
        query.encode(version, again);
    });
}

#[test]
fn prepares_of_a_driver() {
    for (envelope, keyspace) in [
        ("04000005090000000c0000000853454c4543542031", None),
        ("0500000509000000140000000853454c45435420310000000100026b73", Some("ks")),
    ] {
        golden(envelope, |version, request, again| {
            let Request::Prepare(prepare) = request else { panic!("{request:?}") };
            assert_eq!(prepare, Prepare { text: "SELECT 1", keyspace });
            prepare.encode(version, again);
        });
    }
}

#[test]
fn executes_of_a_driver() {
    for envelope in [
        "040000050a00000026000310203000012500030000000400000001ffffffff00000000000000640000000000000007",
        "050000050a0000002d00031020300002778800010000002500030000000400000001ffffffff00000000000000640000000000000007",
    ] {
        golden(envelope, |version, request, again| {
            let Request::Execute(execute) = request else { panic!("{request:?}") };
            assert_eq!(execute.id, [0x10, 0x20, 0x30]);
            assert_eq!(
                execute.result_metadata_id,
                (version == Version::V5).then_some(&[0x77, 0x88][..])
            );
            let params = execute.params;
            assert_eq!(params.consistency, Consistency::One);
            assert!(!params.skip_metadata);
            assert_eq!((params.page_size, params.timestamp), (Some(100), Some(7)));
            let values: Vec<_> = params.values.iter().collect();
            let expected = [Value::Bytes(&[0, 0, 0, 1]), Value::Null, Value::Bytes(&[])];
            assert_eq!(values, expected.map(|v| (None, v)));
            assert_eq!(params.values.get(1), Some(Value::Null));
            assert_eq!(params.values.get(3), None);
            execute.encode(version, again);
        });
    }
    for envelope in [
        "040000050a0000000e00031020300004010001fffffffe",
        "050000050a000000150003102030000277880004000000010001fffffffe",
    ] {
        golden(envelope, |version, request, again| {
            let Request::Execute(execute) = request else { panic!("{request:?}") };
            assert_eq!(execute.params.values.get(0), Some(Value::Unset));
            execute.encode(version, again);
        });
    }
}

#[test]
fn batches_of_a_driver() {
    for envelope in [
        "040000050d00000033010002000000000644454c4554450001000000016101000210200002ffffffff0000000262630002300008000000000000002a",
        "050000050d00000036010002000000000644454c4554450001000000016101000210200002ffffffff0000000262630002000000300008000000000000002a",
    ] {
        golden(envelope, |version, request, again| {
            let Request::Batch(batch) = request else { panic!("{request:?}") };
            assert_eq!((batch.kind, batch.len()), (BatchKind::Unlogged, 2));
            let statements: Vec<_> = batch.statements().collect();
            assert_eq!(statements[0].statement, StatementRef::Text("DELETE"));
            assert_eq!(statements[0].values.get(0), Some(Value::Bytes(b"a")));
            assert_eq!(statements[1].statement, StatementRef::Prepared(&[0x10, 0x20]));
            assert_eq!(statements[1].values.get(0), Some(Value::Null));
            assert_eq!(statements[1].values.get(1), Some(Value::Bytes(b"bc")));
            assert_eq!(batch.params.consistency, Consistency::Two);
            assert_eq!(batch.params.timestamp, Some(42));
            encode_batch(version, batch.kind, &statements, &batch.params, again);
        });
    }
}

#[test]
fn named_values_are_found_by_name_in_any_order() {
    let mut values = ValuesBuilder::named();
    values
        .push_named("b", Value::Unset)
        .push_named("a", Value::Bytes(b"1"))
        .push_named("a", Value::Null);
    let query = Query {
        text: "SELECT v FROM t WHERE a = :a AND b = :b",
        params: QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) },
    };
    for version in [Version::V4, Version::V5] {
        let mut body = Vec::new();
        query.encode(version, &mut body);
        let values = Query::parse(version, &body).unwrap().params.values;
        assert!(values.are_named());
        assert_eq!(values.by_name("a"), Some(Value::Bytes(b"1")), "the first of a name counts");
        assert_eq!(values.by_name("b"), Some(Value::Unset));
        assert_eq!(values.by_name("A"), None);
        assert_eq!(values.iter().map(|(n, _)| n.unwrap()).collect::<Vec<_>>(), ["b", "a", "a"]);
    }
}

#[test]
fn keyspace_and_now_travel_in_v5_only() {
    let params = QueryParams {
        keyspace: Some("ks"),
        now_in_seconds: Some(-5),
        ..QueryParams::new(Consistency::LocalOne)
    };
    let query = Query { text: "S", params };
    let mut body = Vec::new();
    query.encode(Version::V5, &mut body);
    assert_eq!(body, b"\0\0\0\x01S\0\x0a\0\0\x01\x80\0\x02ks\xff\xff\xff\xfb");
    let parsed = Query::parse(Version::V5, &body).unwrap().params;
    assert_eq!((parsed.keyspace, parsed.now_in_seconds), (Some("ks"), Some(-5)));
    body.clear();
    query.encode(Version::V4, &mut body);
    assert_eq!(body, b"\0\0\0\x01S\0\x0a\0");
}

#[test]
fn a_custom_payload_precedes_the_message() {
    let mut header = Header::new(Version::V4, 1, Opcode::Query);
    header.flags = Flags::CUSTOM_PAYLOAD.with(Flags::TRACING);
    let body = b"\0\x01\0\x01k\0\0\0\x01v\0\0\0\x01S\0\x01\0";
    let (extras, request) = parse(&header, body).unwrap();
    assert!(extras.tracing && !extras.is_plain());
    let payload: Vec<_> = extras.custom_payload.unwrap().iter().collect();
    assert_eq!(payload, [("k", Some(&b"v"[..]))]);
    assert!(matches!(request, Request::Query(Query { text: "S", .. })));
}

/// The text a server answers a malformed request with.
fn refusal(version: Version, opcode: Opcode, body: &[u8]) -> String {
    let error = parse(&Header::new(version, 0, opcode), body).map(drop).unwrap_err();
    assert_eq!(error.code, ErrorCode::Protocol);
    error.message.into_owned()
}

#[test]
fn refusals_have_the_servers_texts() {
    let v4 = Version::V4;
    assert_eq!(refusal(v4, Opcode::Register, b"\0\x01\0\x03FOO"), "Invalid value 'FOO' for Type");
    assert_eq!(refusal(v4, Opcode::Batch, b"\x03\0\0"), "Invalid BATCH message type 3");
    assert_eq!(
        refusal(v4, Opcode::Batch, b"\0\0\x01\x02"),
        "Invalid query kind in BATCH messages. Must be 0 or 1 but got 2"
    );
    assert_eq!(
        refusal(v4, Opcode::Query, b"\0\0\0\0\0\x63\0"),
        "Unknown code 99 for a consistency level"
    );
    assert_eq!(
        refusal(v4, Opcode::Query, b"\0\0\0\0\0\x01\x20\x80\0\0\0\0\0\0\0"),
        "Out of bound timestamp, must be in [-9223372036854775807, 9223372036854775807] (got -9223372036854775808)"
    );
    assert_eq!(
        refusal(v4, Opcode::Query, b"\0\0\0\0\0\x01\x01\0\x01\xff\xff\xff\xfd"),
        "Invalid ByteBuf length -3"
    );
    assert_eq!(
        refusal(v4, Opcode::Prepare, b"\0\0\0\x02S"),
        "Not enough bytes to read an UTF8 serialized string preceded by its 4 bytes length"
    );
    assert_eq!(refusal(v4, Opcode::Prepare, b"\0\0\0\x01\xff"), "Cannot decode string as UTF8");
    assert_eq!(
        refusal(v4, Opcode::Prepare, b"\xff\xff\xff\xff"),
        "Not enough bytes to read an UTF8 serialized string preceded by its 4 bytes length"
    );
}

#[test]
fn flags_nobody_knows_are_ignored() {
    let body = b"\x00\x00\x00\x01S\x00\x01\xf0\x00\x00\x00";
    let query = Query::parse(Version::V5, body).unwrap();
    assert_eq!(query.params.flags(), QueryFlags::default());
}

#[test]
fn every_truncation_of_a_request_is_refused() {
    let mut body = Vec::new();
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(b"value")).push(Value::Null);
    let params = QueryParams {
        values: values.view(),
        skip_metadata: true,
        page_size: Some(1),
        paging_state: Some(b"state"),
        serial_consistency: Some(Consistency::Serial),
        timestamp: Some(1),
        keyspace: Some("ks"),
        now_in_seconds: Some(1),
        ..QueryParams::new(Consistency::One)
    };
    let execute = Execute { id: b"id", result_metadata_id: Some(b"metadata"), params };
    execute.encode(Version::V5, &mut body);
    assert!(Execute::parse(Version::V5, &body).is_ok());
    for len in 0..body.len() {
        assert!(Execute::parse(Version::V5, &body[..len]).is_err(), "cut to {len}");
    }
}

#[derive(Debug, Clone)]
struct Params {
    consistency: Consistency,
    skip_metadata: bool,
    values: Vec<(String, Option<Option<Vec<u8>>>)>,
    named: bool,
    page_size: Option<i32>,
    paging_state: Option<Vec<u8>>,
    serial: Option<Consistency>,
    timestamp: Option<i64>,
    keyspace: Option<String>,
    now: Option<i32>,
}

fn as_value(value: &Option<Option<Vec<u8>>>) -> Value<'_> {
    match value {
        None => Value::Unset,
        Some(None) => Value::Null,
        Some(Some(bytes)) => Value::Bytes(bytes),
    }
}

impl Params {
    fn values(&self) -> ValuesBuilder {
        let mut builder =
            if self.named { ValuesBuilder::named() } else { ValuesBuilder::positional() };
        for (name, value) in &self.values {
            if self.named {
                builder.push_named(name, as_value(value));
            } else {
                builder.push(as_value(value));
            }
        }
        builder
    }

    fn with<'a>(&'a self, values: &'a ValuesBuilder) -> QueryParams<'a> {
        QueryParams {
            consistency: self.consistency,
            skip_metadata: self.skip_metadata,
            values: values.view(),
            page_size: self.page_size,
            paging_state: self.paging_state.as_deref(),
            serial_consistency: self.serial,
            timestamp: self.timestamp,
            keyspace: self.keyspace.as_deref(),
            now_in_seconds: self.now,
        }
    }

    fn assert_same(&self, version: Version, parsed: &QueryParams<'_>) {
        let v5 = version == Version::V5;
        assert_eq!(parsed.consistency, self.consistency);
        assert_eq!(parsed.skip_metadata, self.skip_metadata);
        let named = |name| self.named.then_some(name);
        let received = |value| as_received(version, as_value(value));
        let expected: Vec<_> =
            self.values.iter().map(|(n, v)| (named(n.as_str()), received(v))).collect();
        assert_eq!(parsed.values.iter().collect::<Vec<_>>(), expected);
        assert_eq!(parsed.page_size, self.page_size);
        assert_eq!(parsed.paging_state, self.paging_state.as_deref());
        assert_eq!(parsed.serial_consistency, self.serial);
        assert_eq!(parsed.timestamp, self.timestamp);
        assert_eq!(parsed.keyspace, self.keyspace.as_deref().filter(|_| v5));
        assert_eq!(parsed.now_in_seconds, self.now.filter(|_| v5));
    }
}

/// What a server makes of a value: v3 knows no unset.
fn as_received(version: Version, value: Value<'_>) -> Value<'_> {
    if version < Version::V4 { Value::from(value.bytes()) } else { value }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé☃]{0,8}"
}

fn params() -> impl Strategy<Value = Params> {
    let level = || prop::sample::select(Consistency::ALL);
    let values = prop::collection::vec((text(), prop::option::of(prop::option::of(bytes()))), 0..5);
    let first = (level(), any::<bool>(), values, any::<bool>(), prop::option::of(1..=i32::MAX));
    let second = (
        prop::option::of(bytes()),
        prop::option::of(level()),
        prop::option::of(i64::MIN + 1..=i64::MAX),
        prop::option::of(text()),
        prop::option::of(any::<i32>()),
    );
    (first, second).prop_map(|(first, second)| {
        let (consistency, skip_metadata, values, named, page_size) = first;
        let (paging_state, serial, timestamp, keyspace, now) = second;
        Params {
            consistency,
            skip_metadata,
            values,
            named,
            page_size,
            paging_state,
            serial,
            timestamp,
            keyspace,
            now,
        }
    })
}

fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(Version::ALL)
}

/// Puts the level ALL there, and gives it.
fn at_all(body: &mut [u8], at: usize) -> Consistency {
    body[at..at + 2].copy_from_slice(&(Consistency::All as u16).to_be_bytes());
    Consistency::All
}

proptest! {
    #[test]
    fn queries_and_executes_survive_the_round_trip(
        version in version(),
        text in text(),
        id in bytes(),
        metadata_id in bytes(),
        params in params(),
    ) {
        let values = params.values();
        let mut body = Vec::new();
        Query { text: &text, params: params.with(&values) }.encode(version, &mut body);
        let query = Query::parse(version, &body).unwrap();
        prop_assert_eq!(query.text, &text);
        params.assert_same(version, &query.params);
        let at = query.consistency_at(&body);
        let raised = at_all(&mut body, at);
        prop_assert_eq!(Query::parse(version, &body).unwrap().params.consistency, raised);

        body.clear();
        let result_metadata_id = (version == Version::V5).then_some(metadata_id.as_slice());
        let execute = Execute { id: &id, result_metadata_id, params: params.with(&values) };
        execute.encode(version, &mut body);
        let execute = Execute::parse(version, &body).unwrap();
        prop_assert_eq!((execute.id, execute.result_metadata_id), (&id[..], result_metadata_id));
        params.assert_same(version, &execute.params);
        let at = execute.consistency_at(&body);
        let raised = at_all(&mut body, at);
        prop_assert_eq!(Execute::parse(version, &body).unwrap().params.consistency, raised);
    }

    #[test]
    fn batches_survive_the_round_trip(
        version in version(),
        kind in prop::sample::select(
            &[BatchKind::Logged, BatchKind::Unlogged, BatchKind::Counter][..]
        ),
        statements in prop::collection::vec(
            (prop::result::maybe_ok(text(), bytes()), params()),
            0..5,
        ),
        params in params(),
    ) {
        let builders: Vec<_> = statements
            .iter()
            .map(|(_, p)| Params { named: false, ..p.clone() }.values())
            .collect();
        let sent: Vec<_> = statements.iter().zip(&builders).map(|((s, _), values)| BatchStatement {
            statement: match s {
                Ok(text) => StatementRef::Text(text),
                Err(id) => StatementRef::Prepared(id),
            },
            values: values.view(),
        }).collect();
        let values = params.values();
        let mut body = Vec::new();
        encode_batch(version, kind, &sent, &params.with(&values), &mut body);
        let batch = Batch::parse(version, &body).unwrap();
        prop_assert_eq!((batch.kind, batch.len()), (kind, sent.len()));
        for (got, sent) in batch.statements().zip(&sent) {
            prop_assert_eq!(got.statement, sent.statement);
            let expected = sent.values.iter();
            let expected = expected.map(|(name, value)| (name, as_received(version, value)));
            prop_assert!(got.values.iter().eq(expected));
        }
        params.assert_same(version, &batch.params);
        let at = batch.consistency_at(&body);
        let raised = at_all(&mut body, at);
        prop_assert_eq!(Batch::parse(version, &body).unwrap().params.consistency, raised);
    }

    #[test]
    fn garbage_is_refused_at_worst(
        version in version(),
        opcode in prop::sample::select(Opcode::ALL),
        flags: u8,
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(
                prop_oneof![4 => Just(0u8), 4 => 0..6u8, 1 => any::<u8>()],
                0..200,
            ),
        ],
    ) {
        let mut header = Header::new(version, 0, opcode);
        header.flags = Flags(flags);
        if let Ok((extras, request)) = parse(&header, &body) {
            extras.custom_payload.into_iter().for_each(|p| assert_eq!(p.iter().count(), p.len()));
            match request {
                Request::Query(Query { params, .. }) | Request::Execute(Execute { params, .. }) => {
                    prop_assert_eq!(params.values.iter().count(), params.values.len());
                }
                Request::Batch(batch) => prop_assert_eq!(batch.statements().count(), batch.len()),
                _ => {}
            }
        }
    }

    #[test]
    fn damaged_requests_are_refused_at_worst(
        version in version(), params in params(), at: prop::sample::Index, byte: u8,
    ) {
        let values = params.values();
        let mut body = Vec::new();
        let query = Query { text: "SELECT", params: params.with(&values) };
        query.encode(version, &mut body);
        let at = at.index(body.len());
        body[at] = byte;
        if let Ok(query) = Query::parse(version, &body) {
            prop_assert_eq!(query.params.values.iter().count(), query.params.values.len());
        }
    }
}
