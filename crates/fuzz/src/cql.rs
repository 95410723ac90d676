//! The native protocol and CQL text: what any client may send before anybody knows who it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use afterglow_cql::error::ProtocolError;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{
    Compression, Decoder, Encoder, Envelope, Flags, FrameError, HEADER_LEN, Header, MAX_PAYLOAD,
    Opcode, SegmentHeader, Version, crc32,
};
use afterglow_cql::message::{self, Execute, QueryParams, Request, Startup, ValuesBuilder};
use afterglow_cql::negotiate::{self, Stage};
use afterglow_cql::normal::normalise;
use afterglow_cql::plan::{
    Column, MAX_BOUND_KEYS, MAX_KEY, NamedKeys, Plan, RowKey, SchemaView, TableSchema,
    Target as WriteTarget, analyse,
};
use afterglow_cql::response::{self, Response};
use afterglow_cql::statement::{Marker, parse, parse_bytes};

use crate::target::Target;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "cql_frames", run: frames, seeds: frame_seeds, mutations: 3_000 },
    Target { name: "cql_session", run: session, seeds: session_seeds, mutations: 3_000 },
    Target { name: "cql_statement", run: statement, seeds: statement_seeds, mutations: 3_000 },
    Target { name: "cql_bound_keys", run: bound_keys, seeds: bound_seeds, mutations: 3_000 },
];

/// Longest envelope that the decoders here take.
const LONGEST: usize = 4096;
/// What a decoder may hold besides what was fed last: an envelope, and a segment of which a byte is
/// missing.
const HELD: usize = LONGEST + MAX_PAYLOAD + 64;

/// Decoders that ask hold envelopes that take more than that.
const ASKED_ABOVE: usize = 600;

/// Admits every other envelope that a decoder holds, and refuses the others. A held envelope takes
/// more than the free allowance, and no more than the longest envelope packed and unpacked. Hardly
/// any of it is in memory: its beginning, and what was fed last.
fn decide(decoder: &mut Decoder, held: usize, fed: usize) {
    assert!(held > ASKED_ABOVE && held <= 2 * LONGEST, "{held} bytes are asked for");
    let kept = decoder.buffered();
    assert!(
        kept <= fed + 2 * MAX_PAYLOAD + 64,
        "{kept} bytes are kept of what is asked for, {fed} were fed"
    );
    assert!(matches!(decoder.next_envelope(), Ok(None)), "nothing comes before it is decided");
    if held.is_multiple_of(2) {
        decoder.admit()
    } else {
        decoder.refuse(ProtocolError::overloaded("no room"))
    }
    assert_eq!(decoder.held(), None, "it is decided");
}

/// Everything that a decoder makes of bytes that come in pieces of that size, until an error that
/// ends the connection. After each piece no more is held than may be. In segments all is known of
/// an envelope when it is held, so it is held once.
fn decoded(
    mut decoder: Decoder,
    segments: bool,
    bytes: &[u8],
    piece: usize,
) -> Vec<Result<Envelope, FrameError>> {
    let mut found = Vec::new();
    // What the envelope takes that was admitted and has not come.
    let mut admitted = None;
    for part in bytes.chunks(piece.max(1)) {
        decoder.feed(part);
        loop {
            match decoder.next_envelope() {
                Ok(None) => match decoder.held() {
                    Some(held) => {
                        assert!(
                            !segments || admitted.is_none(),
                            "{held} bytes are asked for again"
                        );
                        decide(&mut decoder, held, part.len());
                        admitted = decoder.is_receiving().then_some(held);
                    }
                    None => break,
                },
                Ok(Some(envelope)) => {
                    assert!(envelope.wire_len() <= LONGEST, "an envelope longer than allowed");
                    admitted = admitted.filter(|takes| *takes != envelope.wire_len());
                    found.push(Ok(envelope));
                }
                Err(error) => {
                    let fatal = error.fatal;
                    found.push(Err(error));
                    if fatal {
                        return found;
                    }
                }
            }
        }
        assert!(decoder.buffered() <= HELD, "{} bytes are held", decoder.buffered());
    }
    found
}

