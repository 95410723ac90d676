//! The steps of a round.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::PathBuf,
    time::{Duration, Instant},
};

use afterglow_engine::format::superblock;

use super::{
    account::{Account, Window},
    clock::Lived,
    counters,
    disk::DiskFaults,
    error::KillError,
    options::{KillOptions, Lie},
    probe::Probe,
    process::Life,
    report::{KillReport, Round},
    schedule::{EndKind, Place},
    site::{Medium, Site},
    warmth::{Sample, WINDOW},
};
use crate::{
    fake_backend,
    history::{Event, Fault, Verdict, check, residue, write_events},
};
use afterglow_loadgen::{metrics, rng::Rng};

const STOP_LIMIT: Duration = Duration::from_secs(120);
/// How long a checkpoint is waited for.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(20);
/// How long the index may load: what is not there by then counts as not served.
const LOAD_LIMIT: Duration = Duration::from_secs(20);
/// A round in which this process was not let run for longer says nothing about warmth.
const STALLED: Duration = Duration::from_secs(2);
/// A key beside all others, to see whether reads are answered.
const NOBODY: u64 = 1 << 40;

/// Rounds in one place.
pub(super) struct Stage<'a> {
    place: Place,
    options: &'a KillOptions,
    lived: Lived,
    rng: Rng,
    site: Site,
    life: Option<Life>,
    /// What reads may still return of writes that have been judged.
    carried: Vec<Event>,
    said: Vec<String>,
    /// How often the log had told, before this life, that a segment was given up.
    reclaims_before: u64,
}

/// Where reads of a life were answered, and what the server counted of it.
#[derive(Clone, Default)]
struct Seen {
    cache: metrics::CacheCounters,
    device_errors: u64,
    account: Account,
    /// The most that something had waited to be written to flash, in seconds.
    unsaved_age: u64,
}

