//! Requests of each table: by what answered them, and why the cache did not.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::RwLock;
use uuid::Uuid;

use super::{Exposition, Family, Kind, Label, MissReason, OwnCounter, PassReason, Path};

/// Tables that are counted one by one on a reactor. Further ones are counted together.
const MOST_TABLES: usize = 1_000;

/// Upper bounds of the ages of hits, in seconds: from a second to a week. Above is one bucket more.
const AGES: [u32; 8] = [1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800];

/// One table's counters.
#[derive(Debug, Default)]
pub struct TableCounters {
    requests: Family<Path>,
    misses: Family<MissReason>,
    passes: Family<PassReason>,
    /// Hits by the age of what was served.
    ages: [OwnCounter; AGES.len() + 1],
    /// The sum of these ages.
    age_seconds: OwnCounter,
}

impl TableCounters {
    /// A hit was served that was filled so many seconds ago.
    pub fn served(&self, age: u32) {
        // A few comparisons without a branch.
        let bucket: usize = AGES.iter().map(|bound| usize::from(age > *bound)).sum();
        self.ages[bucket].inc();
        self.age_seconds.add(age.into());
    }

    /// One more request was answered.
    pub fn answered(&self, path: Path) {
        self.requests.inc(path);
    }

    /// The cache could have answered a read, and had nothing to answer it with.
    pub fn missed(&self, reason: MissReason) {
        self.misses.inc(reason);
    }

    /// A read went to the database without a look into the cache.
    pub fn passed(&self, reason: PassReason) {
        self.passes.inc(reason);
    }
}

/// One reactor's counters by table. Only that reactor counts.
#[derive(Debug, Default)]
pub struct TableMetrics {
    tables: RwLock<HashMap<Uuid, Arc<TableCounters>>>,
    others: Arc<TableCounters>,
}

impl TableMetrics {
    /// A table's counters. A request looks them up once, when it comes.
    pub fn of(&self, table: Uuid) -> Arc<TableCounters> {
        if let Some(counters) = self.tables.read().get(&table) {
            return counters.clone();
        }
        let mut tables = self.tables.write();
        if tables.len() < MOST_TABLES {
            tables.entry(table).or_default().clone()
        } else {
            self.others.clone()
        }
    }

    /// Forgets tables that are gone: others take their places.
    pub(super) fn retain(&self, is_there: impl Fn(Uuid) -> bool) {
        self.tables.write().retain(|id, _| is_there(*id));
    }
}

/// Sums of one table's counters, each in the order of its label's values.
#[derive(Debug, PartialEq, Eq)]
struct TableCounts {
    requests: Vec<u64>,
    misses: Vec<u64>,
    passes: Vec<u64>,
    ages: [u64; AGES.len() + 1],
    age_seconds: u64,
}

impl Default for TableCounts {
    fn default() -> Self {
        Self {
            requests: vec![0; Path::ALL.len()],
            misses: vec![0; MissReason::ALL.len()],
            passes: vec![0; PassReason::ALL.len()],
            ages: [0; AGES.len() + 1],
            age_seconds: 0,
        }
    }
}

impl TableCounts {
    fn add(&mut self, counters: &TableCounters) {
        add(&mut self.requests, &counters.requests);
        add(&mut self.misses, &counters.misses);
        add(&mut self.passes, &counters.passes);
        for (sum, count) in self.ages.iter_mut().zip(&counters.ages) {
            *sum += count.get();
        }
        self.age_seconds += counters.age_seconds.get();
    }
}

fn add<L: Label>(counts: &mut [u64], counters: &Family<L>) {
    for (count, label) in counts.iter_mut().zip(L::ALL) {
        *count += counters.of(*label).get();
    }
}

/// The requests of each table over several reactors; under no id those of all further tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TableFigures(BTreeMap<Option<Uuid>, TableCounts>);

impl TableFigures {
    /// Sums up.
    pub(super) fn sum<'a>(shards: impl Iterator<Item = &'a TableMetrics>) -> TableFigures {
        let mut sum = TableFigures::default();
        for shard in shards {
            for (id, counters) in shard.tables.read().iter() {
                sum.0.entry(Some(*id)).or_default().add(counters);
            }
            sum.0.entry(None).or_default().add(&shard.others);
        }
        sum
    }

    /// Shows them. `name` gives keyspace and table; tables that are gone are left out.
    pub fn expose(&self, out: &mut Exposition, name: impl Fn(Uuid) -> Option<(String, String)>) {
        let tables: Vec<_> = self
            .0
            .iter()
            .filter_map(|(id, counts)| Some((id.map_or(Some(Default::default()), &name)?, counts)))
            .collect();
        family::<Path>(
            out,
            ("afterglow_table_requests_total", "Requests by table and by what answered them."),
            tables.iter().map(|(name, counts)| (name, &counts.requests)),
        );
        family::<MissReason>(
            out,
            (
                "afterglow_table_misses_total",
                "Cacheable reads that were not answered from the cache, by table and reason.",
            ),
            tables.iter().map(|(name, counts)| (name, &counts.misses)),
        );
        family::<PassReason>(
            out,
            (
                "afterglow_table_passes_total",
                "Reads that went to the database without a look into the cache, by table and reason.",
            ),
            tables.iter().map(|(name, counts)| (name, &counts.passes)),
        );
        ages(out, &tables);
    }
}

