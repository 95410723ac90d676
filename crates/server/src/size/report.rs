//! What `afterglow size` prints.

use serde::Serialize;

use super::{HitRatio, Lifetime, Plan, Popularity, Replay};
use crate::{config::Size, inspect};

const SECONDS_A_DAY: f64 = 86_400.0;

/// Requests a second, where they are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// Reads; those that miss become sets.
    pub reads: Option<f64>,
    /// Sets besides those after misses.
    pub sets: Option<f64>,
}

impl Rates {
    /// Sets a second, those after misses among them.
    fn all_sets(&self, hits: HitRatio) -> Option<f64> {
        let after_misses = self.reads.map(|reads| reads * hits.miss());
        match (self.sets, after_misses) {
            (None, None) => None,
            (sets, misses) => Some(sets.unwrap_or(0.0) + misses.unwrap_or(0.0)),
        }
    }
}

/// A planned cache and what it does. Sizes are bytes, shares are of 1.
#[derive(Debug, Clone, Serialize)]
pub struct Estimate {
    /// Objects in all.
    pub objects: u64,
    /// Bytes of key and value of one.
    pub object_size: u64,
    /// Where popularity comes from.
    pub popularity: String,
    /// `--memory`.
    pub memory: u64,
    /// Parts of each value, where no record holds it.
    pub parts: Option<u64>,
    /// `--memcache-item-size`, where the default is too small.
    pub item_size: Option<u64>,
    /// Of the memory, the index.
    pub index: u64,
    /// Of it, objects.
    pub dram: u64,
    /// Objects in memory.
    pub objects_in_dram: u64,
    /// Flash.
    pub flash: u64,
    /// Objects on flash.
    pub objects_on_flash: u64,
    /// Whether the index has slots for fewer objects than flash has space for.
    pub index_is_short: bool,
    /// Share of reads answered from memory.
    pub dram_hits: f64,
    /// Share of reads answered from flash.
    pub flash_hits: f64,
    /// Share of reads that miss.
    pub misses: f64,
    /// Of the misses, the first read of each object of a trace.
    pub first_reads: Option<f64>,
    /// Bytes written for one set, at most.
    pub written_a_set: f64,
    /// Sets a second, with those after misses.
    pub sets: Option<f64>,
    /// Bytes written a day.
    pub written_a_day: Option<f64>,
    /// A `--write-budget` that does not refuse these sets, in bytes a second; none without sets.
    pub write_budget: Option<u64>,
}

impl Estimate {
    /// Of objects whose popularity follows Zipf's law.
    pub fn zipf(plan: &Plan, exponent: f64, lifetime: Lifetime, rates: Rates) -> Self {
        let popularity = Popularity::zipf(plan.objects.count, exponent);
        let hits = popularity.hit_ratio(plan.in_dram, plan.on_flash, lifetime);
        Self::of(plan, format!("Zipf {exponent}"), hits, None, rates)
    }

    /// Of the requests of a trace.
    pub fn trace(plan: &Plan, replay: &Replay, rates: Rates) -> Self {
        let hits = replay.hit_ratio(plan);
        let name = format!("a trace of {} requests", thousands(replay.requests() as u64));
        Self::of(plan, name, hits, Some(replay.first_reads()), rates)
    }

