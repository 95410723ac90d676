//! Operations on partitions of several rows: YCSB E, whose scans are slices of a clustering, and
//! feeds, of which the newest rows are read.
//!
//! Every row that a slice has is verified, and so is which rows it has. One whose insert was
//! acknowledged before the slice was asked for must be in it, in its place. One whose insert was on
//! its way may be.

use afterglow_cql::{
    frame::{Version, notation::Reader},
    message::Consistency,
};

use super::{
    Answer, Connection, CqlError, Template,
    answer::rows,
    driver::{Done, Op, Work},
    options::{Quota, RunOptions},
    record::{Insert, Place, key},
    table::TableSpec,
};
use crate::{
    rng::Rng,
    values::KEY_LEN,
    ycsb::{Action, Growth, KeyChooser, Workload},
};

/// What there is, and what is added; threads share it.
pub(super) enum Slices {
    /// E: records one after the other, so many to a partition.
    Records(Growth),
    /// The rows of each feed.
    Feeds(Vec<Growth>),
}

impl Slices {
    /// E's: as many as the table has records.
    pub(super) fn of_records(table: &TableSpec) -> Self {
        Slices::Records(Growth::new(table.records))
    }

    /// Asks how many rows each feed has.
    ///
    /// # Errors
    /// When it cannot be read, or has none.
    pub(super) fn of_feeds(table: &TableSpec, from: &mut Connection) -> Result<Self, CqlError> {
        let feeds = (0..table.partitions()).map(|feed| {
            let text = table.newest(&String::from_utf8_lossy(&key(feed)));
            let rows = from.query(&text, Consistency::LocalQuorum)?;
            let newest = rows.first().and_then(|row| row.first().cloned().flatten());
            let missing = || CqlError::Unexpected(format!("feed {feed} has no rows"));
            let newest = Reader::new(&newest.ok_or_else(missing)?).int()?;
            Ok(Growth::new(newest as u64 + 1))
        });
        Ok(Slices::Feeds(feeds.collect::<Result<_, CqlError>>()?))
    }

    /// Records there may be now.
    pub(super) fn issued(&self) -> u64 {
        match self {
            Slices::Records(growth) => growth.issued(),
            Slices::Feeds(feeds) => feeds.iter().map(Growth::issued).sum(),
        }
    }
}

/// One thread's choices and checks.
pub(super) struct SliceWork<'a> {
    options: &'a RunOptions,
    workload: Workload,
    version: Version,
    select: Option<Template>,
    insert: Option<Insert>,
    chooser: KeyChooser,
    slices: &'a Slices,
    rng: Rng,
    quota: Quota,
    verified: u64,
}

impl<'a> SliceWork<'a> {
    pub(super) fn new(
        options: &'a RunOptions,
        workload: Workload,
        thread: usize,
        chooser: KeyChooser,
        slices: &'a Slices,
    ) -> Self {
        Self {
            options,
            workload,
            version: options.connect.version,
            select: None,
            insert: None,
            chooser,
            slices,
            rng: Rng::new(options.seed(thread)),
            quota: Quota::new(options, thread),
            verified: 0,
        }
    }

    /// Reads whose every byte was checked.
    pub(super) fn verified(&self) -> u64 {
        self.verified
    }

    /// A slice's request; its operation remembers how many rows there were then, and its length.
    fn scan(&mut self, stream: u16, out: &mut Vec<u8>) -> Option<Op> {
        let (table, length) = (&self.options.load.table, self.workload.scan_length(&mut self.rng));
        let chosen = self.chooser.next(&mut self.rng);
        let template = self.select.as_ref()?;
        let envelope = template.append(stream, out);
        let (op, partition) = match self.slices {
            Slices::Feeds(feeds) => {
                let known = feeds[chosen as usize].limit();
                (Op { note: [known, length], ..Op::new(chosen, false) }, chosen)
            }
            Slices::Records(growth) => {
                let rows = u64::from(table.partition_rows);
                // Moved back from the end of its partition, so that it has its length.
                let row = (chosen % rows).min(rows.saturating_sub(length));
                let start = chosen - chosen % rows + row;
                envelope[template.place(1)].copy_from_slice(&(row as u32).to_be_bytes());
                let note = [growth.limit(), length];
                (Op { note, ..Op::new(start, false) }, chosen / rows)
            }
        };
        envelope[template.place(0)].copy_from_slice(&key(partition));
        let last = if self.workload == Workload::Feed { 1 } else { 2 };
        envelope[template.place(last)].copy_from_slice(&(length as u32).to_be_bytes());
        Some(op)
    }

    fn add(&mut self, stream: u16, out: &mut Vec<u8>) -> Option<Op> {
        let table = &self.options.load.table;
        let (op, place) = match self.slices {
            Slices::Records(growth) => {
                let number = growth.next();
                (Op::new(number, true), Place::of(table, number))
            }
            Slices::Feeds(feeds) => {
                let feed = self.chooser.next(&mut self.rng);
                let row = feeds[feed as usize].next();
                let op = Op { note: [row, 0], ..Op::new(feed, true) };
                (op, Place { partition: feed, row: Some(row as u32) })
            }
        };
        self.insert.as_ref()?.append(table, place, stream, out);
        Some(op)
    }

