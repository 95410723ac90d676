//! A process: a member with its cache of rows, and what the server does around them.
//!
//! The member's lock, the rows that it drops, questions and answers, the owner's side of a read,
//! and a write from its permits to its verdict are the server's own: [`Ring`], `RingRows`,
//! [`Owned`], [`carried`], [`RingWrite`]. What follows a function with a socket names it, and has
//! its order of calls.
//!
//! What waits is a future here too. All futures of a process are polled after each of its inputs.
//! Their timeouts are timers of a runtime that never runs. So the world says when a question is
//! given up ([`Input::GiveUp`]).

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use afterglow_ring::{
    Answer, Envelope, Founding, Map, MemberId, Message, SchemaVersion, Time, TransactionResult,
    WriteResult,
};
use afterglow_rowcache::clock::Moment;
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::ReturnedFill;
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::serve::{CachePermission, NotCached};
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::{mpsc, oneshot};

use super::super::ask::RemoteRow;
use super::super::carry::{carried, carried_weakly};
use super::super::core::{DatabaseJob, Ring};
use super::super::kept::KeptFile;
use super::super::late_fills::LateFills;
use super::super::owned::{Owned, Question};
use super::super::serve::pulled;
use super::super::source::now;
use super::super::write::{RingWrite, Verdict};
use super::catalog::{Catalog, CatalogRow, stamp_of};
use crate::frontend::cql::cached::FillWaiter;
use crate::frontend::cql::cached::level::Need;
use crate::frontend::cql::cached::sought::{Found, Sought};
use crate::frontend::cql::cached::state::CachedState;
use crate::metrics::FrontEndMetrics;

/// What comes to a process.
pub enum Input {
    /// A message of that member.
    Message(MemberId, Vec<u8>),
    /// Time passes.
    Tick,
    /// The database has answered a read of the map.
    MapRead(u64, Arc<Map>),
    /// The outcome of a transaction.
    Transacted(u64, TransactionResult),
    /// The database has answered a read of a row; `None`: it could not, or not in time.
    RowRead(oneshot::Sender<Option<i32>>, Option<i32>),
    /// The database has answered a write.
    Written(oneshot::Sender<WriteResult>, WriteResult),
    /// A client wants a row.
    Read(u64, usize),
    /// A client wants to write rows.
    Write(u64, Vec<usize>),
    /// A client wants to make the first row, whose key the database makes.
    Make(u64),
    /// The question of this number is given up, which went to that old owner if it is a PULL.
    GiveUp(u64, Option<MemberId>),
    /// The operator has it leave.
    Leave,
    /// Rows are gone because of what no write has told.
    Forget,
}

/// What is asked of the database for clients and fills.
pub enum DatabaseAsk {
    /// A row, at a quorum, within a time.
    Read(usize, Time, oneshot::Sender<Option<i32>>),
    /// A client's write of rows.
    Write(u64, Vec<usize>, oneshot::Sender<WriteResult>),
}

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The cache here, or the row was carried over.
    Cache,
    /// The row's owner.
    Owner,
    /// The database.
    Database,
}

/// What a client hears.
pub enum Done {
    /// The row.
    Read(u64, i32, AnsweredBy),
    /// Its write is done.
    Acknowledged(u64),
    /// It failed, or its outcome is not known.
    Failed(u64),
}

/// What the futures of a process have for the world.
#[derive(Default)]
pub struct Desk {
    /// What they ask of the database.
    pub asks: RefCell<Vec<DatabaseAsk>>,
    /// What they tell clients.
    pub done: RefCell<Vec<Done>>,
}

/// What every future of a process has at hand.
pub struct Hands {
    /// The cached path.
    pub shared: Arc<CachedState>,
    /// The ring.
    pub ring: Arc<Ring>,
    /// Table and rows.
    pub catalog: Arc<Catalog>,
    /// See [`Desk`].
    pub desk: Desk,
    late_fills: LateFills,
    metrics: FrontEndMetrics,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A process.
pub struct Process {
    /// See [`Hands`].
    pub hands: Rc<Hands>,
    kept: KeptFile,
    jobs: mpsc::UnboundedReceiver<DatabaseJob>,
    sent: mpsc::UnboundedReceiver<(MemberId, Vec<u8>)>,
    tasks: Vec<Task>,
}

impl Process {
    /// A process that has started.
    pub fn new(
        hands: Hands,
        kept: KeptFile,
        jobs: mpsc::UnboundedReceiver<DatabaseJob>,
        sent: mpsc::UnboundedReceiver<(MemberId, Vec<u8>)>,
    ) -> Process {
        Process { hands: Rc::new(hands), kept, jobs, sent, tasks: Vec::new() }
    }

