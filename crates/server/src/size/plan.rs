//! The smallest cache that holds the objects, or what a given one holds.
//!
//! An object that no record holds has its value in parts: these are records of their own, on flash
//! alone, behind a head. All parts of a value count as long as their average.

use afterglow_engine::{Outlook, WrittenByPut};
use afterglow_memcache::ITEM_OVERHEAD;

use super::layout::Layout;
use crate::config::{Config, MAX_ITEM, MIN_FLASH, MIN_MEMORY, Size};

/// Largest object that is in one record anywhere.
const MAX_WHOLE: Size = Size::mib(4);

/// Flash and memory are found in steps of this many bytes.
const STEP: u64 = 1 << 20;
/// Beyond this no cache is tried.
const MOST: u64 = 1 << 47;

/// What is to be cached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objects {
    /// How many.
    pub count: u64,
    /// Bytes of key and value together, on average.
    pub size: u64,
}

/// What is given; the rest is found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// `--memory`.
    pub memory: Option<Size>,
    /// Flash in all.
    pub flash: Option<Size>,
}

/// No cache can do it.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The engine refuses a given size.
    #[error("no cache of {flash} of flash and {memory} of memory: {why}")]
    Refused {
        /// Of flash.
        flash: Size,
        /// Of memory.
        memory: Size,
        /// In the engine's words.
        why: String,
    },
    /// `serve` takes no less.
    #[error("{given} is too little {what}: at least {least}")]
    TooLittle {
        /// `memory` or `flash`.
        what: &'static str,
        /// What is given of it.
        given: Size,
        /// What there must be.
        least: Size,
    },
    /// No front end stores an object of that size.
    #[error(
        "objects of {size} bytes are stored by no front end: the limit of key, value and 64 bytes is {MAX_ITEM}"
    )]
    TooLarge {
        /// Bytes of one.
        size: u64,
    },
    /// Not with all flash and memory there could be.
    #[error(
        "{count} objects of {size} bytes are more than one instance holds{with}: divide them among several instances, or give more memory and flash"
    )]
    TooMany {
        /// Objects.
        count: u64,
        /// Bytes of one.
        size: u64,
        /// Given bounds.
        with: String,
    },
}

/// A cache for the objects.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The objects.
    pub objects: Objects,
    /// `--memory`.
    pub memory: Size,
    /// `--memcache-item-size`, if the objects need another one than the default.
    pub item_size: Option<Size>,
    /// How it is divided.
    pub outlook: Outlook,
    /// How they lie in records.
    pub layout: Layout,
    /// Objects in memory when DRAM is full.
    pub in_dram: u64,
    /// Objects on flash when it is full.
    pub on_flash: u64,
    /// What each set writes.
    pub written: WrittenByPut,
}