impl<'a> Stage<'a> {
    pub(super) fn begin(
        place: Place,
        options: &'a KillOptions,
        lived: &Lived,
        rng: &mut Rng,
    ) -> Result<Stage<'a>, KillError> {
        let (site, life, said) = Site::make(place, options, lived)?;
        let (lived, rng) = (lived.clone(), Rng::new(rng.next_u64()));
        let stage = Stage {
            place,
            options,
            lived,
            rng,
            site,
            life: Some(life),
            carried: Vec::new(),
            said,
            reclaims_before: 0,
        };
        stage.site.load.shared().expect(true);
        stage.site.load.release();
        Ok(stage)
    }

    fn moment(&mut self, from: Duration, to: Duration) -> Duration {
        from + to.saturating_sub(from).mul_f64(self.rng.next_f64())
    }

    /// One round.
    pub(super) fn round(&mut self, kind: EndKind, number: u32) -> Result<Round, KillError> {
        let mut round = Round::new(number, self.place, kind);
        round.complaints.append(&mut self.said);
        let mut life = self.life.take().expect("the last round started it");
        let answered = self.site.load.shared().answered();
        let mut counters = Seen::default();
        let mut once = Vec::new();
        self.live(kind, &mut life, &mut counters, &mut round)?;
        if kind == EndKind::Counters {
            once = self.leave_alone(number, &mut life, &mut counters, &mut round)?;
        }
        let stalled = self.lived.lost();
        self.site.segments.mark()?;
        self.look(&mut counters);
        let before_sample = counters.account.clone();
        let mut sample = self.sample();
        self.look(&mut counters);
        self.site.segments.update()?;
        let looked = self.site.segments.reclaims();
        let copy = self.copy_journal()?;
        self.end_life(kind, life, &mut round)?;
        let ended = self.lived.now();
        self.account(kind, &before_sample, &counters, &mut round)?;
        let reclaimed_since = self.site.segments.reclaims() > looked;
        self.site.load.hold();
        self.judge(&mut round)?;
        if let (Some(sample), Some(db_reads)) = (&mut sample, &self.site.reads) {
            let clean = kind == EndKind::Clean;
            let searched = sample.search(
                &self.site.flash,
                self.site.rows,
                db_reads,
                &mut self.site.segments,
                (ended, clean),
            );
            searched
                .map_err(|source| KillError::Files { path: self.site.flash.clone(), source })?;
        }
        self.between(kind, copy, &mut round)?;
        self.start_again(kind, &mut round)?;
        self.count_lost(&once, &mut round)?;
        self.site.load.release();
        let mut kept = None;
        if let (Some(sample), Some(db_reads)) = (&mut sample, &self.site.reads) {
            let mut found = sample.judge(&self.site.load, db_reads, &mut self.site.segments)?;
            match kind {
                EndKind::Clean => found.account_for(&round.losses),
                _ if reclaimed_since => found.account_for_reclaims(),
                _ => found.account_for_crash(counters.account.in_dram_alone()),
            }
            kept = Some(found);
        }
        self.after(kind)?;
        round.kept = kept.filter(|_| kind.keeps_flash() && self.lived.lost() - stalled < STALLED);
        round.stalled = self.lived.lost() - stalled >= STALLED;
        if round.stalled || round.disk_stood() {
            (round.once, round.once_lost) = (0, 0);
        }
        round.complaints.append(&mut self.site.load.shared().take_complaints());
        (round.dram_hits, round.flash_hits) = (counters.cache.dram_hits, counters.cache.flash_hits);
        (round.misses, round.device_errors) = (counters.cache.misses, counters.device_errors);
        round.operations = self.site.load.shared().answered() - answered;
        Ok(round)
    }

    /// Sets objects once, and waits until they are older than what a crash may cost. Only the
    /// counters go on meanwhile: nothing drives the objects out of DRAM, which would bring them to
    /// flash.
    fn leave_alone(
        &mut self,
        number: u32,
        life: &mut Life,
        seen: &mut Seen,
        round: &mut Round,
    ) -> Result<Vec<String>, KillError> {
        self.site.load.hold();
        let Some(counters) = &self.site.counters else { return Ok(Vec::new()) };
        let probe = Probe::start(&self.site.server.data_dir)?;
        self.look(seen);
        (seen.unsaved_age, round.window) = (0, None);
        let (errors, refused) = (seen.account.write_errors, seen.account.copies_refused);
        let (before, once) = (counters.answered(), counters.set_once(number)?);
        let some_time = self.moment(Duration::ZERO, Duration::from_secs(3));
        self.pass(WINDOW + some_time, life, seen)?;
        round.window = Some(Window {
            unsaved_age: seen.unsaved_age,
            write_errors: seen.account.write_errors.saturating_sub(errors),
            copies_refused: seen.account.copies_refused.saturating_sub(refused),
            slowest_write_ms: probe.slowest().as_millis() as u64,
        });
        drop(probe);
        self.site.load.release();
        let each = self.site.counters.as_ref().map_or(0, |counters| counters.answered() - before)
            / counters::COUNTERS as u64;
        if each < 2 * WINDOW.as_secs() {
            round.complaints.push(format!(
                "each counter was incremented {each} times: nothing is shown about objects beside them"
            ));
        }
        Ok(once)
    }

    /// Counts what is lost of objects that were set once, and takes what was wrong with the
    /// counters.
    fn count_lost(&self, once: &[String], round: &mut Round) -> io::Result<()> {
        if let Some(counters) = &self.site.counters {
            (round.once, round.once_lost) = (once.len() as u64, counters.missing(once)?);
            round.complaints.append(&mut counters.take_complaints());
        }
        Ok(())
    }

    fn sample(&mut self) -> Option<Sample> {
        let db_reads = self.site.reads.as_ref()?;
        let keys = Sample::draw(self.site.rows, self.options.sample, &mut self.rng);
        Some(Sample::read(&self.site.load, db_reads, &keys))
    }

    /// The counters die with the server: they are read often, up to just before its end.
    fn look(&self, counters: &mut Seen) {
        let Ok(text) = metrics::get(&self.site.server.admin, "/metrics") else { return };
        counters.cache = metrics::parse(&text);
        counters.device_errors = metrics::sum(&text, "afterglow_engine_device_read_errors_total")
            + metrics::sum(&text, "afterglow_engine_device_write_errors_total");
        counters.account = Account::read(&text);
        counters.unsaved_age = counters.unsaved_age.max(counters.account.unsaved_age);
    }

    /// The life has ended: what the server has counted of it since the sample was drawn.
    fn account(
        &mut self,
        kind: EndKind,
        before: &Account,
        seen: &Seen,
        round: &mut Round,
    ) -> io::Result<()> {
        round.unsaved_age = seen.account.unsaved_age;
        round.losses = seen.account.losses_since(before);
        if kind == EndKind::Clean {
            match Account::read_end(&self.site.server.tail()) {
                Some(end) => round.losses = end.losses_since(before),
                None => {
                    round.complaints.push("a clean stop did not say what it had dropped".to_owned())
                }
            }
        }
        self.site.segments.update()?;
        if seen.account.reclaimed > 0 && self.site.segments.reclaims() == self.reclaims_before {
            round.complaints.push(format!(
                "the log tells of none of {} segments that were reclaimed: what is on flash cannot be judged",
                seen.account.reclaimed
            ));
        }
        Ok(())
    }

    /// Lets the server live, and does in the middle of it what the kind says.
    fn live(
        &mut self,
        kind: EndKind,
        life: &mut Life,
        counters: &mut Seen,
        round: &mut Round,
    ) -> Result<(), KillError> {
        let length = self.moment(self.options.life.0, self.options.life.1);
        self.pass(length / 2, life, counters)?;
        self.disturb(kind, life, counters, round)?;
        self.pass(length / 2, life, counters)
    }

    fn pass(&self, time: Duration, life: &mut Life, counters: &mut Seen) -> Result<(), KillError> {
        let end = self.lived.now() + time;
        while self.lived.now() < end {
            self.lived.sleep(Duration::from_millis(200).min(end.saturating_sub(self.lived.now())));
            if let Some(status) = life.has_ended() {
                return Err(KillError::Ended { status, log: self.site.server.tail() });
            }
            self.look(counters);
        }
        Ok(())
    }

    fn disturb(
        &mut self,
        kind: EndKind,
        life: &mut Life,
        counters: &mut Seen,
        round: &mut Round,
    ) -> Result<(), KillError> {
        let some_time = self.moment(Duration::from_millis(300), Duration::from_millis(2500));
        match (kind, &self.site.medium) {
            (EndKind::Pause, _) => {
                for _ in 0..1 + self.rng.below(4) {
                    let time = self.moment(Duration::from_millis(50), Duration::from_millis(1500));
                    self.lived.freeze(true);
                    life.pause(true);
                    std::thread::sleep(time);
                    life.pause(false);
                    self.lived.freeze(false);
                    round.note.push(format!("stopped {} ms", time.as_millis()));
                    self.pass(Duration::from_millis(100), life, counters)?;
                }
            }
            (EndKind::Doubt, _) => {
                if let Some(fake) = &self.site.fake {
                    let write_timeouts = 0.1;
                    fake.set_faults(fake_backend::Faults {
                        write_timeouts,
                        ..self.options.faults.clone()
                    });
                    self.pass(some_time, life, counters)?;
                    fake.set_faults(self.options.faults.clone());
                }
            }
            (EndKind::FullDisk, Medium::Disk(disk)) => {
                disk.fill()?;
                round.note.push("disk full".to_owned());
            }
            (EndKind::Device, Medium::Device(device)) => {
                let whole = self.site.flash_size;
                let from =
                    [0, self.rng.below(whole), whole / 2][self.rng.below(3) as usize] / 4096 * 4096;
                // A device that has forgotten whose it is must be refused at the next start, and
                // that ends a campaign.
                let from = from.max(superblock::RESERVED);
                device.cut(from)?;
                round.note.push(format!(
                    "lost from {} MiB on for {} ms",
                    from >> 20,
                    some_time.as_millis()
                ));
                self.pass(some_time, life, counters)?;
                device.heal()?;
            }
            (EndKind::IoErrors, Medium::Shim(shim)) => {
                let share = |rng: &mut Rng| -> f64 { [0.0, 0.05, 0.3, 1.0][rng.below(4) as usize] };
                let (reads, writes, syncs) =
                    (share(&mut self.rng), share(&mut self.rng).max(0.3), share(&mut self.rng));
                let full = self.rng.below(2) == 0;
                let before = shim.failed()?;
                shim.set(DiskFaults { reads, writes, syncs, full })?;
                self.pass(some_time, life, counters)?;
                if let Medium::Shim(shim) = &self.site.medium {
                    shim.set(DiskFaults::default())?;
                    round.note.push(format!("{} calls failed", shim.failed()? - before));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the life as the kind says.
    fn end_life(
        &mut self,
        kind: EndKind,
        mut life: Life,
        round: &mut Round,
    ) -> Result<(), KillError> {
        if kind == EndKind::Checkpoint {
            round.note.push(self.wait_for_checkpoint(&mut life)?);
        }
        if let Some(status) = life.has_ended() {
            return Err(KillError::Ended { status, log: self.site.server.tail() });
        }
        self.site.load.shared().expect(false);
        match kind {
            EndKind::Clean => return life.stop(STOP_LIMIT),
            EndKind::Stop => {
                let after = self.moment(Duration::ZERO, Duration::from_millis(400));
                life.terminate();
                std::thread::sleep(after);
                let ended = life.has_ended().is_some();
                let word = if ended { "it had ended" } else { "killed" };
                round.note.push(format!("{word} {} ms after SIGTERM", after.as_millis()));
            }
            _ => {}
        }
        Ok(life.kill()?)
    }

    /// Waits until a checkpoint is being written, then for a random part of its time.
    fn wait_for_checkpoint(&mut self, life: &mut Life) -> Result<String, KillError> {
        let give_up = self.lived.now() + CHECKPOINT_LIMIT;
        while self.lived.now() < give_up && life.has_ended().is_none() {
            let running = metrics::get(&self.site.server.admin, "/metrics")
                .is_ok_and(|text| metrics::sum(&text, "afterglow_engine_checkpoint_running") > 0);
            if running {
                let after = self.moment(Duration::ZERO, Duration::from_millis(20));
                std::thread::sleep(after);
                return Ok(format!("{} ms into a checkpoint", after.as_millis()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok("no checkpoint came".to_owned())
    }

    /// Judges all reads since the last time.
    fn judge(&mut self, round: &mut Round) -> Result<(), KillError> {
        let mut events = std::mem::take(&mut self.carried);
        let carried = events.len();
        events.append(&mut self.site.load.shared().take_events());
        let now = self.site.load.shared().now();
        let Verdict { reads, violations, .. } = check(&events)?;
        round.reads += reads;
        let wrong = violations.iter().filter(|v| v.fault == Fault::NeverWritten).count() as u64;
        round.wrong += wrong;
        round.stale += violations.len() as u64 - wrong;
        round.writes += (events.len() - carried) as u64 - reads;
        // The last reads of all are judged with the last round: the history kept is the one that
        // was wrong first.
        if !violations.is_empty() && round.violations.is_empty() {
            let path = self.options.directory.join("history.jsonl");
            let write = |path: &PathBuf| write_events(&events, BufWriter::new(File::create(path)?));
            write(&path).map_err(|source| KillError::Files { path: path.clone(), source })?;
        }
        round.violations.extend(violations);
        self.carried = residue(&events, now)?;
        Ok(())
    }

    /// In the middle of a life: the journal as it is, for a lie.
    fn copy_journal(&self) -> io::Result<Option<PathBuf>> {
        if self.options.lie != Some(Lie::RolledBack) {
            return Ok(None);
        }
        let copy = self.options.directory.join("journal.copy");
        fs::copy(self.site.server.data_dir.join("journal"), &copy)?;
        self.lived.sleep(Duration::from_millis(500));
        Ok(Some(copy))
    }

    /// What happens between two lives.
    fn between(
        &mut self,
        kind: EndKind,
        copy: Option<PathBuf>,
        round: &mut Round,
    ) -> Result<(), KillError> {
        if self.options.lie == Some(Lie::Emptied) {
            for name in ["state", "journal", "flash"] {
                fs::remove_file(self.site.server.data_dir.join(name))?;
            }
        }
        if let Some(copy) = copy {
            fs::copy(copy, self.site.server.data_dir.join("journal"))?;
        }
        if kind == EndKind::Memory {
            let choices = [32, 36, 40, 48, 64, 96];
            let memory = choices[self.rng.below(choices.len() as u64) as usize];
            self.site.server.memory = format!("{memory}MiB");
            round.note.push(format!("now {memory} MiB"));
        }
        if kind == EndKind::Recovery {
            let mut moments = Vec::new();
            for _ in 0..1 + self.rng.below(4) {
                let life = self.site.server.spawn()?;
                let moment = self.moment(Duration::ZERO, Duration::from_millis(500));
                std::thread::sleep(moment);
                life.kill()?;
                moments.push(format!("{}", moment.as_millis()));
            }
            round.note.push(format!("killed again after {} ms", moments.join(", ")));
        }
        Ok(())
    }

    /// Starts the server and sees that it answers reads.
    fn start_again(&mut self, kind: EndKind, round: &mut Round) -> Result<(), KillError> {
        let lost = self.lived.lost();
        self.reclaims_before = self.site.segments.reclaims();
        let (life, ready) = self.site.start()?;
        self.life = Some(life);
        let ready = ready.saturating_sub(self.lived.lost() - lost);
        if kind != EndKind::Recovery {
            // Who was killed a moment ago may hold the files for another moment: what is measured
            // is the last start alone.
            round.ready_ms = Some(ready.as_millis() as u64);
        }
        let since = Instant::now();
        // A statement is answered by the database once before it is answered from the cache.
        self.site
            .load
            .for_all(&[NOBODY, NOBODY + 8, NOBODY + 16], |client, key| client.read(key).map(drop));
        round.warm_up_ms = since.elapsed().as_millis() as u64;
        self.wait_until_loaded();
        self.site.load.shared().expect(true);
        Ok(())
    }

    /// What was kept is all there once the index is loaded; until then a read may miss.
    fn wait_until_loaded(&self) {
        let give_up = self.lived.now() + LOAD_LIMIT;
        let loaded = || {
            metrics::get(&self.site.server.admin, "/metrics")
                .is_ok_and(|text| metrics::sum(&text, "afterglow_engine_loading") == 0)
        };
        while !loaded() && self.lived.now() < give_up {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What a kind leaves behind is taken away.
    fn after(&mut self, kind: EndKind) -> Result<(), KillError> {
        if let (EndKind::FullDisk, Medium::Disk(disk)) = (kind, &self.site.medium) {
            disk.free()?;
        }
        Ok(())
    }

    /// The last reads: every row once more.
    pub(super) fn end(mut self, report: &mut KillReport) -> Result<(), KillError> {
        self.site.load.hold();
        let keys: Vec<u64> = (0..self.site.rows.keys).collect();
        self.site.load.for_all(&keys, |client, key| client.read(key).map(drop));
        let mut last =
            report.rounds.pop().unwrap_or_else(|| Round::new(0, self.place, EndKind::Kill));
        self.judge(&mut last)?;
        last.complaints.append(&mut self.site.load.shared().take_complaints());
        report.rounds.push(last);
        report.refused_starts += self.site.refused_starts;
        self.site.load.shared().expect(false);
        Ok(())
    }
}
