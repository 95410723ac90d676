//! A place made ready: disk, database, server, load, and what is known of them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    clock::Lived,
    counters::Counters,
    database_reads::DatabaseReads,
    disk::{FailingDevice, Shim, SmallDisk},
    error::KillError,
    load::{Load, LoadOptions},
    options::KillOptions,
    process::{self, Life, Server},
    rows::Rows,
    schedule::Place,
    segments::{self, Segments},
};
use crate::fake_backend::FakeBackend;
use afterglow_loadgen::port::free_port;
use afterglow_loadgen::{cql::ConnectOptions, rng::Rng};

const MIB: u64 = 1 << 20;
/// The space on a disk of its own for everything but the flash file. That is journal, metadata, the
/// file system itself, and a reserve. ext4 takes 22 MiB of 292.
const BESIDE_FLASH: u64 = 128 * MIB;
const START_LIMIT: Duration = Duration::from_secs(120);
/// A supervisor would start it again at once: for so long it may refuse.
const RETRY_STARTS: Duration = Duration::from_secs(5);

/// What the cache lives on.
pub(super) enum Medium {
    File,
    Disk(SmallDisk),
    Device(FailingDevice),
    Shim(Shim),
}

/// Everything about a place while rounds go on there. The load ends first, the disk is taken away
/// last.
pub(super) struct Site {
    pub(super) load: Load,
    /// Where everything has room.
    pub(super) counters: Option<Counters>,
    pub(super) server: Server,
    pub(super) reads: Option<Arc<DatabaseReads>>,
    pub(super) segments: Segments,
    pub(super) fake: Option<FakeBackend>,
    pub(super) rows: Rows,
    /// The file or device that holds the values.
    pub(super) flash: PathBuf,
    pub(super) flash_size: u64,
    pub(super) medium: Medium,
    /// Starts that had to be repeated. The kernel releases sockets and locks of a killed process
    /// that used io_uring only some milliseconds after the process is gone. So the next process may
    /// find its port or its files in use.
    pub(super) refused_starts: u32,
}

/// Sizes that follow from the number of keys.
struct Sizes {
    rows: Rows,
    flash: u64,
    memory: u64,
}

fn sizes(place: Place, keys: u64) -> Sizes {
    let whole = |bytes: u64| bytes.next_multiple_of(MIB);
    let (keys, flash) = match place {
        Place::Roomy => (keys, whole(keys * 32 * 1024).max(96 * MIB)),
        Place::Tight => (keys.max(10_000), whole(keys * 4 * 1024).max(64 * MIB)),
        _ => (keys, whole(keys * 20 * 1024).max(64 * MIB)),
    };
    // What an object may have at most, in a cache of that much flash.
    let segment = 1u64 << (flash / 256).max(64 * 1024).ilog2();
    let rows = Rows { keys, largest: segment / 4 - 512 };
    Sizes { rows, flash, memory: whole(flash / 20).max(32 * MIB) }
}

impl Site {
    /// Makes a place ready in a folder of its own, starts the server and loads the table. Returns
    /// what is worth saying about the first start.
    pub(super) fn make(
        place: Place,
        options: &KillOptions,
        lived: &Lived,
    ) -> Result<(Site, Life, Vec<String>), KillError> {
        let directory = options.directory.join(place.label());
        let files = |path: &Path| {
            let path = path.to_path_buf();
            move |source| KillError::Files { path, source }
        };
        let log = directory.join("afterglow.log");
        process::prepare(&directory, &log).map_err(files(&directory))?;
        let sizes = sizes(place, options.keys);
        let left = directory.join("data");
        if left.exists() {
            fs::remove_dir_all(&left).map_err(files(&left))?;
        }
        let medium = medium(place, &directory, sizes.flash).map_err(files(&directory))?;
        let data_dir = match &medium {
            Medium::Disk(disk) => disk.path().join("data"),
            _ => directory.join("data"),
        };
        let fake = match &options.backend {
            Some(_) => None,
            None => Some(FakeBackend::start(([127, 0, 0, 1], 0).into(), options.faults.clone())?),
        };
        let backend = fake.as_ref().map(|fake| fake.address().to_string());
        let keys = sizes.rows.keys;
        let reads = fake.as_ref().map(|f| DatabaseReads::listen(f, &options.keyspace, keys, lived));
        // Not from the seed of the moments: two tests with one seed may run side by side.
        let mut ports = Rng::new(u64::from(std::process::id()));
        let mut server = Server {
            binary: options.binary.clone(),
            backend: backend.or_else(|| options.backend.clone()).unwrap_or_default(),
            flash_options: Vec::new(),
            log: log.clone(),
            cql: free_port(&mut ports)?,
            admin: free_port(&mut ports)?,
            memory: format!("{}B", sizes.memory),
            options: common_options(options),
            environment: Vec::new(),
            data_dir,
        };
        let memcache = if place == Place::Roomy { Some(free_port(&mut ports)?) } else { None };
        server.options.extend(
            memcache.iter().flat_map(|front_end| ["--memcache".to_owned(), front_end.clone()]),
        );
        let flash = configure(&mut server, &medium, sizes.flash);
        let mut said = Vec::new();
        if let Medium::Disk(disk) = &medium {
            said.extend(refuses_to_begin(&server, disk).map_err(files(disk.path()))?);
        }
        let life = server.start(START_LIMIT)?;
        let load = Load::start(load_options(options, &server, sizes.rows), lived)?;
        let site = Site {
            load,
            counters: memcache.map(|front_end| Counters::start(&front_end)),
            server,
            reads,
            segments: Segments::new(log),
            fake,
            rows: sizes.rows,
            flash,
            flash_size: sizes.flash,
            medium,
            refused_starts: 0,
        };
        site.fill();
        Ok((site, life, said))
    }