    /// Takes an input. What waits goes on as far as it can.
    pub fn take(&mut self, input: Input) {
        let (hands, ring) = (self.hands.clone(), self.hands.ring.clone());
        match input {
            Input::Message(from, bytes) => self.message(from, &bytes),
            Input::Tick => self.tick(),
            // As `run_jobs` of the keeper.
            Input::MapRead(id, map) => {
                ring.with(|member, io| member.map_read(id, Some(map), io));
            }
            Input::Transacted(id, result) => {
                ring.with(|member, io| member.transacted(id, result, io));
            }
            // Nobody waits any more if these fail.
            Input::RowRead(waits, stamp) => drop(waits.send(stamp)),
            Input::Written(waits, result) => drop(waits.send(result)),
            Input::Read(client, row) => self.tasks.push(Box::pin(hands.client_reads(client, row))),
            Input::Write(client, rows) => {
                let scope = hands.catalog.scope(&rows);
                self.tasks.push(Box::pin(hands.client_writes(client, rows, scope)));
            }
            Input::Make(client) => {
                let scope = hands.catalog.made();
                self.tasks.push(Box::pin(hands.client_writes(client, vec![0], scope)));
            }
            Input::GiveUp(number, old_owner) => give_up(&ring, number, old_owner),
            Input::Leave => ring.with(|member, _| member.leave()),
            Input::Forget => hands.shared.forget(&WriteScope::everything()),
        }
        self.go_on();
    }

    /// Polls all that waits until nothing moves: one may have told another.
    pub fn go_on(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let before = self.tasks.len();
            self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            if self.tasks.len() == before {
                return;
            }
        }
    }

    /// What it asks of the database about the map.
    pub fn next_job(&mut self) -> Option<DatabaseJob> {
        self.jobs.try_recv().ok()
    }

    /// What it sends to other members.
    pub fn next_sent(&mut self) -> Option<(MemberId, Vec<u8>)> {
        self.sent.try_recv().ok()
    }

    /// As `Messages::message` of the setup.
    fn message(&mut self, from: MemberId, bytes: &[u8]) {
        let ring = &self.hands.ring;
        let envelope = Envelope::decode(bytes).expect("it was just written");
        let is_from_us = ring.is_from_us(&envelope);
        match envelope.message {
            Message::Get { .. } | Message::Pull { .. } if !is_from_us => {}
            Message::Get { wanted } => {
                let hands = self.hands.clone();
                self.tasks.push(Box::pin(async move {
                    for (number, key) in wanted {
                        let answer = hands.answer(&key.bytes).await;
                        let found = Message::Found { to: envelope.life, number, answer };
                        hands.ring.answer(from, found, None);
                    }
                }));
            }
            Message::Pull { number, key } => {
                let hands = self.hands.clone();
                self.tasks.push(Box::pin(async move {
                    let Hands { shared, ring, catalog, metrics, .. } = &*hands;
                    let cached = pulled(shared, ring, &catalog.index, &key, metrics).await;
                    let pulled = Message::Pulled { to: envelope.life, number, cached };
                    ring.answer(from, pulled, None);
                }));
            }
            _ => ring.receive(envelope),
        }
    }

    /// As `RingKeeper::tick`.
    fn tick(&mut self) {
        let Hands { shared, ring, .. } = &*self.hands;
        shared.cache.settle_due();
        ring.with(|member, io| {
            member.set_schema(SchemaVersion(1));
            member.set_founding(Founding::AtOnce);
            member.tick(io);
        });
        let failed = self.kept.keep(|known| ring.kept_unless(known), now());
        assert!(failed.is_none(), "{failed:?}");
    }
}

/// The time of a question is over. Whoever asks an old owner notes it as `Ring::pull` does.
fn give_up(ring: &Ring, number: u64, old_owner: Option<MemberId>) {
    let waits = old_owner.is_some_and(|owner| ring.gets.lock().answered(owner, number).is_some());
    if let Some(owner) = old_owner.filter(|_| waits) {
        ring.silent_owners.note(owner, now());
    }
    ring.gets.lock().forget(number);
}

impl Hands {
    /// What the futures of a new process have.
    pub fn new(
        shared: Arc<CachedState>,
        ring: Arc<Ring>,
        catalog: Arc<Catalog>,
        desk: Desk,
    ) -> Hands {
        let (late_fills, metrics) = (LateFills::default(), FrontEndMetrics::default());
        Hands { shared, ring, catalog, desk, late_fills, metrics }
    }

    /// The database reads a row.
    async fn row(&self, at: usize, within: Time) -> Option<i32> {
        let (answer, answered) = oneshot::channel();
        self.desk.asks.borrow_mut().push(DatabaseAsk::Read(at, within, answer));
        answered.await.ok()?
    }

    async fn fill(&self, at: usize, asked_at: Moment, within: Time) -> Option<Filled> {
        let stamp = self.row(at, within).await?;
        Some(self.catalog.rows[at].filled(stamp, asked_at.unix))
    }

    /// As `Owner::answer`.
    async fn answer(&self, engine_key: &[u8]) -> Answer {
        let at = self.catalog.row_of(engine_key).expect("a row of the run");
        let CatalogRow { plan, key, .. } = &self.catalog.rows[at];
        let table = self.catalog.rows[at].table().clone();
        let cache = &self.shared.cache;
        let question = match Question::permitted(cache, table, plan.clone(), key.clone()) {
            Ok(question) => question,
            Err(answer) => return answer,
        };
        let Hands { shared, ring, late_fills, metrics, .. } = self;
        let owned = Owned { shared, ring, late_fills, metrics };
        let within = ring.config().get;
        let fill = async |asked_at| self.fill(at, asked_at, within).await;
        let row = owned.row(&question, fill).await;
        row.map_or(Answer::Pass, |row| Answer::Row(Some(row.bytes().to_vec())))
    }

