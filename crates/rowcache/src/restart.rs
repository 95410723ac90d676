//! Restart: what survives a crash. [`tables_of_last_run`] and then [`start`] take over from the
//! last run in a data directory.
//!
//! | what | where | still valid after |
//! |---|---|---|
//! | rows | the engine's namespace | `kill -9`; what was invalidated is not there again |
//! | writes in flight or in doubt | [`IntentTable`] | `kill -9`; else all is dropped and held |
//! | claim, lease epochs | [`InstanceFile`] | `restart_grace` at most, same boot, same policies |
//! | which tables were known | [`NotedTables`] | `kill -9`; else rows of all tables are dropped |
//!
//! After a clean stop ([`note_clean_stop`](instance_file::note_clean_stop)) claim and epochs are
//! valid for `planned_restart_grace` too, also in another boot. Nobody writes meanwhile: the
//! operator promises it. The engine and the intents have a clean marker of their own. Without
//! theirs they start empty in another boot, whatever the instance file says.
//!
//! 1. [`InstanceFile::open`] keeps the claim of the last run or makes a new one: rows of
//!    `exclusive` tables of an older claim are misses.
//! 2. [`IntentTable::open`] reads which writes were in flight. In doubt the only intent is
//!    [`ANYTHING`].
//! 3. [`RowCache::new`] drops what an intent says was not dropped yet. It holds (or weakens) the
//!    gates of each intent.
//! 4. Nothing of an `exclusive` table is served before [`Claims`] has the lease again.
//!
//! Prepared statements survive too; the server keeps them (`statements/plan_file.rs`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::device::area::{MediaError, boot_id};
use afterglow_engine::{Cache, NamespaceOptions, OpenError};
use uuid::Uuid;

use crate::claims::{Claims, LeaseTimes};
use crate::clock::{Clock, ClockAhead};
use crate::instance_file::{self, InstanceFile, Present};
use crate::intents::words::ANYTHING;
use crate::intents::{IntentDoubt, IntentTable};
use crate::noted_tables::{EngineOpening, NotedTables};
use crate::policy::Policies;
use crate::row_cache::{Parts, RowCache};

/// The namespace that rows live in.
const NAMESPACE: &str = "cql";
/// The file of intents in the data directory.
const INTENTS: &str = "intents";
/// How many writes may be in flight or held at once and still be distinguished after a crash.
const INTENT_SLOTS: u32 = 64 * 1024;

/// What a start needs to know.
pub struct Start<'a> {
    /// The engine.
    pub engine: &'a Cache,
    /// Where intents and identity live.
    pub data_dir: &'a Path,
    /// Policies in force.
    pub policies: Arc<dyn Policies>,
    /// Their generation, and a text that differs whenever they do. If they are replaced before the
    /// first [`Claims::tick`], that finds another generation.
    pub policies_now: (u64, String),
    /// Longest absence after which `exclusive` rows are still served.
    pub restart_grace: Duration,
    /// Several instances share the tables, and count by the time since boot.
    pub sharing: bool,
    /// The same after a clean stop, if that is longer; zero without such a promise.
    pub planned_restart_grace: Duration,
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub hold: Duration,
    /// Maximum age of a row whose fill may not see the last acknowledged write.
    pub weak_max_age: Duration,
    /// How long the lease lasts.
    pub lease: LeaseTimes,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Why [`start`] fails.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] OpenError),
    /// The file of intents.
    #[error(transparent)]
    Intents(#[from] MediaError),
    /// The instance file.
    #[error("cannot write the instance file in the data directory: {0}")]
    Instance(#[source] io::Error),
}

/// Refuses what [`start`] would refuse, by looking at the files of the data directory. Returns what
/// it would doubt.
///
/// # Errors
/// [`StartError`].
pub fn look(data_dir: &Path) -> Result<Option<IntentDoubt>, StartError> {
    instance_file::look(data_dir).map_err(StartError::Instance)?;
    let path = data_dir.join(INTENTS);
    if path.is_dir() {
        let source = io::ErrorKind::IsADirectory.into();
        return Err(MediaError::Io { doing: "write", path, source }.into());
    }
    Ok(IntentTable::look(&path))
}

/// The tables that the last run knew. To be called before anything can fail: only the engine's very
/// next opening believes what the last one noted. A start that fails later has changed no rows, and
/// leaves the intents for the next.
pub fn tables_of_last_run(engine: &Cache, data_dir: &Path) -> NotedTables {
    let found = engine.opening();
    let opening = EngineOpening { cache: Uuid::from_bytes(found.cache), number: found.number };
    let (tables, why) = NotedTables::open(data_dir, opening);
    let expected = data_dir.join(instance_file::FILE).exists();
    if let Some(why) = why.filter(|_| expected && !found.is_empty()) {
        tracing::warn!(
            %why,
            "it is not known which tables the last run knew: all rows that it cached are dropped once, and cached again as they are read. \
             Make room if the disk is full; else there is nothing to be done unless this comes again"
        );
    }
    tables
}

/// Takes over from the last run in the data directory, after [`tables_of_last_run`]. Returns the
/// cache of rows, which serves nothing yet, with its lease and claim.
///
/// # Errors
/// When one of its files cannot be made.
pub fn start<W>(start: Start<'_>) -> Result<Claims<W>, StartError> {
    let expected = start.data_dir.join(instance_file::FILE).exists();
    // If the system does not say, every start counts as a boot.
    let boot = boot_id().map_or_else(|_| Uuid::new_v4(), |id| Uuid::from_bytes(id.0));
    let (generation, policies) = start.policies_now;
    let present = Present {
        policies,
        boot_id: boot.to_string(),
        now: start.clock.now(),
        unix: start.clock.unix(),
        restart_grace: start.restart_grace,
        plain_clock: start.sharing,
        planned_restart_grace: start.planned_restart_grace,
    };
    let (instance, new_claim) =
        InstanceFile::open(start.data_dir, &present).map_err(StartError::Instance)?;
    match &new_claim {
        Some(why) if expected => {
            tracing::warn!(%why, "rows cached under `exclusive` by the last run are not served");
        }
        Some(_) => tracing::info!(instance = %instance.id(), "first start in this data directory"),
        None => {
            let instance = instance.id();
            tracing::info!(%instance, "rows cached under `exclusive` are served again once the lease is ours");
        }
    }
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let rows = start.engine.namespace(NAMESPACE, options)?;
    let path = start.data_dir.join(INTENTS);
    let (intents, unsettled) = IntentTable::open(&path, INTENT_SLOTS, ANYTHING, expected)?;
    if let Some(doubt) = &unsettled.doubt {
        let hold = start.hold;
        tracing::warn!(
            ?doubt,
            ?hold,
            "it is not known which writes were in flight when the last run ended: `exclusive` tables are not cached for a while"
        );
    } else if !unsettled.intents.is_empty() {
        let count = unsettled.intents.len();
        tracing::info!(
            count,
            "writes were in flight when the last run ended: their partitions are not cached for a while"
        );
    }
    let ahead = instance.clock_ahead();
    let clock: Arc<dyn Clock> = match ahead {
        0 => start.clock,
        by => Arc::new(ClockAhead { of: start.clock, by }),
    };
    let cache = RowCache::new(Parts {
        rows,
        intents,
        unsettled: unsettled.intents,
        policies: start.policies,
        policies_since: (generation, instance.policies_since()),
        hold: start.hold,
        clock,
        // Ages by one clock mean nothing by another.
        boot: boot.as_u64_pair().0 ^ ahead,
        weak_max_age: start.weak_max_age,
    });
    Ok(Claims::new(cache, instance, generation, start.lease))
}
