//! The file `instance.toml` in the data directory: the identity of this instance and its present
//! claim.
//!
//! Rows cached under `exclusive` carry a *claim*, a random number that stands for "nobody but us
//! has written since". A new claim makes all of them misses at once, without touching them. A claim
//! is written to disk before the first row carries it, and is never used again after the next one.
//! So no damage or loss of the file can bring old rows back.
//!
//! A clean stop is noted here too ([`note_clean_stop`]), as the last word of a run. The next run
//! takes the note away, on disk, before it serves anything. So a crash later never looks like a
//! clean stop. After a clean stop the claim may outlast a restart of the machine, for as long as
//! the operator has promised that nobody writes meanwhile ([`Present::planned_restart_grace`]).
//! Time since boot begins anew then. The run goes on with a clock that is ahead of it
//! ([`InstanceFile::clock_ahead`]), so that no row looks younger than it is.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use afterglow_engine::device::area::replace_file;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::{Millis, seconds};
use crate::lease::KnownEpochs;
use crate::noted_tables;

/// The file's name in the data directory.
pub const FILE: &str = "instance.toml";

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// Identity in the lease row and for the drivers (`host_id`).
    instance: Uuid,
    /// The present claim, as hexadecimal: TOML integers are signed.
    claim: String,
    /// Cluster that the claim is about.
    cluster: String,
    /// Our data centre: rows were read from its replicas.
    #[serde(default)]
    data_center: String,
    /// Table policies under which the claim was made.
    policies: String,
    /// Of a member of a ring: the second since that boot in which it saw these policies first.
    /// Missing in what others wrote: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policies_since: Option<u32>,
    lease_held: i64,
    lease_asked: i64,
    /// When the epoch that a ring has was taken, as the database says it; 0 where none was noted.
    #[serde(default, skip_serializing_if = "is_none_taken")]
    lease_taken: i64,
    /// Kernel boot that `alive_at` is measured in.
    boot_id: String,
    /// Last sign of life, in milliseconds since that boot, and those that our clock is ahead.
    alive_at: Millis,
    /// Milliseconds that our clock is ahead of the time since boot.
    #[serde(default, skip_serializing_if = "is_zero")]
    clock_ahead: Millis,
    /// The last run ended cleanly in this second since 1970. It changes nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<u32>,
}

fn is_zero(millis: &Millis) -> bool {
    *millis == 0
}

fn is_none_taken(taken: &i64) -> bool {
    *taken == 0
}

/// Why a claim was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewClaim {
    /// No file: the first start in this directory.
    FirstStart,
    /// The file cannot be read or understood.
    Damaged(String),
    /// The machine has been restarted, and no promise covers that.
    Rebooted,
    /// The machine has been restarted, and its wall clock is before the end of the last run.
    ClockSetBack,
    /// The instance joins a ring in a boot whose clock was put ahead.
    OtherClock,
    /// We were away for too long: others may have written.
    Away(Duration),
    /// Tables have other policies now, and others may have written under the old ones.
    PoliciesChanged,
    /// Another cluster answers under the backend's address.
    OtherCluster,
    /// Another instance held the lease since we did.
    LeaseChangedHands,
    /// We hold the lease for the first time. Before, nobody or another instance held it.
    FirstLease,
}

impl NewClaim {
    /// Of a lease under another epoch than the last one, which is 0 before the first.
    pub(crate) fn of_another_lease(last: i64) -> NewClaim {
        if last == 0 { NewClaim::FirstLease } else { NewClaim::LeaseChangedHands }
    }
}