    async fn client_reads(self: Rc<Self>, client: u64, at: usize) {
        let done = match self.read(at).await {
            Some((stamp, from)) => Done::Read(client, stamp, from),
            None => Done::Failed(client),
        };
        self.desk.done.borrow_mut().push(done);
    }

    /// As `read::route`, with its `permission`, and `Pending::owned_elsewhere`.
    async fn read(&self, at: usize) -> Option<(i32, AnsweredBy)> {
        let row = &self.catalog.rows[at];
        match self.shared.cache.row_permission(row.table(), &row.key) {
            Ok(permission) => self.read_here(at, permission).await,
            Err(NotCached::NotOwner) => {
                match self.ring.ask(&row.key, row.read().fingerprint).await {
                    RemoteRow::Row(row) => Some((stamp_of(&row), AnsweredBy::Owner)),
                    RemoteRow::Pass => self.pass(at).await,
                }
            }
            Err(_) => self.pass(at).await,
        }
    }

    /// The client's own request goes to the database.
    async fn pass(&self, at: usize) -> Option<(i32, AnsweredBy)> {
        Some((self.row(at, Time::MAX).await?, AnsweredBy::Database))
    }

    /// As `read::route`, `Pending::missed` and `Filler::row`.
    async fn read_here(&self, at: usize, permission: CachePermission) -> Option<(i32, AnsweredBy)> {
        let row = &self.catalog.rows[at];
        let (shared, key, need) = (&*self.shared, &row.key, Need::Nothing);
        let sought = Sought { shared, read: row.read(), key, permission, need };
        match sought.look_up() {
            Found::Row(row, _) => return Some((stamp_of(&row), AnsweredBy::Cache)),
            Found::Flash(flash) => {
                if let Ok((row, _)) = sought.read(flash, &self.metrics).await {
                    return Some((stamp_of(&row), AnsweredBy::Cache));
                }
            }
            Found::Missing(_) => {}
        }
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        let brought = match shared.cache.join(row.table(), key, permission, waiter) {
            Join::Lead(ticket) => self.lead(at, permission, ticket).await,
            Join::Wait => {
                let brought = hears.expect("it waits").await.ok();
                let row = brought.and_then(|brought| brought.row(row.read().fingerprint));
                row.map(|row| (stamp_of(&row), AnsweredBy::Database))
            }
            Join::Bypass(_) => None,
        };
        match brought {
            Some(brought) => Some(brought),
            None => self.pass(at).await,
        }
    }

    /// As `Filler::lead`.
    async fn lead(
        &self,
        at: usize,
        permission: CachePermission,
        ticket: Ticket<FillWaiter>,
    ) -> Option<(i32, AnsweredBy)> {
        let row = &self.catalog.rows[at];
        let (cache, fingerprint) = (&self.shared.cache, row.read().fingerprint);
        if cache.row_permission(row.table(), &row.key) == Ok(permission)
            && let Some(hit) = cache.peek(&row.key)
            && let Ok(row) = cache.accept(&hit, permission, fingerprint)
        {
            self.shared.share(&row, ticket);
            return Some((stamp_of(&row), AnsweredBy::Cache));
        }
        let weak = self.ring.fill_terms(row.table(), &row.key, permission)?;
        let asked_at = cache.clock().moment();
        let shape = (&**row.table(), fingerprint);
        let carried = carried(&self.shared, shape, &row.key, &self.metrics).await;
        let (filled, from, weak) = match carried {
            Some((filled, from)) => (filled, AnsweredBy::Cache, carried_weakly(weak, from)),
            None => (self.fill(at, asked_at, Time::MAX).await?, AnsweredBy::Database, weak),
        };
        let (plan, key, cache_permission) = (row.read(), &row.key, permission);
        let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak };
        let (_, row) = self.shared.install(fill, ticket);
        row.map(|row| (stamp_of(&row), from))
    }

    /// As `InRing::carry_out`.
    async fn client_writes(self: Rc<Self>, client: u64, rows: Vec<usize>, scope: WriteScope) {
        let mut write = RingWrite::begin(&self.ring, &scope, 0);
        let mut is_acknowledged = false;
        if write.permitted().await {
            let (answer, answered) = oneshot::channel();
            self.desk.asks.borrow_mut().push(DatabaseAsk::Write(client, rows, answer));
            let result = answered.await.expect("the world answers each");
            let verdict = write.finish(result).await;
            is_acknowledged = verdict == Verdict::Acknowledged
                && matches!(result, WriteResult::Done | WriteResult::DoneWeakly);
        }
        let done = if is_acknowledged { Done::Acknowledged(client) } else { Done::Failed(client) };
        self.desk.done.borrow_mut().push(done);
    }
}
