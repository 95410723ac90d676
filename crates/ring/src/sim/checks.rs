//! Checks during a run of everything but clients' answers: cached rows, leases, shards, liveness.

use super::act::shown;
use super::database::Database;
use super::event::Event;
use super::node::{bit_of, stamp_of};
use super::plot::MS;
use super::world::World;
use crate::identity::MemberId;
use crate::member::Member;
use crate::terms::OlderRow;

/// Within this time a change of the map reaches all living members.
const REACHES: u64 = 5_000 * MS;

impl World {
    /// Looks at everything, now and then.
    pub fn check(&mut self) {
        let wait = self.random.between(10, 90) * MS;
        self.queue.push(self.now + wait, Event::Check);
        self.check_owners();
        if self.forgotten.is_some() {
            return self.come_to_the_version();
        }
        let rows: Vec<_> = (0..self.plan.tokens.len()).collect();
        self.check_rows(&rows);
        self.check_version();
        self.check_untroubled();
        self.check_spared();
        self.check_bereaved();
        self.check_refused();
        self.check_moved();
        self.check_repair();
        self.read_past_the_ring();
        let at = self.random.below(self.nodes.len() as u64) as usize;
        self.nodes[at].archive = self.nodes[at].rows.rows.clone();
        if let Some(member) = &self.nodes[at].member {
            let kept = member.kept();
            let is_same = self.nodes[at].kept == kept;
            assert_eq!(member.keeps_still(&self.nodes[at].kept), is_same, "seen without a copy");
            self.nodes[at].kept = kept;
        }
    }

    /// Somebody reads a row from the database itself, as an instance without a lease does. What was
    /// seen once is seen ever after.
    fn read_past_the_ring(&mut self) {
        if self.oracle.monotonic && self.random.permille(200) {
            let row = self.random.below(self.plan.tokens.len() as u64) as usize;
            let now = self.now;
            let of = Database::two(&mut self.random).map(|replica| (replica, now));
            let stamp = self.database.read(row, of, now);
            self.oracle.seen(row, stamp);
        }
    }

