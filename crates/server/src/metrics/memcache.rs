//! The counters of the memcached front end: memcached's own, under the names that its exporter
//! gives them in Prometheus. So dashboards made for memcached show Afterglow.

use std::sync::Arc;

use afterglow_memcache::{Action, Mode, Outcome};

use super::{Counter, Exposition, Kind};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One reactor's counters, or their sum.
        #[derive(Debug, Default)]
        pub struct MemcacheMetrics { $($(#[$doc])* pub $name: Counter,)* }

        impl MemcacheMetrics {
            /// The sum over all reactors.
            pub fn sum(shards: &[Arc<MemcacheMetrics>]) -> MemcacheMetrics {
                let sum = MemcacheMetrics::default();
                for shard in shards {
                    $(sum.$name.add(shard.$name.get());)*
                }
                sum
            }

            /// What was counted since the counters were at `before`.
            #[must_use]
            pub fn since(&self, before: &MemcacheMetrics) -> MemcacheMetrics {
                let since = MemcacheMetrics::default();
                $(since.$name.add(self.$name.get().saturating_sub(before.$name.get()));)*
                since
            }
        }
    };
}

counters! {
    /// Objects asked for.
    cmd_get,
    /// Stores of any kind.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Touches, also those with a read.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Reads that found.
    get_hits,
    /// Reads that did not.
    get_misses,
    /// Of these, because the object had expired.
    get_expired,
    /// Of these, because it had been flushed.
    get_flushed,
    /// Removals that found nothing.
    delete_misses,
    /// Removals.
    delete_hits,
    /// Counting up what was not there.
    incr_misses,
    /// Counting up.
    incr_hits,
    /// Counting down what was not there.
    decr_misses,
    /// Counting down.
    decr_hits,
    /// `cas` of what was not there.
    cas_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` with another token.
    cas_badval,
    /// Touches that found.
    touch_hits,
    /// Touches that did not.
    touch_misses,
    /// Values that were too large.
    store_too_large,
    /// Values that could not be stored for another reason.
    store_no_memory,
    /// Attempts to say who one is.
    auth_cmds,
    /// Those that were wrong.
    auth_errors,
    /// Reads of flash that were begun.
    flash_reads,
    /// Reads of flash that came back.
    flash_reads_done,
    /// Bytes that reads of flash brought.
    flash_bytes,
    /// Connections cut because nobody read their answers, or sent the rest of a request, while
    /// others waited for memory.
    stalled_connections,
    /// Connections closed because a part of a value was lost while that was sent.
    parts_lost,
    /// Connections cut because nothing came on them for too long.
    idle_connections,
    /// Times that a connection with more to do let others have their turn.
    conn_yields,
}

impl MemcacheMetrics {
    /// A read that did not find.
    pub fn missed(&self, reason: afterglow_engine::MissReason) {
        self.get_misses.inc();
        match reason {
            afterglow_engine::MissReason::Expired => self.get_expired.inc(),
            afterglow_engine::MissReason::Killed => self.get_flushed.inc(),
            _ => {}
        }
    }

    /// An action other than a plain read, and what came of it.
    pub fn count(&self, action: &Action<'_>, outcome: &Outcome<'_>) {
        let missing = *outcome == Outcome::Missing;
        match action {
            Action::Get(get) if get.touch.is_some() => {
                self.cmd_touch.inc();
                if missing { self.touch_misses.inc() } else { self.touch_hits.inc() }
            }
            Action::Get(_) => {
                self.cmd_get.inc();
                if missing { self.get_misses.inc() } else { self.get_hits.inc() }
            }
            Action::Store(store) => {
                self.cmd_set.inc();
                match (store.mode, outcome) {
                    (_, Outcome::TooLarge) => self.store_too_large.inc(),
                    (_, Outcome::Failed) => self.store_no_memory.inc(),
                    (Mode::Cas, Outcome::Missing) => self.cas_misses.inc(),
                    (Mode::Cas, Outcome::Exists) => self.cas_badval.inc(),
                    (Mode::Cas, _) => self.cas_hits.inc(),
                    _ => {}
                }
            }
            Action::Delete(_) if *outcome == Outcome::Deleted => self.delete_hits.inc(),
            Action::Delete(_) => self.delete_misses.inc(),
            Action::Arithmetic(arithmetic) => match (arithmetic.down, outcome) {
                (false, Outcome::Missing) => self.incr_misses.inc(),
                (false, Outcome::Number { .. }) => self.incr_hits.inc(),
                (true, Outcome::Missing) => self.decr_misses.inc(),
                (true, Outcome::Number { .. }) => self.decr_hits.inc(),
                _ => {}
            },
        }
    }

    /// Commands by name and status, as the exporter of memcached has them.
    fn commands(&self) -> [(&'static str, &'static str, u64); 17] {
        let plain_sets = self.cmd_set.get()
            - (self.cas_hits.get() + self.cas_misses.get() + self.cas_badval.get())
                .min(self.cmd_set.get());
        [
            ("get", "hit", self.get_hits.get()),
            ("get", "miss", self.get_misses.get()),
            ("set", "hit", plain_sets),
            ("cas", "hit", self.cas_hits.get()),
            ("cas", "miss", self.cas_misses.get()),
            ("cas", "badval", self.cas_badval.get()),
            ("delete", "hit", self.delete_hits.get()),
            ("delete", "miss", self.delete_misses.get()),
            ("incr", "hit", self.incr_hits.get()),
            ("incr", "miss", self.incr_misses.get()),
            ("decr", "hit", self.decr_hits.get()),
            ("decr", "miss", self.decr_misses.get()),
            ("touch", "hit", self.touch_hits.get()),
            ("touch", "miss", self.touch_misses.get()),
            ("flush", "hit", self.cmd_flush.get()),
            (
                "auth",
                "hit",
                self.auth_cmds.get() - self.auth_errors.get().min(self.auth_cmds.get()),
            ),
            ("auth", "miss", self.auth_errors.get()),
        ]
    }
}

pub(super) fn expose(shards: &[Arc<MemcacheMetrics>], out: &mut Exposition) {
    if shards.is_empty() {
        return;
    }
    let sum = MemcacheMetrics::sum(shards);
    const COMMANDS: &str = "memcached_commands_total";
    out.header(COMMANDS, Kind::Counter, "Commands, by outcome.");
    for (command, status, count) in sum.commands() {
        out.sample(COMMANDS, &[("command", command), ("status", status)], count);
    }
    for (name, help, count) in [
        ("memcached_meta_commands_total", "Meta commands.", &sum.cmd_meta),
        (
            "memcached_expired_misses_total",
            "Reads that missed because the object had expired.",
            &sum.get_expired,
        ),
        (
            "memcached_flushed_misses_total",
            "Reads that missed because the object had been flushed.",
            &sum.get_flushed,
        ),
        ("memcached_item_too_large_total", "Values that were too large.", &sum.store_too_large),
        (
            "memcached_item_no_memory_total",
            "Values that could not be stored.",
            &sum.store_no_memory,
        ),
        (
            "memcached_stalled_connections_total",
            "Connections closed because they read nothing while others waited for memory.",
            &sum.stalled_connections,
        ),
        (
            "memcached_parts_lost_total",
            "Connections closed because a part of a value was lost while it was sent.",
            &sum.parts_lost,
        ),
        (
            "memcached_idle_connections_total",
            "Connections closed by the idle timeout.",
            &sum.idle_connections,
        ),
        (
            "memcached_connections_yielded_total",
            "Times that a connection with further requests gave up its turn.",
            &sum.conn_yields,
        ),
    ] {
        out.single(name, Kind::Counter, help, count.get());
    }
}