/// Shows how old hits were, of tables that have any.
fn ages(out: &mut Exposition, tables: &[((String, String), &TableCounts)]) {
    const NAME: &str = "afterglow_table_hit_age_seconds";
    let help = "Time since the fill of what answered a hit, by table.";
    out.header(NAME, Kind::Histogram, help);
    let with_hits =
        |(_, counts): &&((String, String), &TableCounts)| counts.ages.iter().any(|n| *n > 0);
    for ((keyspace, table), counts) in tables.iter().filter(with_hits) {
        let labels = [("frontend", "cql"), ("keyspace", keyspace), ("table", table)];
        let bounds = AGES.iter().copied().map(Some).chain([None]);
        out.seconds(NAME, &labels, bounds.zip(counts.ages), counts.age_seconds);
    }
}

/// Shows the counters of one kind that are not zero.
fn family<'a, L: Label>(
    out: &mut Exposition,
    (family, help): (&str, &str),
    tables: impl Iterator<Item = (&'a (String, String), &'a Vec<u64>)>,
) {
    out.header(family, Kind::Counter, help);
    for ((keyspace, table), counts) in tables {
        for (count, label) in counts.iter().zip(L::ALL).filter(|(count, _)| **count > 0) {
            let labels = [
                ("frontend", "cql"),
                ("keyspace", keyspace),
                ("table", table),
                (L::NAME, label.word()),
            ];
            out.sample(family, &labels, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(shards: &[TableMetrics]) -> String {
        let mut out = Exposition::default();
        TableFigures::sum(shards.iter()).expose(&mut out, |id| {
            (id.as_u128() != 7).then(|| ("ks".to_owned(), format!("t{}", id.as_u128())))
        });
        out.finish()
    }

    #[test]
    fn tables_are_summed_over_reactors_and_those_that_are_gone_left_out() {
        let shards = [TableMetrics::default(), TableMetrics::default()];
        for (shard, id, path) in
            [(0, 1, Path::Dram), (1, 1, Path::Dram), (1, 1, Path::Miss), (0, 7, Path::Dram)]
        {
            shards[shard].of(Uuid::from_u128(id)).answered(path);
        }
        shards[0].of(Uuid::from_u128(1)).missed(MissReason::Absent);
        shards[1].of(Uuid::from_u128(1)).passed(PassReason::NotOneRow);
        let text = shown(&shards);
        let table = "frontend=\"cql\",keyspace=\"ks\",table=\"t1\"";
        for line in [
            format!("afterglow_table_requests_total{{{table},path=\"dram\"}} 2"),
            format!("afterglow_table_requests_total{{{table},path=\"miss\"}} 1"),
            format!("afterglow_table_misses_total{{{table},reason=\"absent\"}} 1"),
            format!("afterglow_table_passes_total{{{table},reason=\"not_one_row\"}} 1"),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(!text.contains("t7") && !text.contains("flash"), "{text}");
    }

    #[test]
    fn hits_are_counted_by_their_age() {
        let shards = [TableMetrics::default(), TableMetrics::default()];
        for (shard, age) in [(0, 0), (1, 1), (0, 2), (1, 604_800), (0, 604_801)] {
            shards[shard].of(Uuid::from_u128(1)).served(age);
        }
        shards[0].of(Uuid::from_u128(2)).answered(Path::Miss);
        let text = shown(&shards);
        let (name, table) =
            ("afterglow_table_hit_age_seconds", "frontend=\"cql\",keyspace=\"ks\",table=\"t1\"");
        for (le, count) in [("1.0", 2), ("10.0", 3), ("86400.0", 3), ("604800.0", 4), ("+Inf", 5)] {
            let line = format!("{name}_bucket{{{table},le=\"{le}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(text.contains(&format!("{name}_sum{{{table}}} 1209604\n")), "{text}");
        assert!(text.contains(&format!("{name}_count{{{table}}} 5\n")), "{text}");
        assert!(!text.contains(&format!("{name}_count{{{}", table.replace("t1", "t2"))), "{text}");
    }

    #[test]
    fn beyond_so_many_tables_the_others_are_counted_together() {
        let shard = TableMetrics::default();
        for id in 0..MOST_TABLES as u128 + 5 {
            shard.of(Uuid::from_u128(id + 10)).answered(Path::Write);
        }
        let shards = [shard];
        let text = shown(&shards);
        assert!(text.contains("keyspace=\"\",table=\"\",path=\"write\"} 5"), "{text}");
        shards[0].retain(|id| id.as_u128() != 10);
        shards[0].of(Uuid::from_u128(8)).answered(Path::Dram);
        assert!(shown(&shards).contains("table=\"t8\",path=\"dram\"} 1"), "a place is free");
    }
}