impl std::fmt::Display for NewClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NewClaim::FirstStart => write!(f, "this is the first start in this data directory"),
            NewClaim::Damaged(why) => write!(f, "{FILE} cannot be used ({why})"),
            NewClaim::Rebooted => write!(
                f,
                "the machine was restarted since, without a clean stop within planned-restart-grace"
            ),
            NewClaim::ClockSetBack => write!(
                f,
                "the machine was restarted, and its wall clock is before the end of the last run"
            ),
            NewClaim::OtherClock => {
                write!(
                    f,
                    "a ring counts by the time since boot, which began with a planned restart"
                )
            }
            NewClaim::Away(away) => {
                write!(f, "away for {} s, longer than the grace of a restart", away.as_secs())
            }
            NewClaim::PoliciesChanged => write!(f, "the table policies have changed"),
            NewClaim::OtherCluster => write!(f, "the backend is another cluster"),
            NewClaim::FirstLease => write!(f, "this instance holds the lease for the first time"),
            NewClaim::LeaseChangedHands => write!(f, "another instance held the lease in between"),
        }
    }
}

/// The present run, to be compared with the file.
#[derive(Debug, Clone)]
pub struct Present {
    /// Table policies, as text that differs whenever they do.
    pub policies: String,
    /// The kernel's boot id.
    pub boot_id: String,
    /// Milliseconds since boot.
    pub now: Millis,
    /// Seconds since 1970.
    pub unix: u32,
    /// Longest absence after which cached rows are still valid.
    pub restart_grace: Duration,
    /// The clock must be the time since boot: a ring counts by that.
    pub plain_clock: bool,
    /// The same after a clean stop, if that is longer. Restarts of the machine are included. Zero:
    /// no such promise.
    pub planned_restart_grace: Duration,
}

/// The instance file, in memory and on disk.
#[derive(Debug)]
pub struct InstanceFile {
    path: PathBuf,
    stored: Stored,
}