impl Plan {
    /// Of the wishes, or the least that holds all objects where they say nothing.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn find(objects: Objects, wishes: Wishes) -> Result<Self, PlanError> {
        for (what, given, least) in
            [("memory", wishes.memory, MIN_MEMORY), ("flash", wishes.flash, MIN_FLASH)]
        {
            if let Some(given) = given.filter(|given| *given < least) {
                return Err(PlanError::TooLittle { what, given, least });
            }
        }
        if item(objects) > MAX_ITEM.get() {
            return Err(PlanError::TooLarge { size: objects.size });
        }
        let too_many = || {
            let given = [("flash", wishes.flash), ("memory", wishes.memory)];
            let given =
                given.iter().filter_map(|(name, size)| size.map(|s| format!("{s} of {name}")));
            let given: Vec<_> = given.collect();
            PlanError::TooMany {
                count: objects.count,
                size: objects.size,
                with: if given.is_empty() {
                    String::new()
                } else {
                    format!(" with {}", given.join(" and "))
                },
            }
        };
        let holds = |flash: u64, memory: u64| {
            divide(flash, memory)
                .is_ok_and(|(_, outlook)| on_flash(&outlook, objects) >= objects.count)
        };
        let most_memory = wishes.memory.map_or(MOST, Size::get);
        let flash = match wishes.flash {
            Some(flash) => flash.get(),
            None => least(objects.count, |flash| holds(flash, most_memory)).ok_or_else(too_many)?,
        };
        let memory = match wishes.memory {
            Some(memory) => memory.get(),
            // Where the given flash is too small for all, what uses all of that.
            None => {
                let reachable = divide(flash, MOST)
                    .map(|(_, outlook)| on_flash(&outlook, objects).min(objects.count))
                    .unwrap_or(objects.count);
                let enough = |memory: u64| {
                    divide(flash, memory)
                        .is_ok_and(|(_, outlook)| on_flash(&outlook, objects) >= reachable)
                };
                least(STEP, enough).ok_or_else(too_many)?
            }
        };
        Self::of(objects, flash, memory)
    }

    fn of(objects: Objects, flash: u64, memory: u64) -> Result<Self, PlanError> {
        let refused = |why| PlanError::Refused {
            flash: Size::bytes(flash),
            memory: Size::bytes(memory),
            why,
        };
        let (config, outlook) = divide(flash, memory).map_err(refused)?;
        if item(objects) > most_item(&outlook) {
            let fits =
                |flash| divide(flash, MOST).is_ok_and(|(_, o)| item(objects) <= most_item(&o));
            let enough = least(flash, fits).map_or_else(String::new, |flash| {
                format!(": give at least {} of flash", Size::bytes(flash))
            });
            return Err(refused(format!(
                "it stores no object of more than a sixteenth of it, as of {} bytes{enough}",
                objects.size,
            )));
        }
        let layout = Layout::of(objects.size, outlook.segment_size);
        let outlook = outlook.grown_for(layout.record);
        let written = outlook.written_by_put(&config, layout.record);
        Ok(Plan {
            objects,
            memory: Size::bytes(memory),
            item_size: match item(objects) {
                item if item <= Config::default().memcache_item_size.get() => None,
                item if item <= MAX_WHOLE.get() => Some(MAX_WHOLE),
                _ => Some(MAX_ITEM),
            },
            outlook,
            layout,
            in_dram: layout.in_dram(&outlook),
            on_flash: layout.on_flash(&outlook),
            written: layout.written(written),
        })
    }
}

/// The least number of bytes, in whole steps, for which `is_enough`.
fn least(from: u64, is_enough: impl Fn(u64) -> bool) -> Option<u64> {
    let mut high = from.div_ceil(STEP).max(1);
    while !is_enough(high * STEP) {
        high = high.checked_mul(2).filter(|steps| steps * STEP <= MOST)?;
    }
    let mut low = high / 2;
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if is_enough(middle * STEP) { high = middle } else { low = middle }
    }
    Some(high * STEP)
}

/// As a server with the memcached front end divides it, which takes no less than its least.
fn divide(flash: u64, memory: u64) -> Result<(afterglow_engine::Config, Outlook), String> {
    if memory < MIN_MEMORY.get() || flash < MIN_FLASH.get() {
        return Err(format!("at least {MIN_MEMORY} of memory and {MIN_FLASH} of flash"));
    }
    let server = Config { memory: Size::bytes(memory), ..Config::default() };
    let mut config = afterglow_engine::Config::new("", Vec::new());
    config.memory = memory - server.buffers().get();
    let outlook = Outlook::of_new(&config, flash).map_err(|error| error.to_string())?;
    Ok((config, outlook))
}

fn on_flash(outlook: &Outlook, objects: Objects) -> u64 {
    if item(objects) > most_item(outlook) {
        return 0;
    }
    let layout = Layout::of(objects.size, outlook.segment_size);
    layout.on_flash(&outlook.grown_for(layout.record))
}

/// What an object counts for the limit of the front end.
fn item(objects: Objects) -> u64 {
    objects.size.saturating_add(ITEM_OVERHEAD as u64)
}