/// The first byte chooses direction, segments, compression and whether large envelopes are held.
/// The second is the size of the pieces. One connection's bytes mean the same however they are cut.
/// The exception is an unsupported version, whose length nobody knows.
fn frames(data: &[u8]) {
    let [how, piece, bytes @ ..] = data else { return };
    let decoder = || {
        let mut decoder =
            if how & 1 == 0 { Decoder::for_requests() } else { Decoder::for_responses() };
        decoder = decoder.with_max_envelope(LONGEST);
        if how & 2 != 0 {
            decoder.pin_version(Version::V5);
            decoder.switch_to_segments();
        }
        if how & 4 != 0 {
            decoder.set_compression(Compression::Lz4);
        }
        if how & 8 != 0 {
            decoder.hold_above(ASKED_ABOVE);
        }
        decoder
    };
    let segments = how & 2 != 0;
    let whole = decoded(decoder(), segments, bytes, bytes.len());
    let guessed = |error: &FrameError| error.to_string().contains("version");
    if segments || !whole.iter().flat_map(|one| one.as_ref().err()).any(guessed) {
        assert_eq!(
            decoded(decoder(), segments, bytes, usize::from(*piece)),
            whole,
            "cut in another way"
        );
    }
    for envelope in whole.into_iter().flatten() {
        if how & 1 == 0 {
            request(&envelope);
        } else if let Ok((_, message)) = response::split(&envelope.header, &envelope.body) {
            let _ = Response::parse(&envelope.header, message);
        }
    }
}

/// A request that can be parsed, and what a front end asks of it.
fn request(envelope: &Envelope) {
    let Ok((_, request)) = message::parse(&envelope.header, &envelope.body) else { return };
    let text = match request {
        Request::Query(query) => Some(query.text),
        Request::Prepare(prepare) => Some(prepare.text),
        Request::Batch(batch) => {
            assert_eq!(
                batch.statements().count(),
                batch.len(),
                "a statement of a checked batch is missing"
            );
            None
        }
        _ => None,
    };
    if let Some(text) = text {
        statement(text.as_bytes());
    }
}

fn encoded(version: Version, opcode: Opcode, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.push_with(&Header::new(version, 7, opcode), write);
    encoder.take()
}

fn query(version: Version, text: &str) -> Vec<u8> {
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(&[0, 0, 0, 1]));
    values.push(Value::Unset);
    let params =
        QueryParams { values: values.view(), ..QueryParams::new(message::Consistency::One) };
    encoded(version, Opcode::Query, |out| message::Query { text, params }.encode(version, out))
}

fn in_segments(envelope: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.switch_to_segments();
    encoder.push_encoded(envelope);
    encoder.take()
}

/// A segment with a part of an envelope.
fn part(payload: &[u8]) -> Vec<u8> {
    let header = SegmentHeader { payload_len: payload.len(), self_contained: false };
    [&header.encode()[..], payload, &crc32(payload).to_le_bytes()].concat()
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for version in [Version::V3, Version::V4, Version::V5] {
        let text = query(version, STATEMENTS[0]);
        let execute = encoded(version, Opcode::Execute, |out| {
            let result_metadata_id = version.has_segments().then_some(&[3; 16][..]);
            let params = QueryParams::new(message::Consistency::LocalQuorum);
            Execute { id: &[9; 16], result_metadata_id, params }.encode(version, out);
        });
        let answer = encoded(version, Opcode::Result, response::encode_void);
        for (how, bytes) in [(0, [text, execute].concat()), (1, answer)] {
            let segments = if version.has_segments() { in_segments(&bytes) } else { bytes.clone() };
            let how = how | u8::from(version.has_segments()) << 1;
            seeds.push([&[how & 1, 3], &bytes[..]].concat());
            seeds.push([&[how, 11], &segments[..]].concat());
        }
    }
    seeds.extend(large_seeds());
    seeds
}