    /// Every row once written and once read.
    fn fill(&self) {
        let keys: Vec<u64> = (0..self.rows.keys).collect();
        self.load.for_all(&keys, |client, key| client.insert(key));
        self.load.for_all(&keys, |client, key| client.read(key).map(drop));
    }

    /// Starts the server as a supervisor would: again, if it ends at once, for five seconds.
    pub(super) fn start(&mut self) -> Result<(Life, Duration), KillError> {
        let began = Instant::now();
        loop {
            match self.server.start(START_LIMIT) {
                Ok(life) => return Ok((life, began.elapsed())),
                Err(KillError::Ended { .. }) if began.elapsed() < RETRY_STARTS => {
                    self.refused_starts += 1;
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn medium(place: Place, directory: &Path, flash: u64) -> std::io::Result<Medium> {
    Ok(match place {
        Place::Roomy | Place::Tight => Medium::File,
        Place::Disk => Medium::Disk(SmallDisk::make(directory, flash + BESIDE_FLASH)?),
        Place::Device => Medium::Device(FailingDevice::make(directory, flash)?),
        Place::Shim => Medium::Shim(Shim::build(directory)?),
    })
}

fn common_options(options: &KillOptions) -> Vec<String> {
    let policy = format!("{}.*=exclusive", options.keyspace);
    // The grace is long because this process may be stopped for minutes between two lives.
    let given = [
        ("--table-policy", policy.as_str()),
        ("--unknown-outcome-hold", &options.hold),
        ("--restart-grace", "4h"),
        ("--log-level", segments::LOG_LEVEL),
    ];
    given.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
}

/// Says to the server what it lives on; returns where the values will be.
fn configure(server: &mut Server, medium: &Medium, flash: u64) -> PathBuf {
    if let Medium::Device(device) = medium {
        let named = format!("{}:{flash}B", device.path().display());
        server.flash_options.extend(["--flash".to_owned(), named]);
        return device.path().to_path_buf();
    }
    server.flash_options.extend(["--flash-size".to_owned(), format!("{flash}B")]);
    if let Medium::Shim(shim) = medium {
        server.options.extend(["--io", "pread"].map(str::to_owned));
        server.environment = vec![
            ("LD_PRELOAD".to_owned(), shim.library.clone()),
            ("AFTERGLOW_SHIM_CONTROL".to_owned(), shim.control.clone()),
            ("AFTERGLOW_SHIM_DIR".to_owned(), server.data_dir.clone()),
        ];
    }
    server.data_dir.join("flash")
}

/// On a disk without room a cache cannot be made: that must be said in words that help, and must
/// leave nothing behind.
fn refuses_to_begin(server: &Server, disk: &SmallDisk) -> std::io::Result<Option<String>> {
    disk.fill()?;
    let said = match server.start(START_LIMIT) {
        Err(KillError::Ended { status, log }) if !status.success() && log.contains("pace") => None,
        Err(error) => {
            Some(format!("on a full disk the first start did not say that space is short: {error}"))
        }
        Ok(_) => Some("on a full disk the first start did not fail".to_owned()),
    };
    disk.free()?;
    Ok(said)
}

fn load_options(options: &KillOptions, server: &Server, rows: Rows) -> LoadOptions {
    LoadOptions {
        host: server.cql.clone(),
        keyspace: options.keyspace.clone(),
        rows,
        readers: options.readers,
        writers: options.writers,
        pause: options.pause,
        seed: options.seed,
        connect: ConnectOptions { timeout: Duration::from_secs(10), ..ConnectOptions::default() },
    }
}
