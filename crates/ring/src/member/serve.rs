//! Reads and writes of clients, reads of other instances, and rows of the database. Whether this
//! member may serve at all is the lease's decision (`lease.rs`).

use std::sync::Arc;

use super::Member;
use crate::config::Time;
use crate::custody::{Kept, Look};
use crate::identity::{Incarnation, MemberId};
use crate::io::{Action, FailReason, Io, ReadSource, WriteResult};
use crate::lookup::Asker;
use crate::map::Map;
use crate::message::{Answer, Detail, Message, RowKey, Scope};
use crate::terms::{Carried, FillTerms, OlderRow};

impl Member {
    /// A client wants a row.
    pub fn read(&mut self, client: u64, key: RowKey, io: &mut Io<'_>) {
        let owner = self.map.as_ref().and_then(|map| map.owner_of(key.token));
        match owner {
            Some(owner) if owner == self.id => self.look(Asker::Client(client), key, io),
            Some(owner) => self.lookups.ask(owner, key, client),
            None => self.lookups.read(key, None, vec![Asker::Client(client)], io),
        }
        self.settle(io);
    }

    /// A client wants to write. The answer comes as an acknowledgement or a failure.
    pub fn write(&mut self, client: u64, scopes: Vec<Scope>, detail: Detail, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else {
            io.actions.push(Action::Fail { client, reason: FailReason::NotSent });
            return;
        };
        let number = self.writes.begin(client, (scopes, detail), &map, io);
        self.advance_write(number, io);
        self.settle(io);
    }

    /// Whether a row of this token that is not cached may be filled, under the present lease; see
    /// [`FillTerms`]. For callers that look rows up and fill them themselves. Such a fill is
    /// installed under the epoch of these terms, if no write to its rows has begun since.
    #[must_use]
    pub fn fill_terms(&self, token: i64, now: Time) -> Option<FillTerms> {
        let map = self.map.as_ref().filter(|_| now < self.lease.end())?;
        self.custody.fill_terms(map, self.id, token, now)
    }

    /// Whether a row that is missing may be found without the database, where it is not kept under
    /// the present epoch. For callers that look rows up themselves.
    #[must_use]
    pub fn carried(&self, token: i64, now: Time) -> Option<Carried> {
        let map = self.map.as_ref().filter(|_| now < self.lease.end())?;
        self.custody.carried(map, self.id, token, now)
    }

    /// Whether a row counts still that was cached under an epoch before the present one, here or
    /// elsewhere. It is installed as a fill is that began before this question: if no
    /// write to it has begun since.
    #[must_use]
    pub fn counts_still(&self, row: OlderRow) -> bool {
        let installs =
            |map: &Arc<Map>| self.custody.may_install_pulled(map, self.id, row).is_some();
        self.map.as_ref().is_some_and(installs)
    }

    /// Rows were forgotten for a reason that no write of the ring has told. Those of earlier epochs
    /// do not count any more. The map is read soon: until then moves bring no rows.
    pub fn distrust_older(&mut self) {
        self.reads.before_distrust = self.reads.next;
        self.custody.distrust_older();
    }

    /// For the time of a hold fills may miss writes, for a reason that no write of the ring has
    /// told. Callers know that of their own fills; the next owners of our shards hear of it.
    pub fn weaken(&mut self, now: Time) {
        self.custody.note_weak(&[Scope::All], now, &self.config);
    }

    /// The shards whose rows this member may serve while its lease lasts, with their epochs.
    #[must_use]
    pub fn shards(&self) -> Vec<(usize, u64)> {
        let map = self.map.as_ref().filter(|_| self.active_me().is_some());
        map.map_or_else(Vec::new, |map| self.custody.answered_for(map, self.id).collect())
    }