/// Large envelopes among small ones in v4 and v5, compressed and not, for decoders that hold them.
/// Also announcements of more bytes than are allowed.
fn large_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (version, compressed) in
        [(Version::V4, false), (Version::V4, true), (Version::V5, false), (Version::V5, true)]
    {
        let mut encoder = Encoder::new();
        if compressed {
            encoder.set_compression(Compression::Lz4);
        }
        if version.has_segments() {
            encoder.switch_to_segments();
        }
        for (stream, length) in [10, 700, 701, 3_000, 0, 4_000, 100_000, 5].into_iter().enumerate()
        {
            encoder.push(&Header::new(version, stream as i16, Opcode::Query), &vec![7; length]);
        }
        let how = 8 | u8::from(compressed) << 2 | u8::from(version.has_segments()) << 1;
        let wire = encoder.take();
        seeds.extend([1, 9, 255].map(|piece| [&[how, piece], &wire[..]].concat()));
    }
    for length in [3_000, 3_001] {
        let large = encoded(Version::V5, Opcode::Query, |out| out.resize(out.len() + length, 7));
        let small = in_segments(&encoded(Version::V5, Opcode::Options, |_| ()));
        let parts: Vec<_> = large.chunks(800).map(part).collect();
        seeds.extend([1, 255].map(|piece| [&[8 | 2, piece], &parts.join(&small[..])[..]].concat()));
    }
    let mut announced = encoded(Version::V4, Opcode::Query, |_| ());
    announced[5..HEADER_LEN].copy_from_slice(&(250_i32 << 20).to_be_bytes());
    seeds.push([&[8, 20], &announced[..], &[7; 500]].concat());
    seeds.push([&[8 | 2, 20], &in_segments(&announced)[..]].concat());
    seeds
}

/// A client's whole connection as the front end has it. Bytes are read in the front end's order.
/// Every envelope gets exactly one answer on its stream, and the client can read all of them.
fn session(data: &[u8]) {
    let [piece, bytes @ ..] = data else { return };
    let mut decoder = Decoder::for_requests().with_max_envelope(LONGEST);
    decoder.hold_above(ASKED_ABOVE);
    let mut answers = Encoder::new();
    let mut client = Decoder::for_responses();
    let mut stage = Stage::Initial;
    let mut waiting: HashMap<i16, i64> = HashMap::new();
    for part in bytes.chunks(usize::from(*piece).max(1)) {
        decoder.feed(part);
        loop {
            let envelope = match decoder.next_envelope() {
                Ok(None) => match decoder.held() {
                    Some(held) => {
                        decide(&mut decoder, held, part.len());
                        continue;
                    }
                    None => break,
                },
                Ok(Some(envelope)) => envelope,
                Err(error) => {
                    if error.fatal {
                        return;
                    }
                    // Refusals stand outside of streams that a client may be waiting on for sure.
                    continue;
                }
            };
            let header = envelope.header;
            *waiting.entry(header.stream).or_default() += 1;
            let started = startup(stage, &envelope);
            answers.push(
                &Header {
                    flags: Flags::NONE,
                    ..Header::new(header.version, header.stream, Opcode::Ready)
                },
                b"",
            );
            read_all(&mut client, &mut answers, &mut waiting);
            if let Some(compression) = started {
                stage = Stage::Ready;
                decoder.pin_version(header.version);
                if let Some(compression) = compression {
                    decoder.set_compression(compression);
                    answers.set_compression(compression);
                    client.set_compression(compression);
                }
                if header.version.has_segments() {
                    decoder.switch_to_segments();
                    answers.switch_to_segments();
                    client.switch_to_segments();
                }
            }
        }
        assert!(decoder.buffered() <= HELD, "{} bytes are held", decoder.buffered());
    }
    assert!(
        waiting.values().all(|count| *count == 0),
        "streams without an answer, or with two: {waiting:?}"
    );
    assert_eq!(client.buffered(), 0, "the end of an answer is missing");
}

/// Looks at a request as the front end does; what a start that is allowed agrees on.
fn startup(stage: Stage, envelope: &Envelope) -> Option<Option<Compression>> {
    let header = &envelope.header;
    match (stage.check(header.opcode), message::parse(header, &envelope.body)) {
        (Ok(()), Ok((_, Request::Startup(startup)))) => {
            negotiate::check_startup(&startup, header.version).ok()
        }
        (Ok(()), Ok(_)) => {
            request(envelope);
            None
        }
        _ => None,
    }
}