    /// The members whose processes run, with their numbers.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.nodes.iter().enumerate().filter_map(|(at, n)| Some((at, n.member.as_ref()?)))
    }

    /// I1: at one instant of true time one member at most serves a shard.
    fn check_owners(&mut self) {
        for (shard, by) in self.servers().iter().enumerate() {
            if let [one, other, ..] = by[..] {
                self.wrong = Some(format!("m{one} and m{other} both serve shard {shard}"));
            }
        }
    }

    /// No row that counts is older than what was acknowledged, whether anybody reads it or not.
    pub fn check_rows(&mut self, rows: &[usize]) {
        let mut wrong = None;
        let now = self.now;
        self.nodes.iter_mut().for_each(|node| node.rows.now = node.clock(now));
        let truth = &self.database.map;
        for (at, member) in self.running() {
            let Some(map) = member.map() else { continue };
            for row in rows {
                let token = self.plan.tokens[*row];
                let rows = &self.nodes[at].rows;
                let Some((epoch, value)) = rows.live(token) else { continue };
                let shard = map.shard_of(token);
                let id = MemberId(at as u64);
                let current = map.shards[shard] == truth.shards[shard];
                let stamp = stamp_of(value.as_ref());
                let absent = if stamp > 0 { 0 } else { bit_of(token) };
                let found = OlderRow { token, epoch: *epoch, absent };
                if !current || !member.custody().row_counts(map, id, found) {
                    continue;
                }
                if stamp < self.oracle.cache_floor(*row) {
                    wrong = Some(format!(
                        "m{at} has write {stamp} of row {row} of epoch {epoch}, but {} was \
                         acknowledged or read before",
                        self.oracle.cache_floor(*row)
                    ));
                }
            }
        }
        self.wrong = self.wrong.take().or(wrong);
    }

    /// When a write is sent, an owner that has its lease knows of it.
    pub fn check_permits(&mut self, from: usize, client: u64) {
        let (rows, _) = self.oracle.rows_of(client);
        // A process that stood still between its last look at the clock and the sending may send
        // later than its permits last. The ack rule is for that.
        if self.resumed {
            return;
        }
        let truth = self.database.map.clone();
        let mut wrong = None;
        for row in rows {
            let token = self.plan.tokens[row];
            let shard = truth.shard_of(token);
            let Some(owner) = truth.shards[shard].owner else { continue };
            let node = &self.nodes[owner.0 as usize];
            let Some(member) = &node.member else { continue };
            let now = node.clock(self.now);
            let Some(map) = member.map() else { continue };
            if now < member.lease_end()
                && map.shards[shard] == truth.shards[shard]
                && member.custody().serves(map, owner, shard)
                && !member.custody().knows_of_a_write(map, token, now)
                && !node.rows.holds(token)
            {
                wrong = Some(format!("m{from} writes row {row}, which {owner:?} does not know"));
            }
        }
        self.wrong = self.wrong.take().or(wrong);
    }

    /// With faults ended, a change of the map reaches all living members in time. Who has started
    /// since then, or hung, has not read it yet.
    fn check_version(&mut self) {
        if self.now < self.plan.heal + 2_000 * MS || !self.plan.judged {
            return;
        }
        match self.version {
            Some((by, version)) if self.now >= by => {
                self.version = None;
                let is_late = |(at, member): &(usize, &Member)| {
                    let node = &self.nodes[*at];
                    node.started.max(node.hangs) + REACHES <= by
                        && member.map().is_none_or(|map| map.version < version)
                };
                let late = self.running().find(is_late);
                if let Some((at, member)) = late {
                    let has = member.map().map(|m| m.version);
                    self.wrong = Some(format!("m{at} has version {has:?}, not {version} yet"));
                }
            }
            None => self.version = Some((self.now + REACHES, self.database.map.version)),
            Some(_) => {}
        }
    }

    /// An instance that reaches no member troubles nobody.
    fn check_untroubled(&mut self) {
        let Some((until, members)) = self.untroubled.clone().filter(|(t, _)| *t > self.now) else {
            return;
        };
        for at in members {
            let node = &self.nodes[at];
            let now = node.clock(self.now);
            if node.member.as_ref().is_none_or(|m| now >= m.lease_end()) {
                let left = until - self.now;
                self.wrong = Some(format!("m{at} has lost its lease to an outsider, {left} us"));
            }
        }
    }

    /// In the calm every row is cached again.
    fn check_hits(&self) -> Result<(), String> {
        // Where clocks differ much, holds grow with every move and outlast the calm.
        if self.plan.config.rho > 50_000 {
            return Ok(());
        }
        for (row, (reads, hits)) in self.oracle.quiet.iter().enumerate() {
            if *reads >= 8 && *hits == 0 {
                return Err(format!("row {row} had {hits} hits in {reads} reads of the calm"));
            }
        }
        Ok(())
    }

    /// After a calm every shard is served.
    pub fn check_end(&self) -> Result<(), String> {
        if self.oracle.is_unanswered(self.now.saturating_sub(REACHES)) {
            return Err("a read is never answered".to_owned());
        }
        let map = &self.database.map;
        let leaves = |at: usize| self.nodes[at].gone && map.entry(MemberId(at as u64)).is_some();
        if let Some((at, _)) = self.running().find(|(at, _)| leaves(*at)) {
            return Err(format!("m{at} was told to leave and is a member: {}", shown(map)));
        }
        if self.running().all(|(at, _)| self.nodes[at].gone) {
            return Ok(());
        }
        self.check_hits()?;
        for (number, shard) in map.shards.iter().enumerate() {
            let Some(owner) = shard.owner else {
                return Err(format!("nobody owns shard {number} at the end: {}", shown(map)));
            };
            let node = &self.nodes[owner.0 as usize];
            let Some(member) = &node.member else {
                return Err(format!("{owner:?} is dead and owns shard {number}: {}", shown(map)));
            };
            let now = node.clock(self.now);
            let serves = member.map().is_some_and(|m| member.custody().serves(m, owner, number));
            // A move may be under way; it must not be for long. Who has heard of a joiner has a
            // lease once that has answered its next PING.
            let has_changed = self.now < self.changed + self.config.ping + 200 * MS;
            let moves = member.custody().leaving().is_some() && now < member.handed() + REACHES;
            let is_led = now < member.lease_end() || has_changed;
            if !is_led || !(serves || moves || has_changed) {
                return Err(format!("{owner:?} does not serve shard {number}: {}", shown(map)));
            }
        }
        Ok(())
    }
}
