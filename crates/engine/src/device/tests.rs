//! Real files through both real queues.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::claim::{attempt_while, is_busy, lock};
use super::*;
use crate::format::superblock::Superblock;
use crate::testing::TempDir;

const MIB: u64 = 1 << 20;

fn config(path: &Path, size: u64) -> Vec<DeviceConfig> {
    vec![DeviceConfig { path: path.to_path_buf(), size }]
}

/// Runs a test over each queue that can be had here. The pread queue always can.
fn with_each_engine(test: impl Fn(OpenDevices, &Path)) {
    for engine in [IoEngine::Pread, IoEngine::Uring] {
        let dir = TempDir::new();
        let path = dir.path().join("flash");
        match open(&config(&path, 4 * MIB), engine) {
            Ok(opened) => {
                assert_eq!(opened.engine, engine);
                test(opened, &path);
            }
            Err(DeviceError::UringRefused { source }) => {
                eprintln!("io_uring is refused here ({source}), not tested")
            }
            Err(e) => panic!("{e}"),
        }
    }
}

fn filled(byte: u8, len: usize) -> WriteBuf {
    AlignedBuf::copy_of(&vec![byte; len]).into()
}

fn io(id: u64, offset: u64, kind: IoKind) -> Io {
    Io { id, device: DeviceId(0), offset, kind }
}

/// Submits all, waits for all, returns them by id.
fn run(disk: &mut dyn Disk, ios: Vec<Io>) -> Vec<Done> {
    let count = ios.len();
    ios.into_iter().for_each(|io| disk.submit(io));
    assert_eq!(disk.in_flight(), count);
    let mut done = Vec::new();
    disk.wait(count, &mut done);
    assert_eq!((done.len(), disk.in_flight()), (count, 0));
    done.sort_by_key(|done| done.id);
    done
}

#[test]
fn what_is_written_is_read_by_queue_and_caller() {
    with_each_engine(|OpenDevices { mut disk, set, .. }, _| {
        let step = u64::from(set.infos()[0].alignment);
        // More than the kernel's queue holds at once, so that the backlog is used too.
        let writes = (0..600)
            .map(|n| io(n, n * step, IoKind::Write { data: filled(n as u8, step as usize) }))
            .collect();
        assert!(
            run(&mut *disk, writes).iter().all(|done| matches!(done.result, Ok(IoOutput::Written)))
        );
        let synced = run(&mut *disk, vec![io(1, 0, IoKind::Sync)]);
        assert!(matches!(synced[0].result, Ok(IoOutput::Synced)));
        let reads = (0..600).map(|n| io(n, n * step, IoKind::Read { len: step as u32 })).collect();
        for (n, done) in run(&mut *disk, reads).into_iter().enumerate() {
            let Ok(IoOutput::Read(buf)) = done.result else {
                panic!("read {n} failed: {:?}", done.result)
            };
            assert!(buf.len() as u64 == step && buf.iter().all(|&byte| byte == n as u8));
        }
        let whole = set.read_at(DeviceId(0), 0, 3 * step as u32).expect("a readable device");
        assert_eq!((whole[0], whole[step as usize], whole[2 * step as usize]), (0, 1, 2));
    });
}

#[test]
fn a_chunk_is_written_in_parts_while_others_hold_it() {
    with_each_engine(|OpenDevices { mut disk, set, .. }, _| {
        let chunk = Arc::new(AlignedBuf::copy_of(&[vec![1; 4096], vec![2; 4096]].concat()));
        let data = WriteBuf::slice(chunk.clone(), 4096..8192);
        run(&mut *disk, vec![io(1, 0, IoKind::Write { data })]);
        assert_eq!(chunk[4096], 2);
        assert!(set.read_at(DeviceId(0), 0, 4096).expect("readable").iter().all(|&byte| byte == 2));
    });
}

