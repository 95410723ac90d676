//! What became of a lightweight transaction whose outcome nobody was told.
//!
//! A proposal that reached some replicas may be completed by any later operation of its partition. A SERIAL read decides it: it completes
//! what is in progress, and what it does not see in progress cannot be completed any more (Cassandra's `Paxos.md`: "no update made concurrently
//! with any operation (including a read or a failing CAS) can resurface after that operation is decided"), unless a server is told not
//! to be so strict. Where that cannot be had, the replicas forget the proposal in time.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams, Request as Message, ValuesBuilder};
use afterglow_cql::plan::{TableSchema, partition_columns};
use afterglow_cql::row::quoted;

use super::super::{Client, Fetched, Request, error_code};
use super::clock::Moment;
use super::router::CachedState;
use super::scope::{NEVER, WriteScope};
use super::tables::Index;
use super::write::{Answered, WriteInFlight};
use crate::metrics::QuarantineReason;

/// Replicas keep what they know of a transaction for so many minutes at least.
const SHORTEST_MEMORY: u32 = 3 * 60;
/// `gc_grace_seconds` where the table's is not known: Cassandra's default.
const USUAL_GRACE: u32 = 10 * 24 * 60 * 60;
/// Minutes added for clocks that differ.
const SLACK: u32 = 60;
/// A coordinator that did not answer may go on trying for as long as its timeouts let it.
const COORDINATORS_TIME: Duration = Duration::from_secs(60);
/// Pauses between attempts, doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// More than so many inquiries are not made at once; what is beyond waits until the replicas have forgotten.
const MAX_INQUIRIES: usize = 1024;

/// What is known of how the database runs lightweight transactions.
#[derive(Debug, Default)]
pub struct Paxos {
    /// Its release is known, and one whose serial reads decide.
    decides: AtomicBool,
    /// It was told not to be strict.
    lax: AtomicBool,
    /// It keeps what it knows until a repair.
    keeps: AtomicBool,
    asked: AtomicBool,
}

impl Paxos {
    /// Takes the node's `release_version`.
    pub fn set_release(&self, release: &str) {
        let numbers: Vec<u32> =
            release.split(['.', '-']).map_while(|number| number.parse().ok()).take(3).collect();
        // Since then serial reads write an empty proposal (CASSANDRA-12126).
        let decides = match numbers.as_slice() {
            [3, 0, patch, ..] => *patch >= 24,
            [3, 11, patch, ..] => *patch >= 10,
            [major, ..] => *major >= 4,
            [] => false,
        };
        self.decides.store(decides, Ordering::Release);
    }

    /// Takes the settings `paxos_variant` and `paxos_state_purging`, where there are any.
    pub fn set_settings(&self, variant: Option<&str>, purging: Option<&str>) {
        let is = |value: &str, of: &str| value.eq_ignore_ascii_case(of);
        self.lax.store(
            variant.is_some_and(|variant| !is(variant, "v1") && !is(variant, "v2")),
            Ordering::Release,
        );
        self.keeps.store(purging.is_some_and(|purging| is(purging, "repaired")), Ordering::Release);
        self.asked.store(true, Ordering::Release);
    }

    fn serial_reads_decide(&self) -> bool {
        let of = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        of(&self.decides) && of(&self.asked) && !of(&self.lax)
    }

    /// The minute after which a transaction begun now cannot take effect any more; `grace` is the table's `gc_grace_seconds`.
    pub fn dead_after(&self, grace: Option<u32>, now: Moment) -> u32 {
        if self.keeps.load(Ordering::Acquire) {
            return NEVER;
        }
        let memory = (grace.unwrap_or(USUAL_GRACE) / 60).max(SHORTEST_MEMORY);
        (now.unix / 60).saturating_add(memory).saturating_add(SLACK).min(NEVER - 1)
    }
}