    /// What a successor of this process needs to know, see [`Durable::keep`](crate::Durable::keep).
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept { ring: self.custody.ring(), shards: self.custody.kept().collect() }
    }

    /// Whether that is still what [`kept`](Self::kept) said. This is asked far more often than it
    /// changes, so nothing is copied.
    #[must_use]
    pub fn keeps_still(&self, kept: &Kept) -> bool {
        let Kept { ring, shards } = kept;
        *ring == self.custody.ring() && self.custody.kept().eq(shards.iter().copied())
    }

    /// The database has answered a write.
    pub fn written(&mut self, number: u64, result: WriteResult, io: &mut Io<'_>) {
        let Some(map) = &self.map else { return };
        let ends = self.writes.written(number, result, map, io);
        self.send_all(ends, io);
        self.advance_write(number, io);
        self.settle(io);
    }

    /// This process is about to end: refuses the writes that have waited for their permits for so
    /// long.
    pub fn refuse_waiting(&mut self, longer_than: Time, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        for number in self.writes.numbers() {
            let ends = self.writes.refuse(number, longer_than, &map, io);
            self.send_all(ends, io);
        }
        self.settle(io);
    }

    /// Another instance wants a row.
    pub(super) fn asked(
        &mut self,
        (from, life, number): (MemberId, Incarnation, u64),
        key: RowKey,
        io: &mut Io<'_>,
    ) {
        self.look(Asker::Instance(from, life, number), key, io);
    }

    fn look(&mut self, reader: Asker, key: RowKey, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        let lease = self.lease.end();
        match self.custody.look(&map, self.id, &key, (io.now, lease), io.rows) {
            Look::Hit(row) => self.tell(reader, Answer::Row(row), &key, ReadSource::Cache, io),
            Look::NotOwner => {
                self.tell(reader, Answer::NotOwner, &key, ReadSource::Database, io);
            }
            Look::Pass => self.tell(reader, Answer::Pass, &key, ReadSource::Database, io),
            Look::Miss(ticket) => {
                let custody = &self.custody;
                let may = |ticket| custody.may_join(&map, ticket, key.token);
                if self.lookups.join(&key, reader, io.now, &self.config, may) {
                    return;
                }
                let from = self.custody.pull_from(&map, self.id, key.token, io.now);
                let Some(from) = from else {
                    self.lookups.read(key, Some(ticket), vec![reader], io);
                    return;
                };
                let pull = self.lookups.pull(from, key, ticket, reader, io.now);
                self.send(from, pull, io);
            }
        }
    }

    fn tell(
        &mut self,
        reader: Asker,
        answer: Answer,
        key: &RowKey,
        source: ReadSource,
        io: &mut Io<'_>,
    ) {
        match (reader, answer) {
            (Asker::Client(client), Answer::Row(row)) => {
                io.actions.push(Action::Answer { client, row, source });
            }
            (Asker::Client(_), _) => self.lookups.read(key.clone(), None, vec![reader], io),
            (Asker::Instance(to, life, number), answer) => {
                self.send(to, Message::Found { to: life, number, answer }, io);
            }
        }
    }

    /// An owner has answered a GET.
    pub(super) fn found(&mut self, from: MemberId, number: u64, answer: Answer, io: &mut Io<'_>) {
        let Some((key, clients)) = self.lookups.found(from, number) else { return };
        match answer {
            Answer::Row(row) => {
                for client in clients {
                    let (row, source) = (row.clone(), ReadSource::Cache);
                    io.actions.push(Action::Answer { client, row, source });
                }
            }
            Answer::Pass | Answer::NotOwner => {
                let readers = clients.into_iter().map(Asker::Client).collect();
                self.lookups.read(key, None, readers, io);
            }
        }
    }

    /// The old owner of a shard has answered a PULL. What may not be installed is not served.
    ///
    /// The race: a write of everything begins between the PULL and its answer. Where it only makes
    /// rows it changes none that is there, and the dirty bits let the row count. But the rows' own
    /// gate is closed until the write ends, so the database is read instead.
    pub(super) fn pulled(
        &mut self,
        (from, number): (MemberId, u64),
        cached: Option<(u64, Option<Vec<u8>>)>,
        io: &mut Io<'_>,
    ) {
        let Some(fill) = self.lookups.pulled(from, number) else { return };
        let cached = cached.filter(|_| !io.rows.is_held(&fill.key));
        let installs = cached.zip(self.map.clone()).and_then(|((epoch, row), map)| {
            let older = OlderRow::of(&fill.key, epoch, row.as_deref(), io.rows);
            Some((self.custody.may_install_pulled(&map, self.id, older)?, row))
        });
        let Some((epoch, row)) = installs else {
            self.lookups.read_instead(fill, io);
            return;
        };
        coverage_mark!(Pulled);
        let weak = fill.ticket.is_some_and(|ticket| ticket.weak);
        io.rows.install(&fill.key, (epoch, fill.began), row.clone(), weak);
        for reader in fill.readers {
            let answer = Answer::Row(row.clone());
            self.tell(reader, answer, &fill.key, ReadSource::Cache, io);
        }
    }

    /// The database has answered the read of a row, or could not.
    pub fn row_read(&mut self, id: u64, row: Result<Option<Vec<u8>>, ()>, io: &mut Io<'_>) {
        let Some(fill) = self.lookups.filled(id) else { return };
        if let (Ok(row), Some(ticket), Some(map)) = (&row, fill.ticket, self.map.clone()) {
            let token = fill.key.token;
            let epoch = self.custody.may_install(&map, self.id, ticket, token, io.now);
            if let Some(epoch) = epoch {
                io.rows.install(&fill.key, (epoch, fill.began), row.clone(), ticket.weak);
            } else {
                coverage_mark!(FillOvertaken);
            }
        }
        for reader in fill.readers {
            match (&row, reader) {
                (Ok(row), _) => {
                    let answer = Answer::Row(row.clone());
                    self.tell(reader, answer, &fill.key, ReadSource::Database, io);
                }
                (Err(()), Asker::Client(client)) => {
                    io.actions.push(Action::Fail { client, reason: FailReason::NotSent });
                }
                (Err(()), Asker::Instance(..)) => {
                    self.tell(reader, Answer::Pass, &fill.key, ReadSource::Database, io);
                }
            }
        }
        self.settle(io);
    }
}
