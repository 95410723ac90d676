//! What custody does as time passes: it asks for ENDs, forgets what is over, and keeps what it
//! remembers within bounds.

use crate::config::{Config, Time};
use crate::custody::Custody;
use crate::identity::PermitKey;
use crate::io::Rows;
use crate::map::shard_of;
use crate::unseen::raise;

impl Custody {
    /// The writes that have been open for so long that their END may have been lost.
    pub fn overdue(&mut self, now: Time, config: &Config) -> Vec<PermitKey> {
        self.permits.overdue(now, config)
    }

    /// Forgets what has ended.
    pub fn tick(&mut self, now: Time, config: &Config, rows: &mut dyn Rows) {
        for key in self.permits.expire(now, &mut self.gates) {
            rows.run_out(key);
        }
        rows.tick(now, config.stretched(config.lease));
        self.gates.tidy(now);
        if self.gates.count() > config.holds {
            self.hold_whole_shards(now, config);
        }
        self.weak.retain(|_, until| *until > now);
        self.pulls.retain(|_, until| *until > now);
        self.unseen.tidy(now);
    }

    /// There are more holds than are remembered one by one: their shards are weak in their place.
    /// Of a shard that is not ours its owner knows them, or takes it for weak.
    fn hold_whole_shards(&mut self, now: Time, config: &Config) {
        coverage_mark!(TooManyHolds);
        for (token, until) in self.gates.end_holds(now) {
            let shard = shard_of(token, config.shards) as u16;
            if self.held.contains_key(&shard) {
                raise(&mut self.weak, shard, until);
            }
        }
    }
}
