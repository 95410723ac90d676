//! The ring as one of its members sees it.

use serde::{Deserialize, Serialize};

use super::{Exposition, Kind};

/// How far an instance is on its way into its ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RingEntry {
    /// It is in no ring; or no write had to wait for the ring once. From then on that is not looked
    /// at again.
    #[default]
    Done,
    /// It has just started: writes would wait.
    Awaited,
    /// It takes long: reads pass through, and writes may be refused.
    Late,
    /// Another instance or ring caches the `exclusive` tables: their reads pass through here, and
    /// writes are refused at once.
    KeptOut,
}

/// The ring, for operators.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RingFigures {
    /// Its name.
    pub name: String,
    /// This instance, as in `members`.
    pub me: String,
    /// Version of the map that it has adopted; 0 before the first.
    pub version: u64,
    /// Seconds for which it may serve its shards, if nothing more is heard; 0: it may not.
    pub lease_seconds: f64,
    /// How many seconds ago the database last showed this instance as a member; none for never.
    #[serde(default)]
    pub confirmed_seconds: Option<f64>,
    /// Its operator had it leave, and it is no member any more.
    #[serde(default)]
    pub left: bool,
    /// Shards of the ring.
    pub shards: u64,
    /// Shards that nobody owns.
    pub unowned: u64,
    /// The settings of this instance are not those of the ring: it caches nothing.
    pub settings_differ: bool,
    /// The clock of this instance does not run like those of most members.
    #[serde(default)]
    pub own_clock_drifts: bool,
    /// The database refuses to change the ring's map: nobody joins or leaves, and nobody gets the
    /// rows of who dies.
    #[serde(default)]
    pub changes_refused: bool,
    /// All members.
    pub members: Vec<RingMemberFigures>,
}

/// One member of the ring.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RingMemberFigures {
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// Where other instances reach it.
    pub address: String,
    /// Its failure domain.
    pub zone: String,
    /// `active`; `leaving`: its operator has it leave; or `accused`: it was silent, and its shards
    /// go to others.
    pub state: String,
    /// Shards that it owns.
    pub shards: u64,
    /// Whether there is a link to it; none for this instance.
    pub linked: Option<bool>,
    /// Whether its clock does not run like those of others.
    #[serde(default)]
    pub clock_drifts: bool,
}

impl RingFigures {
    /// Shards that this instance owns.
    pub fn owned(&self) -> u64 {
        self.members.iter().find(|member| member.id == self.me).map_or(0, |member| member.shards)
    }

    /// Other members to which there is no link.
    pub fn unlinked(&self) -> usize {
        self.members.iter().filter(|member| member.linked == Some(false)).count()
    }

    /// Instances whose clocks do not run like those of others. This one may be among them, also
    /// where the others have put it out for that.
    pub fn drifting(&self) -> usize {
        let members = self.members.iter().filter(|member| member.clock_drifts).count();
        members.max(usize::from(self.own_clock_drifts))
    }

    /// Adds counts to the text; no address is among them.
    pub(super) fn expose(&self, out: &mut Exposition) {
        let help = "Version of the ring's map that this instance has adopted.";
        out.single("afterglow_ring_map_version", Kind::Gauge, help, self.version);
        let help = "Seconds for which this instance may serve its shards of the ring.";
        out.single("afterglow_ring_lease_seconds", Kind::Gauge, help, self.lease_seconds);
        let help = "Seconds since the database last showed this instance as a member: its lease ends at 60.";
        if let Some(seconds) = self.confirmed_seconds {
            out.single("afterglow_ring_confirmed_seconds", Kind::Gauge, help, seconds);
        }
        let help =
            "Whether this instance has left the ring, as its operator asked: then it has no lease.";
        out.single("afterglow_ring_left", Kind::Gauge, help, u64::from(self.left));
        let help = "Shards of the ring, by who owns them.";
        out.header("afterglow_ring_shards", Kind::Gauge, help);
        let own = self.owned();
        let others = self.shards.saturating_sub(own + self.unowned);
        for (owner, count) in [("this", own), ("others", others), ("nobody", self.unowned)] {
            out.sample("afterglow_ring_shards", &[("owner", owner)], count);
        }
        let help = "Members of the ring, by state. An accused one was silent.";
        out.header("afterglow_ring_members", Kind::Gauge, help);
        for state in ["active", "leaving", "accused"] {
            let count = self.members.iter().filter(|member| member.state == state).count();
            out.sample("afterglow_ring_members", &[("state", state)], count);
        }
        let help = "Whether the settings of this instance differ from those of its ring, so that reads pass through.";
        let differ = u64::from(self.settings_differ);
        out.single("afterglow_ring_settings_differ", Kind::Gauge, help, differ);
        let help = "Whether the database refuses to change the ring's map, so that rows of who dies go to nobody.";
        let refused = u64::from(self.changes_refused);
        out.single("afterglow_ring_changes_refused", Kind::Gauge, help, refused);
        let help = "Other members of the ring to which this instance has no link.";
        out.single("afterglow_ring_members_unlinked", Kind::Gauge, help, self.unlinked());
        let help = "Instances of the ring whose clocks do not run like those of others, this one among them: they get no lease.";
        out.single("afterglow_ring_clocks_drifting", Kind::Gauge, help, self.drifting());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_is_counted_also_where_its_instance_is_no_member() {
        let member = |id: &str, clock_drifts| RingMemberFigures {
            id: id.into(),
            clock_drifts,
            ..Default::default()
        };
        let drifting = |own_clock_drifts, members: &[RingMemberFigures]| {
            let (me, members) = ("me".into(), members.to_vec());
            RingFigures { me, own_clock_drifts, members, ..Default::default() }.drifting()
        };
        assert_eq!(drifting(false, &[member("me", false), member("a", false)]), 0);
        assert_eq!(drifting(false, &[member("me", false), member("a", true)]), 1);
        assert_eq!(drifting(true, &[member("me", true), member("a", false)]), 1, "once");
        assert_eq!(drifting(true, &[member("a", false), member("b", false)]), 1, "it was put out");
    }
}
