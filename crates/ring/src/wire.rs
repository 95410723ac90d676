//! Messages as bytes.
//!
//! ```text
//! format u8 = 2 | kind u8 | sender u64 | life u128 | incarnation u128 | ring u128 | version u64
//! | length u32 | body
//! ```
//!
//! A HANDOVER ends with the writes that are under way. The last holds of each shard are theirs: an
//! earlier version takes them for holds.
//!
//! What a newer version adds at the end of a body is skipped. A kind that is not known is an error
//! of its own, so that the receiver can skip the message.

use std::sync::Arc;

use crate::identity::{Identity, Incarnation, MemberId, PermitKey, RingId};
use crate::malformed::Malformed;
use crate::map::Map;
#[cfg(test)]
use crate::message::Detail;
use crate::message::{Answer, Envelope, Message, Outcome, RowKey, Scope, ShardState};
use crate::packed::{Reader, put_varint};
use crate::schema::SchemaVersion;

const FORMAT: u8 = 2;

impl Envelope {
    /// The bytes of a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = put_message(&mut body, &self.message);
        let mut out = vec![FORMAT, kind];
        out.extend(self.from.0.to_le_bytes());
        out.extend(self.life.0.to_le_bytes());
        out.extend(self.incarnation.0.to_le_bytes());
        out.extend(self.ring.0.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.u8()? != FORMAT {
            return Err(Malformed::Version);
        }
        let kind = reader.u8()?;
        let from = MemberId(reader.u64()?);
        let (life, incarnation) = (reader.incarnation()?, reader.incarnation()?);
        let (ring, version) = (RingId(reader.u128()?), reader.u64()?);
        let len = reader.u32()? as usize;
        let body = &mut Reader(reader.take(len)?);
        let message = if kind < BEGIN { about_map(kind, body)? } else { about_rows(kind, body)? };
        Ok(Self { from, life, incarnation, ring, version, message })
    }
}

const PING: u8 = 1;
const PONG: u8 = 2;
const MAP_WANTED: u8 = 3;
const MAP_IS: u8 = 4;
const HANDOVER_WANTED: u8 = 5;
const HANDOVER: u8 = 6;
const BEGIN: u8 = 16;
const GRANT: u8 = 17;
const DROP: u8 = 18;
const DROPPED: u8 = 19;
const REFUSED: u8 = 20;
const END: u8 = 21;
const GET: u8 = 22;
const FOUND: u8 = 23;
const PULL: u8 = 24;
const PULLED: u8 = 25;
const ENDED: u8 = 26;
const END_WANTED: u8 = 27;

fn put_message(out: &mut Vec<u8>, message: &Message) -> u8 {
    match message {
        Message::Ping { hash, sent } => numbers(out, PING, &[*hash, *sent]),
        Message::Pong { hash, sent, to, promise, clock, blind } => {
            out.extend(to.0.to_le_bytes());
            numbers(out, PONG, &[*hash, *sent]);
            out.push((*promise).into());
            put_varint(out, *clock);
            put_varint(out, *blind);
            PONG
        }
        Message::MapWanted => MAP_WANTED,
        Message::MapIs(map) => {
            out.extend(map.encode());
            MAP_IS
        }
        Message::HandoverWanted { shards } => {
            put_count(out, shards.len());
            shards.iter().for_each(|s| out.extend(s.to_le_bytes()));
            HANDOVER_WANTED
        }
        Message::Handover { to, version, schema, states } => {
            out.extend(to.0.to_le_bytes());
            put_varint(out, *version);
            out.extend(schema.0.to_le_bytes());
            put_count(out, states.len());
            states.iter().for_each(|state| put_state(out, state));
            states.iter().for_each(|state| put_writers(out, state));
            HANDOVER
        }
        _ => put_about_rows(out, message),
    }
}

