//! The file `instance.toml` in the data directory: the identity of this instance and its present
//! claim.
//!
//! Rows cached under `exclusive` carry a *claim*, a random number that stands for "nobody but us
//! has written since". A new claim makes all of them misses at once, without touching them. A claim
//! is written to disk before the first row carries it, and is never used again after the next one.
//! So no damage or loss of the file can bring old rows back.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use afterglow_engine::device::area::replace_file;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Millis;
use crate::lease::KnownEpochs;

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
    lease_held: i64,
    lease_asked: i64,
    /// Kernel boot that `alive_at` is measured in.
    boot_id: String,
    /// Last sign of life, in milliseconds since that boot.
    alive_at: Millis,
}

/// Why a claim was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewClaim {
    /// No file: the first start in this directory.
    FirstStart,
    /// The file cannot be read or understood.
    Damaged(String),
    /// The machine has been restarted.
    Rebooted,
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

impl std::fmt::Display for NewClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NewClaim::FirstStart => write!(f, "this is the first start in this data directory"),
            NewClaim::Damaged(why) => write!(f, "{FILE} cannot be used ({why})"),
            NewClaim::Rebooted => write!(f, "the machine was restarted since"),
            NewClaim::Away(away) => {
                write!(f, "away for {} s, longer than restart-grace", away.as_secs())
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
    /// Longest absence after which cached rows are still valid.
    pub restart_grace: Duration,
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
        let (stored, doubt) = match read(&path) {
            Ok(Some(stored)) => {
                let doubt = doubt(&stored, present);
                (stored, doubt)
            }
            Ok(None) => (fresh(), Some(NewClaim::FirstStart)),
            Err(why) => (fresh(), Some(NewClaim::Damaged(why))),
        };
        let mut instance = InstanceFile { path, stored };
        if doubt.is_some() {
            instance.stored.claim = random_claim();
        }
        instance.stored.policies.clone_from(&present.policies);
        instance.stored.boot_id.clone_from(&present.boot_id);
        instance.stored.alive_at = present.now;
        instance.write()?;
        Ok((instance, doubt))
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

    /// Takes other table policies, for which a new claim is due. They are on disk with the next
    /// write, never before that claim is.
    pub fn set_policies(&mut self, policies: &str) {
        self.stored.policies = policies.to_owned();
    }

    /// Takes lease epochs for which a new claim is due. They are on disk with the next write, never
    /// before that claim is. Otherwise a restart would take the old claim for unbroken.
    pub fn set_epochs(&mut self, epochs: KnownEpochs) {
        self.stored.lease_held = epochs.held;
        self.stored.lease_asked = epochs.asked;
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
        let text = toml::to_string(&self.stored).map_err(io::Error::other)?;
        replace_file(&self.path, text.as_bytes(), false)
    }
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

fn doubt(stored: &Stored, present: &Present) -> Option<NewClaim> {
    if stored.boot_id != present.boot_id {
        return Some(NewClaim::Rebooted);
    }
    // A sign of life from the future of the same boot is impossible. Then nothing in the file is
    // trusted.
    let Some(away) = present.now.checked_sub(stored.alive_at).map(Duration::from_millis) else {
        return Some(NewClaim::Damaged("its last sign of life lies in the future".to_owned()));
    };
    if away > present.restart_grace {
        return Some(NewClaim::Away(away));
    }
    (stored.policies != present.policies).then_some(NewClaim::PoliciesChanged)
}

fn fresh() -> Stored {
    Stored {
        instance: Uuid::new_v4(),
        claim: random_claim(),
        cluster: String::new(),
        data_center: String::new(),
        policies: String::new(),
        lease_held: 0,
        lease_asked: 0,
        boot_id: String::new(),
        alive_at: 0,
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
mod tests {
    use super::*;

    fn present(now: Millis) -> Present {
        Present {
            policies: "shop.*=exclusive".to_owned(),
            boot_id: "boot".to_owned(),
            now,
            restart_grace: Duration::from_secs(60),
        }
    }

    fn directory(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("afterglow-instance-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn identity_and_claim_survive_a_short_absence() {
        let dir = directory("short");
        let (mut first, why) = InstanceFile::open(&dir, &present(1_000)).unwrap();
        assert_eq!(why, Some(NewClaim::FirstStart));
        first.note_alive(5_000).unwrap();
        first.note_epochs(KnownEpochs { held: 3, asked: 4 }).unwrap();
        let (second, why) = InstanceFile::open(&dir, &present(65_000)).unwrap();
        assert_eq!(why, None);
        assert_eq!((second.id(), second.claim()), (first.id(), first.claim()));
        assert_eq!(second.epochs(), KnownEpochs { held: 3, asked: 4 });
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn each_doubt_makes_a_new_claim_but_keeps_the_identity() {
        type Case = (&'static str, fn(&mut Present), fn(&NewClaim) -> bool);
        let cases: [Case; 4] = [
            ("reboot", |p| p.boot_id = "other".to_owned(), |why| *why == NewClaim::Rebooted),
            ("away", |p| p.now += 61_000, |why| matches!(why, NewClaim::Away(_))),
            ("policies", |p| p.policies.push('x'), |why| *why == NewClaim::PoliciesChanged),
            ("clock", |p| p.now = 0, |why| matches!(why, NewClaim::Damaged(_))),
        ];
        for (name, change, expected) in cases {
            let dir = directory(name);
            let (first, _) = InstanceFile::open(&dir, &present(1_000)).unwrap();
            let mut later = present(1_000);
            change(&mut later);
            let (second, why) = InstanceFile::open(&dir, &later).unwrap();
            assert!(why.as_ref().is_some_and(expected), "{name}: {why:?}");
            assert_eq!(second.id(), first.id(), "{name}");
            assert_ne!(second.claim(), first.claim(), "{name}");
            // The new claim is on disk before anything carries it.
            assert_eq!(
                InstanceFile::open(&dir, &later).unwrap().0.claim(),
                second.claim(),
                "{name}"
            );
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let dir = directory("damaged");
        let (first, _) = InstanceFile::open(&dir, &present(0)).unwrap();
        fs::write(dir.join(FILE), "instance = 7").unwrap();
        let (second, why) = InstanceFile::open(&dir, &present(0)).unwrap();
        assert!(matches!(why, Some(NewClaim::Damaged(_))), "{why:?}");
        assert_ne!(second.claim(), first.claim());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn another_data_center_is_noticed_once_also_after_a_restart() {
        let dir = directory("data-center");
        let open = || InstanceFile::open(&dir, &present(0)).unwrap().0;
        let mut first = open();
        assert!(!first.set_data_center("a") && !first.set_data_center("a"));
        first.note_alive(0).unwrap();
        let mut second = open();
        assert!(
            !second.set_data_center("a")
                && second.set_data_center("b")
                && !second.set_data_center("b")
        );
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn another_cluster_is_noticed_once() {
        let dir = directory("cluster");
        let (mut instance, _) = InstanceFile::open(&dir, &present(0)).unwrap();
        assert!(!instance.set_cluster("one"));
        assert!(!instance.set_cluster("one"));
        assert!(instance.set_cluster("two"));
        assert!(!instance.set_cluster("two"));
        fs::remove_dir_all(dir).unwrap();
    }
}