/// The client's side: takes every answer off the list of what it waits for.
fn read_all(client: &mut Decoder, answers: &mut Encoder, waiting: &mut HashMap<i16, i64>) {
    client.feed(&answers.take());
    while let Some(answer) = client.next_envelope().expect("answers that a client can read") {
        *waiting.entry(answer.header.stream).or_default() -= 1;
    }
}

fn session_seeds() -> Vec<Vec<u8>> {
    let seed = |(version, compression): (Version, Option<&str>)| {
        let options: Vec<(&str, &str)> = [("CQL_VERSION", "3.0.0")]
            .into_iter()
            .chain(compression.map(|name| ("COMPRESSION", name)))
            .collect();
        let startup = encoded(version, Opcode::Startup, |out| Startup::encode(&options, out));
        let mut rest = Encoder::new();
        if compression.is_some() {
            rest.set_compression(Compression::Lz4);
        }
        if version.has_segments() {
            rest.switch_to_segments();
        }
        for (stream, text) in STATEMENTS.iter().enumerate() {
            let body = query(version, text)[HEADER_LEN..].to_vec();
            rest.push(&Header::new(version, stream as i16, Opcode::Query), &body);
        }
        [vec![200], startup, rest.take()].concat()
    };
    [
        (Version::V3, None),
        (Version::V4, Some("lz4")),
        (Version::V5, None),
        (Version::V5, Some("lz4")),
    ]
    .map(seed)
    .to_vec()
}

/// One table of every kind of key that matters to planning.
struct Schema(Arc<TableSchema>);

impl SchemaView for Schema {
    fn table(&self, keyspace: &str, name: &str) -> Option<Arc<TableSchema>> {
        (keyspace == "ks" && name == "t").then(|| self.0.clone())
    }
}

fn schema() -> Schema {
    let mut table = TableSchema::new("ks".into(), "t".into(), Default::default());
    let columns =
        |all: &[(&str, &str)]| all.iter().map(|(name, kind)| Column::new(*name, *kind)).collect();
    table.partition_key = columns(&[("k", "int"), ("p", "text")]);
    table.clustering = columns(&[("c", "timestamp")]);
    table.statics = columns(&[("s", "text")]);
    table.regulars = columns(&[("m", "map<text, int>"), ("v", "int"), ("w", "blob")]);
    Schema(Arc::new(table))
}

/// Any text gets a plan, the same one each time and the same as its normal form. It takes memory in
/// proportion to the text: 64 keys for the shortest lists that name so many. A plan to read
/// from the cache finds a key or an error in any values. A key is never longer than the longest
/// allowed.
fn statement(data: &[u8]) {
    let schema = schema();
    let parsed = parse_bytes(data);
    let plan = analyse(&parsed, &schema, Some("ks"));
    assert!(!plan.explain(&schema).is_empty());
    if let Ok(text) = std::str::from_utf8(data)
        && let Some(normal) = normalise(text)
    {
        assert_eq!(analyse(&parse(&normal), &schema, Some("ks")), plan, "of {normal:?}");
    }
    assert!(plan.weight() <= 4096 + 512 * data.len(), "{} bytes", plan.weight());
    if let Plan::Write(write) = &plan {
        let distinct: HashSet<&WriteTarget> = write.targets.iter().collect();
        assert_eq!(distinct.len(), write.targets.len(), "what is touched is there twice");
    }
    let Plan::CachedRead(read) = plan else { return };
    for take in [0, 4, data.len()] {
        let value = &data[..take.min(data.len())];
        let mut key = RowKey::new();
        if read.key.bind(|_| Some(value), &mut key).is_ok() {
            assert!(key.engine_key().len() <= MAX_KEY, "a key longer than keys may be");
        }
    }
}