fn put_about_rows(out: &mut Vec<u8>, message: &Message) -> u8 {
    match message {
        Message::Begin { number, attempt, scopes, detail } => {
            numbers(out, BEGIN, &[*number, (*attempt).into()]);
            put_scopes(out, scopes);
            put_bytes(out, detail);
            BEGIN
        }
        Message::Drop { number, attempt, scopes, detail, weak } => {
            numbers(out, DROP, &[*number, (*attempt).into(), (*weak).into()]);
            put_scopes(out, scopes);
            put_bytes(out, detail);
            DROP
        }
        Message::Grant { to, number, attempt, duration } => {
            out.extend(to.0.to_le_bytes());
            numbers(out, GRANT, &[*number, (*attempt).into(), *duration])
        }
        Message::Dropped { to, number, attempt } => {
            out.extend(to.0.to_le_bytes());
            numbers(out, DROPPED, &[*number, (*attempt).into()])
        }
        Message::Refused { to, number, attempt } => {
            out.extend(to.0.to_le_bytes());
            numbers(out, REFUSED, &[*number, (*attempt).into()])
        }
        Message::End { number, outcome } => numbers(out, END, &[*number, *outcome as u64]),
        Message::Ended { write, outcome } => {
            put_write(out, *write);
            numbers(out, ENDED, &[*outcome as u64])
        }
        Message::EndWanted { to, numbers } => {
            out.extend(to.0.to_le_bytes());
            put_count(out, numbers.len());
            numbers.iter().for_each(|number| put_varint(out, *number));
            END_WANTED
        }
        Message::Get { wanted } => {
            put_count(out, wanted.len());
            for (number, key) in wanted {
                put_varint(out, *number);
                out.extend(key.token.to_le_bytes());
                put_bytes(out, &key.bytes);
            }
            GET
        }
        Message::Found { to, number, answer } => {
            out.extend(to.0.to_le_bytes());
            put_varint(out, *number);
            match answer {
                Answer::Pass => out.push(0),
                Answer::NotOwner => out.push(1),
                Answer::Row(None) => out.push(2),
                Answer::Row(Some(row)) => {
                    out.push(3);
                    put_bytes(out, row);
                }
            }
            FOUND
        }
        _ => put_pull(out, message),
    }
}

fn put_pull(out: &mut Vec<u8>, message: &Message) -> u8 {
    match message {
        Message::Pull { number, key } => {
            put_varint(out, *number);
            out.extend(key.token.to_le_bytes());
            put_bytes(out, &key.bytes);
            PULL
        }
        Message::Pulled { to, number, cached } => {
            out.extend(to.0.to_le_bytes());
            put_varint(out, *number);
            match cached {
                None => out.push(0),
                Some((epoch, row)) => {
                    out.push(1 + u8::from(row.is_some()));
                    put_varint(out, *epoch);
                    row.iter().for_each(|row| put_bytes(out, row));
                }
            }
            PULLED
        }
        _ => unreachable!("the others are about the map"),
    }
}

fn numbers(out: &mut Vec<u8>, kind: u8, values: &[u64]) -> u8 {
    values.iter().for_each(|value| put_varint(out, *value));
    kind
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u32).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_scopes(out: &mut Vec<u8>, scopes: &[Scope]) {
    put_count(out, scopes.len());
    for scope in scopes {
        match scope {
            Scope::All => out.push(0),
            Scope::Token(token) => {
                out.push(1);
                out.extend(token.to_le_bytes());
            }
        }
    }
}

fn put_state(out: &mut Vec<u8>, state: &ShardState) {
    out.extend(state.shard.to_le_bytes());
    numbers(out, 0, &[state.epoch, state.weak]);
    put_count(out, state.holds.len() + state.writes.len());
    let writes = state.writes.iter().map(|(_, token, left)| (*token, *left));
    for (token, left) in state.holds.iter().copied().chain(writes) {
        out.extend(token.to_le_bytes());
        put_varint(out, left);
    }
    put_count(out, state.dirty.len());
    for (epoch, bits) in &state.dirty {
        put_varint(out, *epoch);
        put_count(out, bits.len());
        bits.iter().for_each(|word| out.extend(word.to_le_bytes()));
    }
}

/// Whose writes the last holds of the shard are.
fn put_writers(out: &mut Vec<u8>, state: &ShardState) {
    put_count(out, state.writes.len());
    state.writes.iter().for_each(|(write, ..)| put_write(out, *write));
}

fn put_write(out: &mut Vec<u8>, write: PermitKey) {
    out.extend(write.process.id.0.to_le_bytes());
    out.extend(write.process.incarnation.0.to_le_bytes());
    put_varint(out, write.number);
}

fn about_map(kind: u8, body: &mut Reader<'_>) -> Result<Message, Malformed> {
    Ok(match kind {
        PING => Message::Ping { hash: body.varint()?, sent: body.varint()? },
        PONG => {
            let to = body.incarnation()?;
            let (hash, sent) = (body.varint()?, body.varint()?);
            let promise = body.u8()? == 1;
            let clock = body.varint()?;
            // An earlier version does not say it.
            let blind = if body.0.is_empty() { 0 } else { body.varint()? };
            Message::Pong { hash, sent, to, promise, clock, blind }
        }
        MAP_WANTED => Message::MapWanted,
        MAP_IS => Message::MapIs(Arc::new(Map::decode(body.0)?)),
        HANDOVER_WANTED => {
            let shards = repeat(body, 2, Reader::u16)?;
            Message::HandoverWanted { shards }
        }
        HANDOVER => {
            let (to, version) = (body.incarnation()?, body.varint()?);
            let schema = SchemaVersion(body.incarnation()?.0);
            let mut states = repeat(body, 12, state)?;
            // An earlier version does not say it.
            let says = !body.0.is_empty();
            states.iter_mut().filter(|_| says).try_for_each(|state| writers(body, state))?;
            Message::Handover { to, version, schema, states }
        }
        _ => return Err(Malformed::Unknown),
    })
}