/// A setting in the database's answer: none, where it has no such setting or tells none. `None` where the answer says nothing of that.
pub(super) fn setting_of(answer: &Envelope) -> Option<Option<String>> {
    if error_code(answer) == Some(ErrorCode::Invalid) {
        return Some(None); // no such table
    }
    Some(Fetched::new(answer)?.rows().next().and_then(|row| row.text("value")))
}

/// What an inquiry heard.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// The read was answered.
    Decided,
    /// Not yet.
    Later,
    /// The table is gone, or not for us to read.
    Never,
}

/// A SERIAL read of the partition that a transaction of unknown outcome was about.
pub struct Inquiry {
    client: Rc<Client>,
    version: Version,
    table: Arc<TableSchema>,
    partition: Vec<u8>,
    consistency: Consistency,
    /// What it completes is there for every quorum read in our data centre.
    seen_here: bool,
}

impl Inquiry {
    /// The inquiry after a write that was answered so, if there is any use in one.
    pub(super) fn of(
        shared: &CachedState,
        request: &Request,
        touched: &WriteScope,
        answered: Answered,
        newest: &Index,
    ) -> Option<Inquiry> {
        let asked = matches!(answered, Answered::Unknown(_)) && touched.conditional;
        if !asked || !shared.paxos.serial_reads_decide() || shared.cache.is_full_of_inquiries() {
            return None;
        }
        let params = match request.message().ok()?.1 {
            Message::Query(query) => query.params,
            Message::Execute(execute) => execute.params,
            Message::Batch(batch) => batch.params,
            _ => return None,
        };
        // Each has its own proposals, and so has each data centre at LOCAL_SERIAL.
        let consistency = params.serial_consistency.unwrap_or(Consistency::Serial);
        let local = consistency == Consistency::LocalSerial;
        if local && request.went_far() {
            return None;
        }
        let (table, partition) = touched.transaction()?;
        Some(Inquiry {
            client: request.client().clone(),
            version: request.header.version,
            table: newest.table(table)?.clone(),
            partition: partition.to_vec(),
            consistency,
            seen_here: local
                || newest.answers(table, Consistency::Quorum, shared.data_center.read().as_deref()),
        })
    }

    /// Asks until there is an answer; the write's gates stay closed meanwhile.
    pub(super) async fn run(self, mut write: WriteInFlight, answered: Answered) {
        let counted = write.cache().count_inquiry();
        // Whoever answered has come to an end with it.
        let lost = answered == Answered::Unknown(QuarantineReason::ConnectionLost);
        if lost {
            compio::time::sleep(COORDINATORS_TIME).await;
        }
        let mut pause = PAUSES.0;
        let decided = loop {
            match self.ask().await {
                Heard::Later => compio::time::sleep(pause).await,
                heard => break heard == Heard::Decided,
            }
            pause = (pause * 2).min(PAUSES.1);
        };
        if decided {
            write.decided();
            if !self.seen_here {
                write.weaken();
            }
        }
        write.settle(if lost || !decided { answered } else { Answered::Definite });
        drop(counted);
    }

    async fn ask(&self) -> Heard {
        let mut values = ValuesBuilder::positional();
        let columns = self.table.partition_key.len();
        for value in partition_columns(&self.partition, columns) {
            values.push(Value::Bytes(value));
        }
        let params = QueryParams { values: values.view(), ..QueryParams::new(self.consistency) };
        let names: Vec<String> = self.table.partition_key.iter().map(|column| quoted(&column.name)).collect();
        let keys: Vec<String> = names.iter().map(|name| format!("{name} = ?")).collect();
        let (keyspace, name) = (quoted(&self.table.keyspace), quoted(&self.table.name));
        let text = format!("SELECT {} FROM {keyspace}.{name} WHERE {} LIMIT 1", names[0], keys.join(" AND "));
        let mut body = Vec::new();
        Query { text: &text, params }.encode(self.version, &mut body);
        let (reactor_state, who) = (&self.client.reactor_state, self.client.who(self.version));
        for node in reactor_state.control_first().nodes {
            let Ok(backend) = reactor_state.pool.acquire(node, &who).await else { continue };
            if self.consistency == Consistency::LocalSerial && !reactor_state.is_near(&backend) {
                continue;
            }
            let answer = backend.call(Opcode::Query, Flags::NONE, body.into()).await;
            return match answer {
                Ok(answer) if answer.header.opcode == Opcode::Result => Heard::Decided,
                Ok(answer)
                    if matches!(error_code(&answer), Some(ErrorCode::Invalid | ErrorCode::Unauthorized)) =>
                {
                    Heard::Never
                }
                _ => Heard::Later,
            };
        }
        Heard::Later
    }
}

