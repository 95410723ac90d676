//! Reads of pipes, in which nothing is as long as a device hangs, and of a real cache.

use std::io::{Write, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;

use afterglow_engine::{Config, DeviceConfig, NamespaceOptions, PutOptions, Tier};

use super::*;

/// For reads that are never answered.
const LIMIT: Duration = Duration::from_millis(20);
/// For those that are, however busy the machine is.
const PATIENT: Duration = Duration::from_secs(60);

fn of(device: u8, len: u32) -> Wanted {
    Wanted { device: DeviceId(device.into()), offset: 0, len }
}

fn await_answer(reads: &Reads) {
    let timeout = Instant::now() + Duration::from_secs(60);
    while reads.is_silent(&[of(0, 512)]) {
        assert!(Instant::now() < timeout, "the kernel never ended the read");
        std::thread::yield_now();
    }
}

/// A pipe in which nothing is, is a device that hangs.
#[test]
fn a_device_that_hangs_is_asked_once_and_again_when_it_has_answered() {
    let mut reads = Reads::new(64, LIMIT);
    if reads.ring().is_none() {
        return eprintln!("io_uring is refused here, not tested");
    }
    let (device, mut other_end) = pipe().expect("a pipe");
    let ask = |reads: &Reads| {
        reads.admitted(&[of(0, 512)], || {
            reads.read(reads.ring().expect("a ring"), &[of(0, 512)], &[device.as_raw_fd()])
        })
    };
    let outcomes = ask(&reads).expect("nothing is known of the device yet").expect("taken");
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(ask(&reads).is_none(), "it is not asked again");
    assert!(reads.admitted(&[of(1, 512)], || ()).is_some(), "others are");
    assert_eq!(reads.lock().len(), 1);

    // The late answer goes to the read that was given up.
    other_end.write_all(&[1; 512]).expect("room in the pipe");
    await_answer(&reads);
    other_end.write_all(&[2; 512]).expect("room in the pipe");
    reads.limit = PATIENT;
    let mut answers = ask(&reads).expect("it has answered").expect("a read");
    assert_eq!(
        answers.pop().expect("one").expect("a read")[..],
        [2; 512],
        "and this one has its own answer"
    );
}

/// As kernels before 5.11 do, which do not know of limits.
#[test]
fn reads_that_the_kernel_does_not_take_are_told_apart_from_a_device_that_hangs() {
    let (device, _other_end) = pipe().expect("a pipe");
    let mut reads = Reads::new(64, PATIENT);
    let Some(ring) = reads.ring() else {
        return eprintln!("io_uring is refused here, not tested");
    };
    reads.enter = |_, _, _| Err(io::Error::from_raw_os_error(11));
    let began = Instant::now();
    let refused = reads.read(ring, &[of(0, 512)], &[device.as_raw_fd()]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "so that it is read in another way");
    assert!(began.elapsed() < PATIENT, "and at once");
    assert!(!reads.is_silent(&[of(0, 512)]), "nothing is in flight");
}

/// A cache with objects that flash alone has, and their keys.
fn cache_on_flash(dir: &Path) -> (Cache, Namespace, Vec<Vec<u8>>) {
    cache_on_devices(dir, &["flash"], 100)
}

/// The same on several devices; a value is its key, so many times.
fn cache_on_devices(
    dir: &Path,
    devices: &[&str],
    times: usize,
) -> (Cache, Namespace, Vec<Vec<u8>>) {
    let open = || {
        let device = |name| DeviceConfig { path: dir.join(name), size: 64 << 20 };
        let mut config = Config::new(dir, devices.iter().map(device).collect());
        config.memory = 8 << 20;
        config.journal_size = 1 << 20;
        let cache = Cache::open(config).expect("opens");
        let ns = cache.namespace("rows", NamespaceOptions::default()).expect("a namespace");
        (cache, ns)
    };
    let keys: Vec<Vec<u8>> = (0..100u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let (cache, ns) = open();
    for key in &keys {
        assert!(ns.put(key, &key.repeat(times), PutOptions::default()).version().is_some());
    }
    cache.close();
    drop((cache, ns));
    let (cache, ns) = open();
    while cache.stats().loading {
        std::thread::yield_now();
    }
    (cache, ns, keys)
}

/// Where io_uring is of no use, reads are answered in another way, at once and from then on.
#[test]
fn flash_is_read_also_where_a_ring_cannot_end_a_wait_or_does_not_take_a_read() {
    let invalid: Enter = |_, _, _| Err(io::Error::from_raw_os_error(22));
    let busy: Enter = |_, _, _| Err(io::Error::from_raw_os_error(11));
    for (name, ends_waits, enter, refused) in [
        ("before Linux 5.11", false, enter as Enter, true),
        ("a wait that the kernel does not know", true, invalid, true),
        ("a lack of memory", true, busy, false),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let (cache, ns, keys) = cache_on_flash(dir.path());
        let mut reads = Reads::new(64, PATIENT);
        RING.take();
        reads.enter = enter;
        if !ends_waits {
            reads.ends_waits = |_| false;
        }
        let began = Instant::now();
        for key in &keys[..50] {
            let hit = reads.get(&cache, &ns, key).expect("it is on flash");
            assert_eq!((&hit.value[..], hit.tier), (&key.repeat(100)[..], Tier::Flash));
        }
        for two in keys[50..].chunks(2) {
            let hits = reads.get_two(&cache, &ns, [&two[0], &two[1]]);
            assert!(hits.iter().zip(two).all(|(hit, key)| {
                hit.as_ref().is_some_and(|hit| hit.value[..] == key.repeat(100)[..])
            }));
        }
        assert!(began.elapsed() < PATIENT, "{name}");
        if IoUring::new(1).is_ok() {
            assert_eq!(reads.refused.load(Ordering::Relaxed), refused, "{name}");
        }
    }
}

/// A process that is short of file descriptors for a moment reads within the limit afterwards.
#[test]
fn a_ring_is_made_again_after_a_lack_and_not_after_a_refusal() {
    let too_many_files = || Err(io::Error::from_raw_os_error(24));
    let no_memory = || Err(io::Error::from_raw_os_error(12));
    let not_permitted = || Err(io::Error::from_raw_os_error(1));
    let unknown = || Err(io::Error::from_raw_os_error(38));
    let lacks: [fn() -> io::Result<IoUring>; 2] = [too_many_files, no_memory];
    let refusals: [fn() -> io::Result<IoUring>; 2] = [not_permitted, unknown];
    let failures = lacks.map(|make| (make, true)).into_iter();
    for (make, passes) in failures.chain(refusals.map(|make| (make, false))) {
        let mut reads = Reads::new(64, PATIENT);
        let made = reads.make;
        RING.take();
        reads.make = make;
        assert!(reads.ring().is_none(), "this one goes without");
        assert_eq!(reads.refused.load(Ordering::Relaxed), !passes);
        reads.make = made;
        if (reads.make)().is_ok() {
            assert_eq!(reads.ring().is_some(), passes);
        }
        assert!(!reads.short.load(Ordering::Relaxed) || (reads.make)().is_err());
    }
}

#[test]
fn of_two_reads_both_are_waited_for() {
    let mut reads = Reads::new(64, PATIENT);
    if reads.ring().is_none() {
        return eprintln!("io_uring is refused here, not tested");
    }
    let pipes = [pipe().expect("a pipe"), pipe().expect("a pipe")];
    let fds = pipes.each_ref().map(|(device, _)| device.as_raw_fd());
    let both = [of(0, 512), of(1, 1024)];
    let fill =
        |n: usize, len: usize| (&pipes[n].1).write_all(&vec![n as u8 + 1; len]).expect("room");
    fill(0, 512);
    fill(1, 1024);
    let answers: Vec<_> = reads
        .read(reads.ring().expect("a ring"), &both, &fds)
        .expect("reads")
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(answers[0][..], [1; 512]);
    assert_eq!(answers[1][..], [2; 1024]);

    fill(1, 1024);
    reads.limit = LIMIT;
    let late = reads.read(reads.ring().expect("a ring"), &both, &fds).expect("they were taken");
    assert_eq!(late[0].as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(late[1].as_ref().expect("it was answered")[..], [2; 1024]);
    assert!(reads.is_silent(&both[..1]) && !reads.is_silent(&both[1..]), "one does not answer");
    fill(0, 512);
    await_answer(&reads);
}

#[test]
fn what_comes_on_top_of_the_limit_is_not_read() {
    let reads = Reads::new(1, LIMIT);
    let inner = reads.admitted(&[of(0, 512)], || reads.admitted(&[of(0, 512)], || ()).is_some());
    assert_eq!(inner, Some(false));
    assert!(reads.admitted(&[of(0, 512)], || ()).is_some(), "there is room again");
}

fn device_reads(cache: &Cache) -> u64 {
    cache.stats().totals.device_reads
}

/// The second is a guess: a read that needs no flash itself takes none for it.
#[test]
fn a_first_that_needs_no_flash_does_not_wait_for_the_second() {
    let dir = tempfile::tempdir().expect("a folder");
    let (cache, ns, keys) = cache_on_flash(dir.path());
    let reads = Reads::new(64, PATIENT);
    assert!(ns.put(b"new", b"in memory", PutOptions::default()).version().is_some());
    let before = device_reads(&cache);
    let [first, second] = reads.get_two(&cache, &ns, [b"new", &keys[0]]);
    assert_eq!(first.expect("it is in memory").value[..], b"in memory"[..]);
    assert!(second.is_none());
    let neither = reads.get_two(&cache, &ns, [b"none", &keys[1]]);
    assert!(neither.iter().all(Option::is_none));
    assert_eq!(device_reads(&cache), before);

    let both = reads.get_two(&cache, &ns, [&keys[2], b"new"]);
    assert!(both.iter().all(Option::is_some), "this first waits for itself alone");
    assert_eq!(device_reads(&cache), before + 1);
}

#[test]
fn a_first_is_read_alone_while_the_device_of_the_second_hangs() {
    let dir = tempfile::tempdir().expect("a folder");
    let (cache, ns, keys) = cache_on_devices(dir.path(), &["one", "two"], 8000);
    let mut reads = Reads::new(64, LIMIT);
    let Some(ring) = reads.ring() else {
        return eprintln!("io_uring is refused here, not tested");
    };
    let device = |key: &[u8]| {
        let Lookup::Flash(read) = ns.get(key) else { panic!("it is on flash alone") };
        let device = read.device();
        read.take_back();
        device
    };
    let first = &keys[0];
    let second = keys.iter().find(|key| device(key) != device(first)).expect("on both devices");
    let (silent, mut other_end) = pipe().expect("a pipe");
    let hanging = [Wanted { device: device(second), offset: 0, len: 512 }];
    let outcomes = reads.read(ring, &hanging, &[silent.as_raw_fd()]).expect("it was taken");
    assert!(outcomes[0].is_err() && reads.is_silent(&hanging));

    reads.limit = PATIENT;
    let [found, not_asked] = reads.get_two(&cache, &ns, [first, second]);
    assert_eq!(found.expect("its device answers").value[..], first.repeat(8000)[..]);
    assert!(not_asked.is_none());
    let [busy, not_asked] = reads.get_two(&cache, &ns, [second, &keys[1]]);
    assert!(busy.is_none() && not_asked.is_none());

    other_end.write_all(&[1; 512]).expect("room in the pipe");
    while reads.is_silent(&hanging) {
        std::thread::yield_now();
    }
    assert!(reads.get(&cache, &ns, second).is_some());
}