    /// Whether the rows are those of the slice that `op` asked for.
    fn judge(&mut self, op: Op, message: &[u8]) -> Result<Done, CqlError> {
        let table = &self.options.load.table;
        let ([known, length], rows) = (op.note, rows(self.version, message)?);
        let (mut found, mut sound) = (Vec::with_capacity(rows.count), true);
        let partition = match self.slices {
            Slices::Records(_) => Place::of(table, op.number).partition,
            Slices::Feeds(_) => op.number,
        };
        for row in rows.iter() {
            let row = row?;
            let at = row.cells().nth(1).flatten().and_then(|cell| Reader::new(cell).int().ok());
            let at = at.unwrap_or(-1) as u32;
            sound &= Place { partition, row: Some(at) }.holds(table, &row);
            found.push(u64::from(at));
        }
        self.verified += 1;
        if found.is_empty() {
            return Ok(Done::NotFound);
        }
        let in_place = match self.slices {
            Slices::Records(growth) => {
                let rows = u64::from(table.partition_rows);
                let (first, base) = (op.number % rows, op.number - op.number % rows);
                let must = length.min(rows - first).min(known.saturating_sub(op.number));
                let end = rows.min(growth.issued() - base);
                is_run(&found, first, must, length, end)
            }
            Slices::Feeds(feeds) => {
                let issued = feeds[op.number as usize].issued();
                is_newest(&found, known, length, issued)
            }
        };
        Ok(if sound && in_place { Done::Fine } else { Done::Wrong })
    }
}

/// Whether a slice of at most `length` rows has the `must` rows from `first` on, and after them
/// only later ones below `end`.
fn is_run(found: &[u64], first: u64, must: u64, length: u64, end: u64) -> bool {
    let known = found.iter().copied().take(must as usize).eq(first..first + must);
    let ascending = found.windows(2).all(|two| two[0] < two[1]);
    known && ascending && found.len() as u64 <= length && found.iter().all(|at| *at < end)
}

/// Whether these are the newest `length` rows of a feed that had those below `known` and may have
/// some below `issued`.
fn is_newest(found: &[u64], known: u64, length: u64, issued: u64) -> bool {
    let descending = found.windows(2).all(|two| two[0] > two[1]);
    let new = found.iter().take_while(|at| **at >= known).count();
    let old = found[new..].iter().copied();
    let whole = length.min(known + new as u64);
    let gapless = old.eq((0..known).rev().take((whole as usize).saturating_sub(new)));
    descending && gapless && found.len() as u64 == whole && found.iter().all(|at| *at < issued)
}

impl Work for SliceWork<'_> {
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError> {
        let table = &self.options.load.table;
        let (version, consistency) = (connection.version(), self.options.consistency);
        let newest = self.workload == Workload::Feed;
        let select = connection.prepare(&table.slice(newest))?;
        let lengths: &[usize] = if newest { &[KEY_LEN, 4] } else { &[KEY_LEN, 4, 4] };
        self.select = Some(Template::new(version, &select, lengths, consistency));
        self.insert = Some(Insert::prepare(connection, table, consistency)?);
        Ok(())
    }

    fn start(&mut self, stream: u16, out: &mut Vec<u8>, _: u64) -> Option<Op> {
        self.quota.take()?;
        if let Slices::Records(growth) = self.slices {
            self.chooser.grow(growth.limit());
        }
        match self.workload.mix().draw(&mut self.rng) {
            Action::Insert => self.add(stream, out),
            _ => self.scan(stream, out),
        }
    }

    fn finish(&mut self, op: Op, answer: &Answer<'_>, _: u64) -> Result<Done, CqlError> {
        match answer {
            Answer::Rows(message) if !op.write => self.judge(op, message),
            Answer::Done if op.write => {
                match self.slices {
                    Slices::Records(growth) => growth.acknowledge(op.number),
                    Slices::Feeds(feeds) => feeds[op.number as usize].acknowledge(op.note[0]),
                }
                Ok(Done::Fine)
            }
            Answer::Error(error) => Ok(Done::Refused(error.clone())),
            other => Err(CqlError::Unexpected(format!("{other:?}"))),
        }
    }

    fn lost(&mut self, _: Op) {}

    fn measure(&mut self) {
        self.quota.begin();
        self.verified = 0;
    }

    fn exhausted(&self) -> bool {
        self.quota.is_spent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_what_was_acknowledged_and_may_have_what_was_on_its_way() {
        // Ten of a partition from row 5 on, of which 12 rows are known, 14 were sent.
        let judge = |found: &[u64]| is_run(found, 5, 7, 10, 14);
        assert!(judge(&[5, 6, 7, 8, 9, 10, 11]));
        assert!(judge(&[5, 6, 7, 8, 9, 10, 11, 13]));
        for (wrong, what) in [
            (vec![5, 6, 7, 8, 9, 10], "one is missing at the end"),
            (vec![5, 6, 7, 9, 10, 11], "one is missing in the middle"),
            (vec![6, 7, 8, 9, 10, 11, 12], "it begins too late"),
            (vec![5, 6, 7, 8, 9, 10, 11, 13, 12], "out of order"),
            (vec![5, 6, 7, 8, 9, 10, 11, 14], "nobody wrote that"),
        ] {
            assert!(!judge(&wrong), "{what}");
        }
        assert!(!is_run(&[5, 6, 7], 5, 2, 2, 14), "more than was asked for");
    }

    #[test]
    fn a_feed_shows_its_newest_rows() {
        // Four of a feed of which 10 rows are known, 13 were sent.
        let judge = |found: &[u64]| is_newest(found, 10, 4, 13);
        assert!(judge(&[9, 8, 7, 6]) && judge(&[12, 10, 9, 8]) && judge(&[12, 11, 10, 9]));
        for (wrong, what) in [
            (vec![8, 7, 6, 5], "the newest is missing"),
            (vec![9, 8, 6, 5], "one is missing in the middle"),
            (vec![9, 8, 7], "too few"),
            (vec![9, 8, 7, 6, 5], "too many"),
            (vec![13, 9, 8, 7], "nobody wrote that"),
        ] {
            assert!(!judge(&wrong), "{what}");
        }
        assert!(is_newest(&[1, 0], 2, 4, 2), "a short feed");
    }
}