#[test]
fn bad_requests_are_refused_and_the_rest_goes_on() {
    with_each_engine(|OpenDevices { mut disk, set, .. }, _| {
        let done = run(
            &mut *disk,
            vec![
                io(0, 1, IoKind::Read { len: 4096 }),
                io(1, 4 * MIB, IoKind::Read { len: 4096 }),
                io(2, 0, IoKind::Write { data: filled(1, 100) }),
                Io { id: 3, device: DeviceId(7), offset: 0, kind: IoKind::Sync },
                io(4, 0, IoKind::Read { len: 0 }),
                io(5, 0, IoKind::Read { len: 4096 }),
            ],
        );
        for done in &done[..5] {
            assert_eq!(
                done.result.as_ref().err().map(io::Error::kind),
                Some(io::ErrorKind::InvalidInput),
                "request {}",
                done.id
            );
        }
        assert!(matches!(&done[5].result, Ok(IoOutput::Read(buf)) if buf.len() == 4096));
        let kind = |result: io::Result<AlignedBuf>| result.err().map(|e| e.kind());
        assert_eq!(
            kind(set.read_at(DeviceId(0), 4 * MIB, 4096)),
            Some(io::ErrorKind::InvalidInput)
        );
        assert_eq!(kind(set.read_at(DeviceId(1), 0, 4096)), Some(io::ErrorKind::InvalidInput));
    });
}

/// A file that somebody has truncated gives errors, not buffers with garbage.
#[test]
fn a_read_cut_short_is_an_error() {
    with_each_engine(|OpenDevices { mut disk, set, .. }, path| {
        OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(MIB + 4096))
            .expect("truncated");
        let done = run(&mut *disk, vec![io(1, MIB, IoKind::Read { len: 8192 })]);
        assert_eq!(
            done[0].result.as_ref().err().map(io::Error::kind),
            Some(io::ErrorKind::UnexpectedEof)
        );
        let short = set.read_at(DeviceId(0), MIB, 8192).err().map(|e| e.kind());
        assert_eq!(short, Some(io::ErrorKind::UnexpectedEof));
        assert!(set.read_at(DeviceId(0), MIB, 4096).is_ok());
    });
}

#[test]
fn polling_returns_at_once_and_a_dropped_queue_finishes_its_writes() {
    with_each_engine(|OpenDevices { mut disk, set, .. }, _| {
        let mut done = Vec::new();
        disk.wait(0, &mut done);
        disk.wait(5, &mut done);
        assert!(done.is_empty(), "nothing is in flight");
        (0..8).for_each(|n| {
            disk.submit(io(n, n * 65_536, IoKind::Write { data: filled(9, 65_536) }))
        });
        drop(disk);
        assert!(
            set.read_at(DeviceId(0), 0, 8 * 65_536)
                .expect("readable")
                .iter()
                .all(|&byte| byte == 9)
        );
    });
}

#[test]
fn auto_takes_what_there_is() {
    let dir = TempDir::new();
    let opened = open(&config(&dir.path().join("flash"), MIB), IoEngine::Auto).expect("opened");
    assert_ne!(opened.engine, IoEngine::Auto);
}

#[test]
fn files_are_private_whole_and_keep_their_content() {
    let dir = TempDir::new();
    let path = dir.path().join("flash");
    let superblock = Superblock {
        uuid: [1; 16],
        device: 0,
        devices: 1,
        set_epoch: 1,
        size: 1 << 30,
        segment_size: 1 << 20,
        segments: 1000,
        area: 1 << 16,
        hash_seed: 42,
    };
    std::fs::write(&path, [&superblock.encode()[..], &[7; 4096]].concat()).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("widened");
    let opened = open(&config(&path, 2 * MIB), IoEngine::Pread).expect("opened");
    let found = std::fs::metadata(&path).expect("there");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert_eq!(found.len(), 2 * MIB);
    assert!(found.blocks() * 512 >= 2 * MIB, "every block is there: {}", found.blocks());
    let info = &opened.set.infos()[0];
    assert!(
        info.size == 2 * MIB
            && info.alignment.is_power_of_two()
            && (512..=4096).contains(&info.alignment)
    );
    assert!(
        opened
            .set
            .read_at(DeviceId(0), 8192, 4096)
            .expect("readable")
            .iter()
            .all(|&byte| byte == 7)
    );
    drop(opened);
    // A smaller cache gives the space back.
    drop(open(&config(&path, MIB), IoEngine::Pread).expect("opened"));
    assert_eq!(std::fs::metadata(&path).expect("there").len(), MIB);
}

