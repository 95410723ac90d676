//! The inquiry: settles a lightweight transaction of unknown outcome.
//!
//! A proposal that reached some replicas may be completed by any later operation of its partition.
//! A SERIAL read decides it. It completes what is in progress. What it does not see in progress
//! cannot be completed any more. Cassandra's `Paxos.md` says: "no update made concurrently with any
//! operation (including a read or a failing CAS) can resurface after that operation is decided". A
//! server may be configured to be less strict. If no such read is possible, the replicas forget the
//! proposal in time.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode};
use afterglow_cql::message::{Consistency, Query, QueryParams, Request as Message, ValuesBuilder};
use afterglow_cql::name::quoted;
use afterglow_cql::plan::{TableSchema, partition_columns};
use afterglow_ring::WriteResult;
use afterglow_rowcache::inquiries::{COORDINATORS_TIME, Counted};
use afterglow_rowcache::tables::{Answers, Index};
use afterglow_rowcache::write_in_flight::{Answered, InDoubt};
use afterglow_rowcache::write_scope::WriteScope;

use super::super::{CqlReactorState, KeptBackend, Request, error_code};
use super::WriteInFlight;
use super::fill_result::FillWaiter;
use super::ring::RingWrite;
use super::state::CachedState;
use crate::frontend::cql::cluster::pool::Who;

/// Pauses between attempts, doubled from the first to the last.
pub(super) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(30));

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

/// A SERIAL read of the partition that a transaction of unknown outcome was about. It outlives its
/// client, so it keeps nothing of it.
pub struct Inquiry {
    reactor_state: Rc<CqlReactorState>,
    who: Who,
    table: Arc<TableSchema>,
    partition: Vec<u8>,
    consistency: Consistency,
    /// What it completes is there for every quorum read in our data centre.
    seen_here: bool,
    /// As one of those that are under way.
    _counted: Counted<FillWaiter>,
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
        // A client with a connection of its own: nobody else can log in as it, so the read would
        // never be answered.
        if request.client().dedicated.borrow().is_some() {
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
            reactor_state: request.client().reactor_state.clone(),
            who: request.client().who(request.header.version),
            table: newest.table(table)?.clone(),
            partition: partition.to_vec(),
            consistency,
            seen_here: local
                || newest.answers(table, Consistency::Quorum, shared.data_center.read().as_deref())
                    == Answers::Always,
            _counted: shared.cache.count_inquiry(),
        })
    }

    /// As [`Inquiry::run`], for a write whose gates are its owners', and `own` those of copies of
    /// this instance. They stay closed until this has an answer; without one the outcome is
    /// unknown.
    pub(super) async fn run_in_ring(
        self,
        write: RingWrite,
        own: Option<WriteInFlight>,
        answered: Answered,
    ) {
        let decided = self.ask_until_decided(answered).await;
        if let Some(own) = own {
            own.settle_inquired(answered, decided, self.seen_here);
        }
        let lost = answered == Answered::Unknown(InDoubt::ConnectionLost);
        let result = match (decided, lost) {
            (false, _) => WriteResult::Unknown,
            (true, true) => WriteResult::Decided,
            (true, false) if self.seen_here => WriteResult::Done,
            (true, false) => WriteResult::DoneWeakly,
        };
        // The client was told of its unknown outcome.
        let _ = write.finish(result).await;
    }

    /// Asks until there is an answer; the write's gates stay closed meanwhile.
    pub(super) async fn run(self, write: WriteInFlight, answered: Answered) {
        let decided = self.ask_until_decided(answered).await;
        write.settle_inquired(answered, decided, self.seen_here);
    }

    /// Whether a SERIAL read has decided it; false when there can be none.
    async fn ask_until_decided(&self, answered: Answered) -> bool {
        // Whoever answered has come to an end with it.
        if answered == Answered::Unknown(InDoubt::ConnectionLost) {
            compio::time::sleep(COORDINATORS_TIME).await;
        }
        let mut pause = PAUSES.0;
        for attempt in 0.. {
            match self.ask(attempt).await {
                Heard::Later => compio::time::sleep(pause).await,
                heard => return heard == Heard::Decided,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
        unreachable!("there is always another attempt")
    }

    async fn ask(&self, attempt: usize) -> Heard {
        let mut values = ValuesBuilder::positional();
        let columns = self.table.partition_key.len();
        for value in partition_columns(&self.partition, columns) {
            values.push(Value::Bytes(value));
        }
        let params = QueryParams { values: values.view(), ..QueryParams::new(self.consistency) };
        let names: Vec<String> =
            self.table.partition_key.iter().map(|column| quoted(&column.name)).collect();
        let keys: Vec<String> = names.iter().map(|name| format!("{name} = ?")).collect();
        let (keyspace, name) = (quoted(&self.table.keyspace), quoted(&self.table.name));
        let text = format!(
            "SELECT {} FROM {keyspace}.{name} WHERE {} LIMIT 1",
            names[0],
            keys.join(" AND ")
        );
        let mut body = Vec::new();
        Query { text: &text, params }.encode(self.who.version, &mut body);
        let near = self.consistency == Consistency::LocalSerial;
        let Some(backend) = connection(&self.reactor_state, &self.who, near, attempt).await else {
            return Heard::Later;
        };
        match backend.call(Opcode::Query, Flags::NONE, body.into()).await {
            Ok(answer) if answer.header.opcode == Opcode::Result => Heard::Decided,
            Ok(answer)
                if matches!(
                    error_code(&answer),
                    Some(ErrorCode::Invalid | ErrorCode::Unauthorized)
                ) =>
            {
                Heard::Never
            }
            _ => Heard::Later,
        }
    }
}

/// A connection to the first node that can be reached. `near`: in our data centre. Each attempt
/// begins with another node: one that answers may still not reach the replicas.
pub(super) async fn connection(
    reactor_state: &CqlReactorState,
    who: &Who,
    near: bool,
    attempt: usize,
) -> Option<KeptBackend> {
    let mut nodes = reactor_state.control_first().nodes;
    let first = attempt % nodes.len().max(1);
    nodes.rotate_left(first);
    for node in nodes {
        let Ok(backend) = reactor_state.pool.acquire(node, who).await else { continue };
        if !near || reactor_state.is_near(&backend) {
            return Some(backend);
        }
    }
    None
}
