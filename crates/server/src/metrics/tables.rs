//! Requests of each table, by what answered them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use parking_lot::RwLock;
use uuid::Uuid;

use super::{Exposition, Family, Kind, Label, Path};

/// Tables that are counted one by one on a reactor. Further ones are counted together.
const MOST_TABLES: usize = 1_000;

/// One reactor's counters by table. Only that reactor counts.
#[derive(Debug, Default)]
pub struct TableMetrics {
    tables: RwLock<HashMap<Uuid, Arc<Family<Path>>, BuildHasherDefault<IdHasher>>>,
    others: Family<Path>,
}

impl TableMetrics {
    /// One more request of a table was answered.
    pub fn count(&self, table: Uuid, path: Path) {
        if let Some(counters) = self.tables.read().get(&table) {
            return counters.inc(path);
        }
        let mut tables = self.tables.write();
        if tables.len() < MOST_TABLES {
            tables.entry(table).or_default().inc(path);
        } else {
            self.others.inc(path);
        }
    }
}

/// Sums of counters, in the order of [`Path::ALL`].
type Counts = Vec<u64>;

/// The requests of each table over several reactors; under no id those of all further tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TableFigures(BTreeMap<Option<Uuid>, Counts>);

impl TableFigures {
    /// Sums up.
    pub(super) fn sum<'a>(shards: impl Iterator<Item = &'a TableMetrics>) -> TableFigures {
        let mut sum = TableFigures::default();
        for shard in shards {
            shard.tables.read().iter().for_each(|(id, counters)| sum.add(Some(*id), counters));
            sum.add(None, &shard.others);
        }
        sum
    }

    fn add(&mut self, id: Option<Uuid>, counters: &Family<Path>) {
        let counts = self.0.entry(id).or_insert_with(|| vec![0; Path::ALL.len()]);
        for (count, path) in counts.iter_mut().zip(Path::ALL) {
            *count += counters.of(*path).get();
        }
    }

    /// Shows them. `name` gives keyspace and table; tables that are gone are left out.
    pub fn expose(&self, out: &mut Exposition, name: impl Fn(Uuid) -> Option<(String, String)>) {
        const NAME: &str = "afterglow_table_requests_total";
        out.header(NAME, Kind::Counter, "Requests by table and by what answered them.");
        for (id, counts) in &self.0 {
            let Some((keyspace, table)) = id.map_or(Some(Default::default()), &name) else {
                continue;
            };
            for (count, path) in counts.iter().zip(Path::ALL).filter(|(count, _)| **count > 0) {
                let labels = [
                    ("frontend", "cql"),
                    ("keyspace", &keyspace),
                    ("table", &table),
                    (Path::NAME, path.word()),
                ];
                out.sample(NAME, &labels, count);
            }
        }
    }
}

/// Ids of tables are spread well enough for a multiplication.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            let mixed = self.0.rotate_left(23) ^ u64::from_le_bytes(word);
            self.0 = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        self.0 ^= self.0 >> 29;
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
            shards[shard].count(Uuid::from_u128(id), path);
        }
        let text = shown(&shards);
        let line = |path: &str, count: u64| {
            format!(
                "afterglow_table_requests_total{{frontend=\"cql\",keyspace=\"ks\",table=\"t1\",path=\"{path}\"}} {count}"
            )
        };
        assert!(text.contains(&line("dram", 2)) && text.contains(&line("miss", 1)), "{text}");
        assert!(!text.contains("t7") && !text.contains("flash"), "{text}");
    }

    #[test]
    fn beyond_so_many_tables_the_others_are_counted_together() {
        let shard = TableMetrics::default();
        for id in 0..MOST_TABLES as u128 + 5 {
            shard.count(Uuid::from_u128(id + 10), Path::Write);
        }
        let text = shown(&[shard]);
        assert!(text.contains("keyspace=\"\",table=\"\",path=\"write\"} 5"), "{text}");
    }
}