#[test]
fn errors_say_what_is_wrong() {
    let dir = TempDir::new();
    let path = dir.path().join("flash");
    let failure =
        |path: &Path, size| open(&config(path, size), IoEngine::Pread).err().expect("refused");

    let first = open(&config(&path, MIB), IoEngine::Pread).expect("opened");
    assert!(matches!(failure(&path, MIB), DeviceError::InUse { .. }));
    drop(first);
    assert!(open(&config(&path, MIB), IoEngine::Pread).is_ok(), "a closed cache holds no lock");

    assert!(matches!(failure(&path, 0), DeviceError::BadSize { .. }));
    assert!(matches!(failure(&path, 5000), DeviceError::BadSize { .. }));
    assert!(matches!(failure(dir.path(), MIB), DeviceError::NotAFile { .. }));
    assert!(matches!(failure(Path::new("/dev/null"), MIB), DeviceError::NotAFile { .. }));
    assert!(matches!(failure(&dir.path().join("no/flash"), MIB), DeviceError::NoDirectory { .. }));

    // Below /dev a file would be in memory; what is refused leaves no file there or elsewhere.
    let missing = Path::new("/dev/afterglow-no-such-device");
    let (nowhere, link) = (dir.path().join("nowhere"), dir.path().join("link"));
    std::os::unix::fs::symlink(missing, &link).expect("linked");
    for (path, size) in [(missing, MIB), (missing, 0), (&link, MIB)] {
        assert!(matches!(failure(path, size), DeviceError::NoDevice { .. }), "{}", path.display());
    }
    assert!(matches!(failure(&nowhere, 0), DeviceError::BadSize { .. }));
    assert!(!missing.exists() && !nowhere.exists(), "a file was left");

    // No file system has 2^60 bytes.
    let error = failure(&path, 1 << 60);
    assert!(matches!(error, DeviceError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains("configure a smaller size"));
    assert_eq!(
        std::fs::metadata(&path).expect("there").len(),
        MIB,
        "a refused size leaves the file as it was"
    );
}

#[test]
fn a_lock_that_is_let_go_soon_is_waited_for() {
    let dir = TempDir::new();
    let path = dir.path().join("flash");
    let first = File::create(&path).expect("created");
    let second = File::open(&path).expect("opened");
    lock(&first, Duration::ZERO).expect("free");
    assert_eq!(lock(&second, Duration::ZERO), Err(Errno::WOULDBLOCK));
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock(&second, Duration::from_secs(60)));
        thread::sleep(Duration::from_millis(20));
        drop(first);
        assert_eq!(waits.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn a_block_device_that_is_let_go_soon_is_waited_for() {
    let busy = || io::Error::from(Errno::BUSY);
    let (mut attempts, minute) = (0, Duration::from_secs(60));
    let opened = attempt_while(minute, is_busy, || {
        attempts += 1;
        if attempts < 3 { Err(busy()) } else { Ok(attempts) }
    });
    assert_eq!(opened.expect("let go"), 3);
    let kind = |limit, error: fn() -> io::Error| {
        let opened: io::Result<()> = attempt_while(limit, is_busy, || Err(error()));
        opened.expect_err("not opened").kind()
    };
    assert_eq!(kind(Duration::ZERO, || Errno::BUSY.into()), busy().kind());
    // Whatever else it is does not pass.
    assert_eq!(kind(minute, || Errno::ACCESS.into()), io::ErrorKind::PermissionDenied);
}

#[test]
fn looking_needs_no_lock_and_changes_nothing() {
    let dir = TempDir::new();
    let path = dir.path().join("flash");
    let opened = open(&config(&path, MIB), IoEngine::Pread).expect("opened");
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.write_all_at(&[5; 512], 512))
        .expect("written");
    let set = open_read_only(std::slice::from_ref(&path)).expect("opened for looking");
    assert_eq!(set.infos()[0].size, MIB);
    assert!(set.read_at(DeviceId(0), 512, 512).expect("readable").iter().all(|&byte| byte == 5));
    drop(opened);
    assert!(open_read_only(&[dir.path().join("nothing")]).is_err());
    assert!(open_read_only(&[dir.path().to_path_buf()]).is_err());
}

#[test]
fn a_ring_refused_for_want_of_locked_memory_names_the_limit() {
    let refused =
        |errno: rustix::io::Errno| DeviceError::UringRefused { source: errno.into() }.to_string();
    let message = refused(rustix::io::Errno::NOMEM);
    for said in ["locked memory", "RLIMIT_MEMLOCK", "LimitMEMLOCK"] {
        assert!(message.contains(said), "{message}");
    }
    assert!(!refused(rustix::io::Errno::PERM).contains("MEMLOCK"));
}