impl InstanceFile {
    /// Reads the file in `data_dir` and decides whether its claim still holds. Writes it again
    /// either way.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(
        data_dir: &Path,
        present: &Present,
    ) -> io::Result<(InstanceFile, Option<NewClaim>)> {
        let path = data_dir.join(FILE);
        let (mut stored, doubt) = match read(&path) {
            Ok(Some(stored)) => {
                let behind = present.plain_clock && stored.clock_ahead > 0;
                let doubt = behind.then_some(NewClaim::OtherClock);
                let doubt = doubt.or_else(|| doubt_of(&stored, present));
                (stored, doubt)
            }
            Ok(None) => (fresh(), Some(NewClaim::FirstStart)),
            Err(why) => (fresh(), Some(NewClaim::Damaged(why))),
        };
        stored.clock_ahead = clock_ahead(&stored, present, doubt.is_none());
        stored.policies_since = policies_since(&stored, present);
        let mut instance = InstanceFile { path, stored };
        if doubt.is_some() {
            instance.stored.claim = random_claim();
        }
        instance.stored.policies.clone_from(&present.policies);
        instance.stored.boot_id.clone_from(&present.boot_id);
        instance.stored.alive_at = present.now + instance.stored.clock_ahead;
        // After a power loss the next start must not find the note of a stop before this run.
        let noted = instance.stored.ended_at.take().is_some();
        replace(&instance.path, &instance.stored, noted)?;
        Ok((instance, doubt))
    }

    /// Milliseconds by which this run's clock must be ahead of the time since boot. Zero unless the
    /// machine was restarted under the claim. The same for each run in a boot.
    pub fn clock_ahead(&self) -> Millis {
        self.stored.clock_ahead
    }

    /// This instance's identity, the same across restarts.
    pub fn id(&self) -> Uuid {
        self.stored.instance
    }

    /// The present claim, never zero.
    pub fn claim(&self) -> u64 {
        parse_claim(&self.stored.claim).expect("checked when read, well-formed when made")
    }

    /// The lease epochs of earlier runs.
    pub fn epochs(&self) -> KnownEpochs {
        KnownEpochs { held: self.stored.lease_held, asked: self.stored.lease_asked }
    }

    /// When a ring took the epoch that is held, in microseconds since 1970 as the database says it;
    /// 0 where none was noted.
    pub fn lease_taken(&self) -> i64 {
        self.stored.lease_taken
    }

    /// Starts a new claim.
    ///
    /// # Errors
    /// The file cannot be written. The new claim counts in memory all the same, and the old one is
    /// still on disk. So the caller must not cache under either.
    pub fn renew_claim(&mut self) -> io::Result<u64> {
        self.stored.claim = random_claim();
        self.write()?;
        Ok(self.claim())
    }

    /// Takes the cluster behind the backend. True if it is not the one that the claim is about: a
    /// new claim is due. The name is on disk with the next write, never before that claim is.
    pub fn set_cluster(&mut self, cluster: &str) -> bool {
        let other = !self.stored.cluster.is_empty() && self.stored.cluster != cluster;
        self.stored.cluster = cluster.to_owned();
        other
    }

    /// Takes our data centre. True if it was another, also if that was at the end of an earlier
    /// run. Writes acknowledged there may be missing here.
    pub fn set_data_center(&mut self, data_center: &str) -> bool {
        let other = !self.stored.data_center.is_empty() && self.stored.data_center != data_center;
        self.stored.data_center = data_center.to_owned();
        other
    }

    /// Takes other table policies, for which a new claim is due; `now` in milliseconds since boot.
    /// They are on disk with the next write, never before that claim is.
    pub fn set_policies(&mut self, policies: &str, now: Millis) {
        self.stored.policies = policies.to_owned();
        self.stored.policies_since.iter_mut().for_each(|since| *since = seconds(now));
    }

    /// In which second since boot a member of a ring first saw the present policies; 0 where no
    /// ring was asked for.
    pub fn policies_since(&self) -> u32 {
        self.stored.policies_since.unwrap_or(0)
    }

    /// Takes lease epochs for which a new claim is due. They are on disk with the next write, never
    /// before that claim is. Otherwise a restart would take the old claim for unbroken.
    pub fn set_epochs(&mut self, epochs: KnownEpochs) {
        self.stored.lease_held = epochs.held;
        self.stored.lease_asked = epochs.asked;
    }

    /// As [`InstanceFile::set_epochs`], for the epoch that a ring took then.
    pub fn set_shared_epoch(&mut self, epoch: i64, taken: i64) {
        self.set_epochs(KnownEpochs { held: epoch, asked: epoch });
        self.stored.lease_taken = taken;
    }

    /// Notes the lease epochs of an unbroken claim.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_epochs(&mut self, epochs: KnownEpochs) -> io::Result<()> {
        self.set_epochs(epochs);
        self.write()
    }

    /// Notes that we were alive at `now`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note_alive(&mut self, now: Millis) -> io::Result<()> {
        self.stored.alive_at = now;
        self.write()
    }

    /// Replaces the file in one step. It is not synced: after a power loss the boot id differs, and
    /// then only the identity in it counts.
    fn write(&self) -> io::Result<()> {
        assert!(self.stored.ended_at.is_none(), "a run that goes on has not ended cleanly");
        replace(&self.path, &self.stored, false)
    }
}

/// Notes that a run ended cleanly: every request was answered, the intents and the engine are on
/// disk. The last word of a run; nothing of it may write the file afterwards. `now` and `unix` are
/// now, in milliseconds since boot and in seconds since 1970.
///
/// # Errors
/// The file cannot be read or written. The stop counts as a crash then.
pub fn note_clean_stop(data_dir: &Path, now: Millis, unix: u32) -> io::Result<()> {
    let path = data_dir.join(FILE);
    match read(&path) {
        Ok(Some(mut stored)) => {
            stored.ended_at = Some(unix);
            // The absence counts from here, and so do the ages of rows.
            stored.alive_at = now + stored.clock_ahead;
            // No later start may take this for a clean stop and find an earlier file.
            noted_tables::sync(data_dir)?;
            replace(&path, &stored, true)
        }
        Ok(None) => Err(io::ErrorKind::NotFound.into()),
        Err(why) => Err(io::Error::other(why)),
    }
}