/// The largest object that the front end stores there.
fn most_item(outlook: &Outlook) -> u64 {
    (outlook.segments * u64::from(outlook.segment_size) / 16).min(MAX_ITEM.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cache_holds_all_and_one_step_less_does_not() {
        for (count, size) in [(1_000_000, 300), (50_000_000, 1000), (100_000, 60_000)] {
            let objects = Objects { count, size };
            let plan = Plan::find(objects, Wishes::default()).unwrap();
            assert!(plan.on_flash >= count, "{plan:?}");
            let (flash, memory) = (plan.outlook.flash, plan.memory.get());
            for (flash, memory) in [(flash - STEP, memory), (flash, memory - STEP)] {
                let less = Plan::of(objects, flash, memory).map_or(0, |plan| plan.on_flash);
                assert!(less < count, "{flash} and {memory} hold {less} of {count} too");
            }
        }
    }

    #[test]
    fn what_is_given_is_kept() {
        let objects = Objects { count: 1_000_000_000, size: 300 };
        let wishes = Wishes { memory: Some(Size::gib(8)), flash: Some(Size::gib(400)) };
        let plan = Plan::find(objects, wishes).unwrap();
        assert_eq!((plan.memory, plan.outlook.flash), (Size::gib(8), 400 << 30));
        assert!(plan.on_flash < objects.count);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        let objects = Objects { count: 1 << 60, size: 300 };
        let refused = Plan::find(objects, Wishes::default()).unwrap_err().to_string();
        assert!(refused.contains("several instances"), "{refused}");
        for flash in [Some(Size::gib(1)), None] {
            let wishes = Wishes { memory: Some(Size::mib(1)), flash };
            let refused = Plan::find(Objects { count: 1000, size: 300 }, wishes).unwrap_err();
            assert_eq!(refused.to_string(), "1MiB is too little memory: at least 32MiB");
        }
        let large = Objects { count: 1, size: 64 << 20 };
        let refused = Plan::find(large, Wishes::default()).unwrap_err().to_string();
        assert!(refused.contains("the limit of key, value and 64 bytes is 64MiB"), "{refused}");
    }

    #[test]
    fn what_is_advised_is_what_serve_takes_and_stores() {
        for (count, size) in [(1, 1), (1000, 300), (10, 100_000), (10, 1_000_000), (2, 4_000_000)] {
            let plan = Plan::find(Objects { count, size }, Wishes::default()).unwrap();
            assert!(plan.memory >= MIN_MEMORY && plan.outlook.flash >= 60 << 20, "{plan:?}");
            let whole = size + 64 <= u64::from(plan.outlook.segment_size) / 4;
            assert_eq!(plan.layout.parts == 0, whole, "{plan:?}");
            assert_eq!(plan.item_size.is_some(), size > 1 << 20, "{plan:?}");
        }
        let flash = Some(Size::mib(100));
        let objects = Objects { count: 2, size: 20_000_000 };
        let wishes = Wishes { flash, ..Wishes::default() };
        let refused = Plan::find(objects, wishes).unwrap_err().to_string();
        let least = refused.split("give at least ").nth(1).expect(&refused);
        let least: Size = least.trim_end_matches(" of flash").parse().unwrap();
        let wishes = Wishes { flash: Some(least), ..Wishes::default() };
        assert_eq!(Plan::find(objects, wishes).unwrap().objects, objects);
        assert!((300 << 20..400 << 20).contains(&least.get()), "sixteen and a little: {least}");
    }

    #[test]
    fn values_in_parts_take_their_bytes_on_flash_a_head_more_and_no_memory() {
        for (count, size) in [(1000, 20_000_000), (5000, 4_300_000), (100, 67_000_000)] {
            let plan = Plan::find(Objects { count, size }, Wishes::default()).unwrap();
            let (flash, bytes) = (plan.outlook.flash as f64, (count * size) as f64);
            assert!(plan.layout.parts > 0 && plan.on_flash >= count && plan.in_dram == 0);
            // Beyond the objects: what reclaim keeps free, and ends of segments.
            assert!((1.0..1.2).contains(&(flash / bytes)), "{flash} for {bytes}: {plan:?}");
            let written = plan.written.total() / size as f64;
            assert!((1.0..2.2).contains(&written), "{written} bytes written for one: {plan:?}");
            assert_eq!(plan.item_size, Some(Size::mib(64)));
        }
        // On small flash these are values of less than 4 MiB.
        let wishes = Wishes { flash: Some(Size::mib(100)), ..Wishes::default() };
        let plan = Plan::find(Objects { count: 10, size: 200_000 }, wishes).unwrap();
        assert!(plan.layout.parts > 1 && plan.on_flash > 300, "{plan:?}");
    }
}