    fn of(
        plan: &Plan,
        popularity: String,
        hits: HitRatio,
        first_reads: Option<f64>,
        rates: Rates,
    ) -> Self {
        let sets = rates.all_sets(hits);
        let written_a_set = plan.written.total();
        let written_a_second = sets.map(|sets| sets * written_a_set);
        Self {
            objects: plan.objects.count,
            object_size: plan.objects.size,
            popularity,
            memory: plan.memory.get(),
            parts: Some(plan.layout.parts).filter(|parts| *parts > 0),
            item_size: plan.item_size.map(Size::get),
            index: plan.outlook.index_bytes,
            dram: plan.outlook.dram,
            objects_in_dram: plan.in_dram,
            flash: plan.outlook.flash,
            objects_on_flash: plan.on_flash,
            index_is_short: plan.layout.on_flash(&plan.outlook)
                < plan.layout.fit_flash(&plan.outlook),
            dram_hits: hits.dram,
            flash_hits: hits.flash,
            misses: hits.miss(),
            first_reads,
            written_a_set,
            sets,
            written_a_day: written_a_second.map(|bytes| bytes * SECONDS_A_DAY),
            write_budget: written_a_second.filter(|bytes| *bytes > 0.0).map(|b| b.ceil() as u64),
        }
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = inspect::size;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let objects = thousands(self.objects);
        writeln!(f, "{objects} objects of {} bytes, {}\n", self.object_size, self.popularity)?;
        let flags = (Size::bytes(self.memory), Size::bytes(self.flash));
        writeln!(f, "configure   --memory {} and flash of {}", flags.0, flags.1)?;
        if let Some(most) = self.item_size {
            writeln!(f, "            --memcache-item-size {}", Size::bytes(most))?;
        }
        writeln!(
            f,
            "memory      {} are index, {} hold objects",
            size(self.index),
            size(self.dram)
        )?;
        if let Some(parts) = self.parts {
            writeln!(f, "values      in {parts} parts each, on flash alone")?;
        }
        writeln!(f, "in memory   {} objects", thousands(self.objects_in_dram.min(self.objects)))?;
        let kept = self.objects_on_flash.min(self.objects);
        let share = percent(kept as f64 / self.objects as f64);
        writeln!(f, "on flash    {} objects, {share} of all", thousands(kept))?;
        if self.index_is_short && kept < self.objects {
            let why =
                "the index has fewer slots than flash has space: more --memory, or more flash";
            writeln!(f, "            {why}")?;
        }
        writeln!(f, "\nreads       {} from memory", percent(self.dram_hits))?;
        writeln!(f, "            {} from flash", percent(self.flash_hits))?;
        write!(f, "            {} miss", percent(self.misses))?;
        match self.first_reads {
            Some(share) => writeln!(f, ", {} because an object is read first", percent(share))?,
            None => writeln!(f)?,
        }
        writeln!(f, "\nwear        {:.0} bytes written for a set, at most", self.written_a_set)?;
        if let (Some(sets), Some(day)) = (self.sets, self.written_a_day) {
            let sets = thousands(sets.round() as u64);
            writeln!(f, "            {} a day of {sets} sets a second", size(day as u64))?;
            if let Some(budget) = self.write_budget {
                let budget = budget.div_ceil(1000);
                writeln!(f, "            --write-budget {budget}KB refuses none of them")?;
            }
        } else {
            writeln!(f, "            say --sets or --reads a second for what that is a day")?;
        }
        Ok(())
    }
}

/// `1,234,567`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::{Objects, Wishes};

    #[test]
    fn wear_follows_from_sets_and_from_reads_that_miss() {
        let objects = Objects { count: 1_000_000, size: 300 };
        let plan = Plan::find(objects, Wishes::default()).unwrap();
        let rates = Rates { reads: Some(1e6), sets: Some(1000.0) };
        let estimate = Estimate::zipf(&plan, 0.99, Lifetime::Unbounded, rates);
        assert!(estimate.misses < 1e-6, "all fit");
        let day = estimate.written_a_day.unwrap();
        let expected = 1000.0 * 86_400.0 * plan.written.total();
        assert!((day / expected - 1.0).abs() < 0.01, "{day} {expected}");
        assert!(estimate.write_budget.unwrap() as f64 * 86_400.0 >= day);
        let none = Estimate::zipf(&plan, 0.99, Lifetime::Unbounded, Rates::default());
        assert!(none.written_a_day.is_none() && none.to_string().contains("--sets or --reads"));
    }

    #[test]
    fn without_a_set_no_write_budget_is_advised_that_serve_would_refuse() {
        let plan = Plan::find(Objects { count: 1000, size: 300 }, Wishes::default()).unwrap();
        let rates = Rates { reads: None, sets: Some(0.0) };
        let estimate = Estimate::zipf(&plan, 0.99, Lifetime::Unbounded, rates);
        assert_eq!(estimate.write_budget, None);
        let text = estimate.to_string();
        assert!(text.contains("0 B a day of 0 sets") && !text.contains("budget"), "{text}");
    }

    #[test]
    fn more_memory_is_advised_only_where_objects_have_no_slot() {
        let objects = Objects { count: 100_000_000, size: 100 };
        let advice = |wishes: Wishes| {
            let plan = Plan::find(objects, wishes).unwrap();
            let estimate = Estimate::zipf(&plan, 0.99, Lifetime::Unbounded, Rates::default());
            assert!(estimate.index_is_short, "no test");
            estimate.to_string().contains("more --memory")
        };
        assert!(!advice(Wishes::default()), "all objects fit the plan");
        let (flash, memory) = (Some(Size::bytes(32 << 30)), Some(Size::bytes(512 << 20)));
        assert!(advice(Wishes { flash, memory }), "a part of them fits");
    }

    #[test]
    fn large_numbers_have_separators() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