fn replace(path: &Path, stored: &Stored, synced: bool) -> io::Result<()> {
    let text = toml::to_string(stored).map_err(io::Error::other)?;
    replace_file(path, text.as_bytes(), synced)
}

/// Checks whether the file can be written. It is written beside its last version, which stays in
/// place.
///
/// # Errors
/// The error of writing it.
pub fn look(data_dir: &Path) -> io::Result<()> {
    let spare = data_dir.join(format!("{FILE}.new"));
    match fs::OpenOptions::new().write(true).open(&spare) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Option<Stored>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let stored: Stored = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    match parse_claim(&stored.claim) {
        Some(_) => Ok(Some(stored)),
        None => Err(format!("claim '{}' is not 16 hexadecimal digits", stored.claim)),
    }
}

fn doubt_of(stored: &Stored, present: &Present) -> Option<NewClaim> {
    let planned = stored.ended_at.map_or(Duration::ZERO, |_| present.planned_restart_grace);
    let (away, allowed) = if stored.boot_id == present.boot_id {
        // A sign of life from the future of the same boot is impossible. Then nothing in the file
        // is trusted.
        let now = present.now + stored.clock_ahead;
        let Some(away) = now.checked_sub(stored.alive_at).map(Duration::from_millis) else {
            return Some(NewClaim::Damaged("its last sign of life lies in the future".to_owned()));
        };
        (away, present.restart_grace.max(planned))
    } else {
        let Some(ended_at) = stored.ended_at.filter(|_| !planned.is_zero()) else {
            return Some(NewClaim::Rebooted);
        };
        // Only the wall clock has counted meanwhile.
        let Some(away) = present.unix.checked_sub(ended_at) else {
            return Some(NewClaim::ClockSetBack);
        };
        (Duration::from_secs(away.into()), planned)
    };
    if away > allowed {
        return Some(NewClaim::Away(away));
    }
    (stored.policies != present.policies).then_some(NewClaim::PoliciesChanged)
}

/// See [`InstanceFile::clock_ahead`]. `kept`: the claim goes on.
fn clock_ahead(stored: &Stored, present: &Present, kept: bool) -> Millis {
    if present.plain_clock {
        return 0;
    }
    match (stored.boot_id == present.boot_id, kept) {
        // Rows of this boot carry times of this clock.
        (true, _) => stored.clock_ahead,
        (false, false) => 0,
        // The absence was no longer than the grace. So rows look at least as old as they are.
        (false, true) => stored.alive_at + present.planned_restart_grace.as_millis() as Millis,
    }
}

/// See [`InstanceFile::policies_since`]. An earlier run that was in no ring, or of a version that
/// noted nothing, may have had others meanwhile.
fn policies_since(stored: &Stored, present: &Present) -> Option<u32> {
    let same = stored.boot_id == present.boot_id && stored.policies == present.policies;
    let known = stored.policies_since.filter(|_| same);
    present.plain_clock.then(|| known.unwrap_or(seconds(present.now)))
}

fn fresh() -> Stored {
    Stored {
        instance: Uuid::new_v4(),
        claim: random_claim(),
        cluster: String::new(),
        data_center: String::new(),
        policies: String::new(),
        policies_since: None,
        lease_held: 0,
        lease_asked: 0,
        lease_taken: 0,
        boot_id: String::new(),
        alive_at: 0,
        clock_ahead: 0,
        ended_at: None,
    }
}

fn random_claim() -> String {
    // A version 4 UUID's first half has 60 random bits. It also holds the version, so it is never
    // zero.
    format!("{:016x}", Uuid::new_v4().as_u64_pair().0)
}

fn parse_claim(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok().filter(|claim| *claim != 0 && text.len() == 16)
}

#[cfg(test)]
#[path = "instance_file_tests.rs"]
mod tests;
