//! Reads. The reader's side asks owners and the database. The owner's side has the fills, and the
//! reads that wait for them.
//!
//! * A read never joins a GET that was sent before it came. The owner may have answered it before a
//!   write, and the write may have been acknowledged before the read. GETs that wait to be sent go
//!   in one message.
//! * A fill may ask the shard's old owner first. If that has no row, or is late, the database is
//!   read.
//! * At the owner a read joins a fill only if no write has begun since, and only in the fill's
//!   first second.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::custody::Ticket;
use crate::identity::{Incarnation, MemberId};
use crate::io::{Action, Io};
use crate::message::{Message, RowKey};

/// Who wants a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A client of this instance.
    Client(u64),
    /// Another instance: its process, and the number of its question.
    Instance(MemberId, Incarnation, u64),
}

/// A fill.
#[derive(Debug, Clone)]
pub struct Fill {
    pub key: RowKey,
    /// `None` where the row is only read, not cached.
    pub ticket: Option<Ticket>,
    pub readers: Vec<Asker>,
    pub began: Time,
    /// The old owner that was asked for the row, and when.
    pulled: Option<(MemberId, Time)>,
}

#[derive(Debug, Default, Clone)]
pub struct Lookups {
    next: u64,
    /// Reads of the database under way.
    fills: BTreeMap<u64, Fill>,
    /// GETs that were sent.
    asked: BTreeMap<u64, Asked>,
    /// What each owner is to be asked next, while it has not answered the last GET.
    waiting: BTreeMap<MemberId, Vec<(RowKey, Vec<u64>)>>,
    /// How many questions each owner has not answered.
    outstanding: BTreeMap<MemberId, usize>,
}

#[derive(Debug, Clone)]
struct Asked {
    owner: MemberId,
    key: RowKey,
    clients: Vec<u64>,
    sent: Time,
}

impl Lookups {
    /// Reads a row from the database; caches it where there is a ticket.
    pub fn read(
        &mut self,
        key: RowKey,
        ticket: Option<Ticket>,
        readers: Vec<Asker>,
        io: &mut Io<'_>,
    ) {
        self.next += 1;
        io.actions.push(Action::ReadRow { id: self.next, key: key.clone() });
        let (began, pulled) = (io.now, None);
        self.fills.insert(self.next, Fill { key, ticket, readers, began, pulled });
    }

    /// Asks the old owner of a row's shard for it: what to send.
    pub fn pull(
        &mut self,
        from: MemberId,
        key: RowKey,
        ticket: Ticket,
        reader: Asker,
        now: Time,
    ) -> Message {
        self.next += 1;
        let (ticket, readers, pulled) = (Some(ticket), vec![reader], Some((from, now)));
        let message = Message::Pull { number: self.next, key: key.clone() };
        self.fills.insert(self.next, Fill { key, ticket, readers, began: now, pulled });
        message
    }

    /// An old owner has answered a PULL.
    pub fn pulled(&mut self, from: MemberId, number: u64) -> Option<Fill> {
        self.fills.get(&number)?.pulled.filter(|(asked, _)| *asked == from)?;
        self.fills.remove(&number)
    }

    /// A row that the old owner has not, or not any more: the database is asked.
    pub fn read_instead(&mut self, fill: Fill, io: &mut Io<'_>) {
        self.next += 1;
        io.actions.push(Action::ReadRow { id: self.next, key: fill.key.clone() });
        self.fills.insert(self.next, Fill { pulled: None, ..fill });
    }

    /// PULLs that were not answered in time are read from the database.
    pub fn pulls_overdue(&mut self, config: &Config, io: &mut Io<'_>) {
        let late = |fill: &Fill| fill.pulled.is_some_and(|(_, sent)| io.now >= sent + config.get);
        let late: Vec<_> = self.fills.iter().filter(|(_, f)| late(f)).map(|(n, _)| *n).collect();
        for number in late {
            if let Some(fill) = self.fills.remove(&number) {
                coverage_mark!(PullUnanswered);
                self.read_instead(fill, io);
            }
        }
    }

    /// Joins a fill of this row that `may` still be joined.
    pub fn join(
        &mut self,
        key: &RowKey,
        reader: Asker,
        now: Time,
        config: &Config,
        may: impl Fn(Ticket) -> bool,
    ) -> bool {
        let fill = self.fills.values_mut().find(|fill| {
            fill.key == *key && now < fill.began + config.join_fill && fill.ticket.is_some_and(&may)
        });
        let Some(fill) = fill else { return false };
        coverage_mark!(FillJoined);
        fill.readers.push(reader);
        true
    }

    /// The database has answered a read.
    pub fn filled(&mut self, id: u64) -> Option<Fill> {
        self.fills.get(&id)?.pulled.is_none().then(|| self.fills.remove(&id))?
    }

    /// Asks an owner for a client. What waits already for this row waits together.
    pub fn ask(&mut self, owner: MemberId, key: RowKey, client: u64) {
        let waiting = self.waiting.entry(owner).or_default();
        match waiting.iter_mut().find(|(k, _)| *k == key) {
            Some((_, clients)) => {
                coverage_mark!(GetJoined);
                clients.push(client);
            }
            None => waiting.push((key, vec![client])),
        }
    }

    /// What waits goes in one message to each owner that has answered the last.
    pub fn send(&mut self, now: Time) -> Vec<(MemberId, Message)> {
        let mut out = Vec::new();
        let outstanding = &self.outstanding;
        let free = |owner: &MemberId| outstanding.get(owner).is_none_or(|n| *n == 0);
        let owners: Vec<_> = self.waiting.keys().filter(|o| free(o)).copied().collect();
        for owner in owners {
            let mut wanted = Vec::new();
            for (key, clients) in self.waiting.remove(&owner).unwrap_or_default() {
                self.next += 1;
                wanted.push((self.next, key.clone()));
                self.asked.insert(self.next, Asked { owner, key, clients, sent: now });
            }
            self.outstanding.insert(owner, wanted.len());
            out.push((owner, Message::Get { wanted }));
        }
        out
    }

    /// An owner has answered one: the row's key and who wants it.
    pub fn found(&mut self, from: MemberId, number: u64) -> Option<(RowKey, Vec<u64>)> {
        if self.asked.get(&number)?.owner != from {
            return None;
        }
        let asked = self.asked.remove(&number)?;
        self.answered(from);
        Some((asked.key, asked.clients))
    }

    /// GETs that were not answered in time; whoever wants the rows asks the database.
    pub fn overdue(&mut self, now: Time, config: &Config) -> Vec<(RowKey, Vec<u64>)> {
        let late: Vec<_> = self
            .asked
            .iter()
            .filter(|(_, asked)| now >= asked.sent + config.get)
            .map(|(number, asked)| (*number, asked.owner))
            .collect();
        let mut rows = Vec::new();
        for (number, owner) in late {
            coverage_mark!(GetUnanswered);
            if let Some(asked) = self.asked.remove(&number) {
                rows.push((asked.key, asked.clients));
            }
            self.answered(owner);
        }
        rows
    }

    fn answered(&mut self, owner: MemberId) {
        if let Some(left) = self.outstanding.get_mut(&owner) {
            *left = left.saturating_sub(1);
        }
    }
}
