//! Operations on rows that are each a partition: YCSB's workloads but E.
//!
//! A read-modify-write is two requests. The first one's answer is judged as a read. The second
//! follows at once and counts for both: one operation, its latency from the beginning of the first.

use std::collections::VecDeque;

use afterglow_cql::frame::Version;

use super::{
    Answer, Connection, CqlError, Template,
    answer::rows,
    driver::{Done, Op, Work},
    options::{Quota, RunOptions, Verify},
    record::{Insert, Place, key},
};
use crate::{
    rng::Rng,
    values::{self, KEY_LEN},
    ycsb::{Action, Growth, KeyChooser, OpMix},
};

/// Which records are asked for.
pub(super) enum Records {
    /// All that are there.
    All,
    /// These, at least two.
    These(Vec<u64>),
}

impl Records {
    /// The number of the record at a place that a chooser named.
    fn at(&self, place: u64) -> u64 {
        match self {
            Records::All => place,
            Records::These(numbers) => numbers[place as usize],
        }
    }
}

/// Set in the note of a read that a write is to follow.
const FIRST_OF_TWO: u64 = 1;

/// One thread's choices and checks.
pub(super) struct RowWork<'a> {
    options: &'a RunOptions,
    version: Version,
    select: Option<Template>,
    updates: Vec<Template>,
    insert: Option<Insert>,
    mix: OpMix,
    /// Whether it inserts.
    grows: bool,
    chooser: KeyChooser,
    records: &'a Records,
    growth: &'a Growth,
    rng: Rng,
    quota: Quota,
    /// Read-modify-writes whose read was answered, to be written next.
    half_done: VecDeque<Op>,
    /// Read-modify-writes that were begun and have not ended.
    under_way: u64,
    /// Version of the next write; unique among threads.
    next_version: u64,
    reads: u64,
    verified: u64,
}

impl<'a> RowWork<'a> {
    pub(super) fn new(
        options: &'a RunOptions,
        thread: usize,
        chooser: KeyChooser,
        (records, growth): (&'a Records, &'a Growth),
    ) -> Self {
        Self {
            options,
            version: options.connect.version,
            select: None,
            updates: Vec::new(),
            insert: None,
            mix: options.load.mix(),
            grows: options.load.mix().has(Action::Insert),
            chooser,
            records,
            growth,
            rng: Rng::new(options.seed(thread)),
            quota: Quota::new(options, thread),
            half_done: VecDeque::new(),
            under_way: 0,
            next_version: (thread as u64 + 1) << 40,
            reads: 0,
            verified: 0,
        }
    }

    /// Reads whose every byte was checked.
    pub(super) fn verified(&self) -> u64 {
        self.verified
    }

    /// Whether the rows are exactly the one row of record `number`.
    fn judge(&mut self, number: u64, message: &[u8]) -> Result<Done, CqlError> {
        let table = &self.options.load.table;
        let verify = match self.options.verify {
            Verify::None => false,
            Verify::Sample => self.reads.is_multiple_of(64),
            Verify::All => true,
        };
        self.reads += 1;
        // A message as long as a row has one; without verification that has to do.
        if !verify && message.len() as u64 > u64::from(table.fields) * u64::from(table.field_size) {
            return Ok(Done::Fine);
        }
        let rows = rows(self.version, message)?;
        let Some(row) = rows.iter().next() else { return Ok(Done::NotFound) };
        let right = Place { partition: number, row: None }.holds(table, &row?);
        self.verified += 1;
        Ok(if right && rows.count == 1 { Done::Fine } else { Done::Wrong })
    }

    /// The request that writes one field of record `number`.
    fn update(&mut self, number: u64, stream: u16, out: &mut Vec<u8>) {
        let table = &self.options.load.table;
        let field = self.rng.below(u64::from(table.fields)) as u32;
        let template = &self.updates[field as usize];
        let envelope = template.append(stream, out);
        let value = &mut envelope[template.place(0)];
        values::fill(number, field, self.next_version, table.zeros, value);
        envelope[template.place(1)].copy_from_slice(&key(number));
        self.next_version += 1;
    }

    fn read(&self, number: u64, stream: u16, out: &mut Vec<u8>) -> Option<()> {
        let template = self.select.as_ref()?;
        template.append(stream, out)[template.place(0)].copy_from_slice(&key(number));
        Some(())
    }
}

impl Work for RowWork<'_> {
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError> {
        let table = &self.options.load.table;
        let (version, consistency) = (connection.version(), self.options.consistency);
        let select = connection.prepare(&table.select())?;
        self.select = Some(Template::new(version, &select, &[KEY_LEN], consistency));
        if self.mix.has(Action::Update) || self.mix.has(Action::ReadModifyWrite) {
            self.updates.clear();
            for field in 0..table.fields {
                let update = connection.prepare(&table.update(field))?;
                let lengths = [table.field_size as usize, KEY_LEN];
                self.updates.push(Template::of_write(version, &update, &lengths, consistency));
            }
        }
        if self.grows {
            self.insert = Some(Insert::prepare(connection, table, consistency)?);
        }
        Ok(())
    }

    fn start(&mut self, stream: u16, out: &mut Vec<u8>, _: u64) -> Option<Op> {
        if let Some(op) = self.half_done.pop_front() {
            self.update(op.number, stream, out);
            return Some(Op { write: true, ..op });
        }
        self.quota.take()?;
        if self.grows {
            self.chooser.grow(self.growth.limit());
        }
        let number = self.records.at(self.chooser.next(&mut self.rng));
        let mut op = Op::new(number, false);
        match self.mix.draw(&mut self.rng) {
            Action::Update => {
                op.write = true;
                self.update(number, stream, out);
            }
            Action::Insert => {
                op = Op::new(self.growth.next(), true);
                let table = &self.options.load.table;
                self.insert.as_ref()?.append(table, Place::of(table, op.number), stream, out);
            }
            Action::ReadModifyWrite => {
                op.note = [FIRST_OF_TWO, 0];
                self.under_way += 1;
                self.read(number, stream, out)?;
            }
            Action::Read | Action::Scan => self.read(number, stream, out)?,
        }
        Some(op)
    }

    fn finish(&mut self, op: Op, answer: &Answer<'_>, _: u64) -> Result<Done, CqlError> {
        let first_of_two = op.note[0] == FIRST_OF_TWO;
        let done = match answer {
            Answer::Rows(message) if !op.write => self.judge(op.number, message)?,
            Answer::Done if op.write => {
                // Only an insert's number is not there yet.
                if op.number >= self.growth.limit() {
                    self.growth.acknowledge(op.number);
                }
                Done::Fine
            }
            Answer::Error(error) => Done::Refused(error.clone()),
            other => return Err(CqlError::Unexpected(format!("{other:?}"))),
        };
        if first_of_two && !op.write && done == Done::Fine {
            self.half_done.push_back(op);
            return Ok(Done::Again);
        }
        self.under_way -= u64::from(first_of_two);
        Ok(done)
    }

    fn lost(&mut self, op: Op) {
        self.under_way -= u64::from(op.note[0] == FIRST_OF_TWO);
    }

    fn continues(&self) -> bool {
        !self.half_done.is_empty()
    }

    fn measure(&mut self) {
        self.quota.begin();
        self.verified = 0;
    }

    fn exhausted(&self) -> bool {
        self.quota.is_spent() && self.under_way == 0
    }
}