/// One inquiry, as long as it lasts.
pub struct Counted(Arc<super::RowCache>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.unresolved.fetch_sub(1, Ordering::AcqRel);
    }
}

impl super::RowCache {
    fn is_full_of_inquiries(&self) -> bool {
        self.unresolved.load(Ordering::Acquire) >= MAX_INQUIRIES
    }

    fn count_inquiry(self: &Arc<Self>) -> Counted {
        self.unresolved.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::frame::Header;
    use afterglow_cql::response::{ColumnSpec, ErrorBody, MetadataOut, encode_rows_start};

    use super::*;

    #[test]
    fn serial_reads_decide_where_the_release_and_its_settings_say_so() {
        let decides = |release: &str, variant: Option<&str>| {
            let paxos = Paxos::default();
            paxos.set_release(release);
            assert!(!paxos.serial_reads_decide(), "before it was asked");
            paxos.set_settings(variant, None);
            paxos.serial_reads_decide()
        };
        assert!(decides("5.0.5", Some("v1")) && decides("4.1.9", Some("v2")) && decides("4.0-rc1", None));
        assert!(decides("3.11.19", None) && decides("3.0.24", None));
        assert!(!decides("3.11.9", None) && !decides("3.0.8", None) && !decides("", None));
        assert!(!decides("5.0.5", Some("v1_without_linearizable_reads_or_rejected_writes")));
    }

    #[test]
    fn a_setting_that_may_not_be_read_is_not_taken_for_one_that_is_not_there() {
        let error = |code| {
            let mut body = Vec::new();
            ErrorBody::new(code, "no").encode(&mut body);
            Envelope { header: Header::new(Version::V4, 1, Opcode::Error), body: body.into() }
        };
        assert_eq!(setting_of(&error(ErrorCode::Invalid)), Some(None));
        for code in [ErrorCode::Unauthorized, ErrorCode::Overloaded, ErrorCode::ReadTimeout] {
            assert_eq!(setting_of(&error(code)), None, "{code:?}");
        }
        let rows = |values: &[&str]| {
            let column = ColumnSpec {
                keyspace: "system_views",
                table: "settings",
                name: "value",
                type_bytes: &[0, 13],
            };
            let mut body = Vec::new();
            encode_rows_start(Version::V4, &MetadataOut::of_table(&[column]), values.len(), &mut body);
            for value in values {
                body.extend_from_slice(&(value.len() as i32).to_be_bytes());
                body.extend_from_slice(value.as_bytes());
            }
            Envelope { header: Header::new(Version::V4, 1, Opcode::Result), body: body.into() }
        };
        assert_eq!(setting_of(&rows(&[])), Some(None));
        assert_eq!(setting_of(&rows(&["v1"])), Some(Some("v1".to_owned())));
    }

    #[test]
    fn replicas_forget_after_the_grace_of_the_table_or_never() {
        let paxos = Paxos::default();
        let now = Moment { unix: 60_000_000, boot: 0 };
        assert_eq!(paxos.dead_after(Some(60), now), 1_000_000 + 180 + 60);
        assert_eq!(paxos.dead_after(None, now), 1_000_000 + 14_400 + 60);
        assert_eq!(paxos.dead_after(Some(u32::MAX), now), 1_000_000 + u32::MAX / 60 + 60);
        paxos.set_settings(None, Some("repaired"));
        assert_eq!(paxos.dead_after(Some(60), now), NEVER);
    }
}