fn about_rows(kind: u8, body: &mut Reader<'_>) -> Result<Message, Malformed> {
    Ok(match kind {
        BEGIN => {
            let (number, attempt) = (body.varint()?, attempt(body)?);
            let scopes = repeat(body, 1, scope)?;
            Message::Begin { number, attempt, scopes, detail: bytes(body)?.into() }
        }
        DROP => {
            let (number, attempt) = (body.varint()?, attempt(body)?);
            let weak = body.varint()? != 0;
            let scopes = repeat(body, 1, scope)?;
            Message::Drop { number, attempt, weak, scopes, detail: bytes(body)?.into() }
        }
        GRANT => {
            let (to, number) = to_and_number(body)?;
            Message::Grant { to, number, attempt: attempt(body)?, duration: body.varint()? }
        }
        DROPPED => {
            let (to, number) = to_and_number(body)?;
            Message::Dropped { to, number, attempt: attempt(body)? }
        }
        REFUSED => {
            let (to, number) = to_and_number(body)?;
            Message::Refused { to, number, attempt: attempt(body)? }
        }
        END => Message::End { number: body.varint()?, outcome: outcome(body)? },
        END_WANTED => {
            let to = body.incarnation()?;
            Message::EndWanted { to, numbers: repeat(body, 1, Reader::varint)? }
        }
        ENDED => Message::Ended { write: write(body)?, outcome: outcome(body)? },
        GET => Message::Get {
            wanted: repeat(body, 13, |body| {
                let number = body.varint()?;
                let token = body.u64()? as i64;
                Ok((number, RowKey { token, bytes: bytes(body)? }))
            })?,
        },
        FOUND => {
            let (to, number) = to_and_number(body)?;
            let answer = match body.u8()? {
                0 => Answer::Pass,
                1 => Answer::NotOwner,
                2 => Answer::Row(None),
                3 => Answer::Row(Some(bytes(body)?)),
                _ => return Err(Malformed::Unknown),
            };
            Message::Found { to, number, answer }
        }
        _ => about_pulls(kind, body)?,
    })
}

fn about_pulls(kind: u8, body: &mut Reader<'_>) -> Result<Message, Malformed> {
    Ok(match kind {
        PULL => {
            let (number, token) = (body.varint()?, body.u64()? as i64);
            Message::Pull { number, key: RowKey { token, bytes: bytes(body)? } }
        }
        PULLED => {
            let (to, number) = to_and_number(body)?;
            let cached = match body.u8()? {
                0 => None,
                1 => Some((body.varint()?, None)),
                2 => Some((body.varint()?, Some(bytes(body)?))),
                _ => return Err(Malformed::Unknown),
            };
            Message::Pulled { to, number, cached }
        }
        _ => return Err(Malformed::Unknown),
    })
}

fn to_and_number(body: &mut Reader<'_>) -> Result<(Incarnation, u64), Malformed> {
    Ok((body.incarnation()?, body.varint()?))
}

fn attempt(body: &mut Reader<'_>) -> Result<u32, Malformed> {
    body.varint()?.try_into().map_err(|_| Malformed::TooMuch)
}

fn bytes(body: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let len = body.count(1)?;
    body.take(len).map(<[u8]>::to_vec)
}

/// A count, and that many things of at least `size` bytes each.
fn repeat<'a, T>(
    body: &mut Reader<'a>,
    size: usize,
    mut one: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = body.count(size)?;
    (0..count).map(|_| one(body)).collect()
}

fn scope(body: &mut Reader<'_>) -> Result<Scope, Malformed> {
    match body.u8()? {
        0 => Ok(Scope::All),
        1 => Ok(Scope::Token(body.u64()? as i64)),
        _ => Err(Malformed::Unknown),
    }
}

fn outcome(body: &mut Reader<'_>) -> Result<Outcome, Malformed> {
    Ok(match body.varint()? {
        0 => Outcome::Settled,
        1 => Outcome::Weak,
        2 => Outcome::Unknown,
        3 => Outcome::Refused,
        4 => Outcome::Decided,
        _ => return Err(Malformed::Unknown),
    })
}

fn write(body: &mut Reader<'_>) -> Result<PermitKey, Malformed> {
    let (id, incarnation) = (MemberId(body.u64()?), body.incarnation()?);
    Ok(PermitKey { process: Identity { id, incarnation }, number: body.varint()? })
}

/// The last holds of the shard are of writes under way, of these.
fn writers(body: &mut Reader<'_>, state: &mut ShardState) -> Result<(), Malformed> {
    let writers = repeat(body, 25, write)?;
    let first = state.holds.len().checked_sub(writers.len()).ok_or(Malformed::TooMuch)?;
    let writes = state.holds.split_off(first);
    let named = writers.into_iter().zip(writes);
    state.writes = named.map(|(write, (token, left))| (write, token, left)).collect();
    Ok(())
}