/// The first byte chooses a statement, the rest is bound to each of its markers: a list or a
/// document. It names no more keys than allowed, none that is longer than what was bound, and none
/// where it is not whole.
fn bound_keys(data: &[u8]) {
    let [which, value @ ..] = data else { return };
    let schema = schema();
    let text = LISTS[usize::from(*which) % LISTS.len()];
    let Plan::Write(plan) = analyse(&parse(text), &schema, Some("ks")) else { unreachable!() };
    for target in &plan.targets {
        let WriteTarget::Bound(keys) = target else { continue };
        let bound = |_: &Marker| Some(value);
        let count = match keys.resolve(&bound) {
            NamedKeys::Rows(rows) => {
                let mut key = RowKey::new();
                for row in &rows {
                    _ = row.bind(bound, &mut key);
                    assert!(key.engine_key().len() <= MAX_KEY, "a key longer than keys may be");
                }
                rows.len()
            }
            NamedKeys::Partitions(partitions) => {
                let mut key = Vec::new();
                partitions.iter().for_each(|one| _ = one.partition_key(bound, &mut key));
                partitions.len()
            }
            NamedKeys::Table => continue,
        };
        assert!(count <= MAX_BOUND_KEYS, "{count} keys of {text}");
        if let [longer @ .., _] = value
            && !text.contains("JSON")
        {
            let cut = keys.resolve(&|_: &Marker| Some(longer));
            let some = matches!(cut, NamedKeys::Rows(_));
            assert!(!some, "a list and its beginning are both whole: {text}");
        }
    }
}

const LISTS: &[&str] = &[
    "DELETE FROM t WHERE k = 1 AND p IN ? AND c = 1",
    "UPDATE t SET v = 1 WHERE k IN (1, 2) AND p IN ? AND c IN ?",
    "DELETE FROM t WHERE k IN ? AND p = 'x' AND c = 1",
    "INSERT INTO t JSON ?",
];

fn bound_seeds() -> Vec<Vec<u8>> {
    let list = |elements: &[&[u8]]| {
        let mut bytes = (elements.len() as i32).to_be_bytes().to_vec();
        for element in elements {
            bytes.extend((element.len() as i32).to_be_bytes());
            bytes.extend(*element);
        }
        bytes
    };
    let (texts, times) = (list(&[b"x", b"", b"it's"]), list(&[&[0; 8], &[7; 8]]));
    let document = br#"{"k": -1, "p": "\u00e9", "\"c\"": "1970-01-01T00:00:00Z", "m": {"a": [1]}}"#;
    let numbers = list(&[&[0, 0, 0, 1][..]; 20]);
    let values = [(0, &texts[..]), (1, &times), (2, &numbers), (3, document)];
    values.map(|(which, value)| [&[which], value].concat()).to_vec()
}

const STATEMENTS: &[&str] = &[
    "SELECT v, w AS \"W\" FROM ks.t WHERE k = ? AND p = 'it''s' AND c = '2020-01-01 00:00+0000' LIMIT 1",
    "SELECT * FROM t WHERE k = :a AND p = :b AND c = 1 -- end\n",
    "SELECT JSON DISTINCT k, p, s FROM ks.t WHERE token(k, p) > -1 PER PARTITION LIMIT 2 ALLOW FILTERING",
    "INSERT INTO ks.t (k, p, c, m) VALUES (1, $$x$$, 2, {'a': 1}) IF NOT EXISTS USING TTL 5 AND TIMESTAMP ?",
    "UPDATE t USING TTL ? SET m['a'] = 1, m = m + {'b': 2}, v += 3 WHERE k = 1 AND p = 'x' AND c IN (1, 2) IF v = 1",
    "DELETE m['a'], v FROM ks.t WHERE k = 1 AND p = 'x' AND (c) >= (1)",
    "BEGIN UNLOGGED BATCH USING TIMESTAMP 1 DELETE FROM t WHERE k = 1 AND p = 'x'; TRUNCATE t; APPLY BATCH",
    "CREATE TABLE IF NOT EXISTS ks.u (k int PRIMARY KEY, v frozen<map<text, tuple<int, uuid>>>) WITH comment = 'x'",
    "ALTER TABLE ks.t ADD x vector<float, 3>",
    "USE \"Ks\"",
    "GRANT SELECT ON ks.t TO r",
    "SELECT key, count(*) FROM system.local WHERE key = 'local'",
    "INSERT INTO ks.t JSON '{\"k\": 1, \"p\": \"x\", \"c\": \"1970-01-01T00:00:00Z\"}' DEFAULT UNSET",
    "DELETE FROM t WHERE k IN :k AND p = :p AND c IN ? IF EXISTS",
];

fn statement_seeds() -> Vec<Vec<u8>> {
    STATEMENTS.iter().map(|text| text.as_bytes().to_vec()).collect()
}