fn state(body: &mut Reader<'_>) -> Result<ShardState, Malformed> {
    Ok(ShardState {
        shard: body.u16()?,
        epoch: body.varint()?,
        weak: body.varint()?,
        holds: repeat(body, 9, |body| Ok((body.u64()? as i64, body.varint()?)))?,
        writes: Vec::new(),
        dirty: repeat(body, 5, |body| Ok((body.varint()?, repeat(body, 8, Reader::u64)?)))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let (to, number, attempt) = (Incarnation(9), 300, 2);
        let scopes = vec![Scope::Token(-4), Scope::All];
        let detail: Detail = b"rows".as_slice().into();
        let key = RowKey { token: i64::MIN, bytes: b"key".to_vec() };
        let process = Identity { id: MemberId(5), incarnation: Incarnation(u128::MAX - 6) };
        let write = PermitKey { process, number: 1 << 40 };
        let row = Answer::Row(Some(b"row".to_vec()));
        let state = ShardState {
            shard: 4,
            epoch: 1 << 40,
            weak: 5,
            holds: vec![(-1, 6)],
            writes: vec![(write, 8, 1 << 50)],
            dirty: vec![(3, vec![0, u64::MAX])],
        };
        let schema = SchemaVersion(7 << 99);
        let end = |outcome| Message::End { number, outcome };
        let found = |answer| Message::Found { to, number, answer };
        vec![
            Message::Ping { hash: u64::MAX, sent: 1 },
            Message::Pong {
                hash: 0,
                sent: 1 << 63,
                to,
                promise: true,
                clock: 1 << 63,
                blind: 60_000_000,
            },
            Message::Pong { hash: 0, sent: 1, to, promise: false, clock: 0, blind: 0 },
            Message::MapWanted,
            Message::MapIs(Arc::new(Map::empty(8))),
            Message::Begin { number, attempt, scopes: scopes.clone(), detail: detail.clone() },
            Message::Grant { to, number, attempt, duration: 1_500_000 },
            Message::Drop { number, attempt, scopes, detail, weak: true },
            Message::Dropped { to, number, attempt },
            Message::Refused { to, number, attempt },
            end(Outcome::Settled),
            end(Outcome::Weak),
            end(Outcome::Unknown),
            end(Outcome::Refused),
            end(Outcome::Decided),
            Message::Ended { write, outcome: Outcome::Settled },
            Message::EndWanted { to, numbers: vec![0, 1 << 50] },
            Message::Get { wanted: vec![(1, key.clone()), (2, key.clone())] },
            Message::Pull { number, key },
            Message::Pulled { to, number, cached: None },
            Message::Pulled { to, number, cached: Some((7, None)) },
            Message::Pulled { to, number, cached: Some((1 << 33, Some(b"row".to_vec()))) },
            found(row),
            found(Answer::Row(None)),
            found(Answer::Pass),
            found(Answer::NotOwner),
            Message::HandoverWanted { shards: vec![1, 65_535] },
            Message::Handover { to, version: 8, schema, states: vec![state] },
        ]
    }

    fn envelope(message: Message) -> Envelope {
        let (life, incarnation) = (Incarnation(1), Incarnation(u128::MAX));
        Envelope { from: MemberId(3), life, incarnation, ring: RingId(9), version: 12, message }
    }

    #[test]
    fn every_message_reads_back_as_it_was_written() {
        for message in messages() {
            let envelope = envelope(message);
            assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
        }
    }

    #[test]
    fn what_a_newer_version_adds_is_skipped_and_its_kinds_are_refused() {
        for message in messages().into_iter().filter(|m| !matches!(m, Message::MapIs(_))) {
            let envelope = envelope(message);
            let mut bytes = envelope.encode();
            let body = bytes.len() - 70;
            bytes.extend([1, 2, 3]);
            bytes[66..70].copy_from_slice(&(body as u32 + 3).to_le_bytes());
            assert_eq!(Envelope::decode(&bytes), Ok(envelope));
            bytes[1] = 200;
            assert_eq!(Envelope::decode(&bytes), Err(Malformed::Unknown));
        }
    }

    #[test]
    fn no_bytes_make_reading_a_message_panic() {
        for message in messages() {
            let whole = envelope(message).encode();
            for end in 0..whole.len() {
                assert!(Envelope::decode(&whole[..end]).is_err());
            }
            for at in 0..whole.len() {
                for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[at] = byte;
                    if let Ok(read) = Envelope::decode(&bytes) {
                        assert_eq!(Envelope::decode(&read.encode()), Ok(read));
                    }
                }
            }
        }
    }
}
