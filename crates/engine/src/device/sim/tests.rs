//! The simulated machine keeps what its fault model says, and only that.

use std::io;

use rustix::io::Errno;

use super::*;
use crate::device::area::{Media, MetaStore};
use crate::device::{AlignedBuf, DeviceId, Disk, Done, Io, IoKind, IoOutput};

const SIZE: u64 = 1 << 20;
const DEVICE: DeviceId = DeviceId(0);

fn machine(seed: u64, faults: SimFaults) -> SimMachine {
    SimMachine::new(seed, faults, &[SIZE])
}

fn filled(byte: u8, len: usize) -> AlignedBuf {
    AlignedBuf::copy_of(&vec![byte; len])
}

fn write(offset: u64, byte: u8, len: usize) -> Io {
    Io {
        id: offset,
        device: DEVICE,
        offset,
        kind: IoKind::Write { data: filled(byte, len).into() },
    }
}

/// Submits and waits; panics on errors.
fn run(disk: &mut SimDisk, ios: Vec<Io>) -> Vec<Done> {
    let count = ios.len();
    ios.into_iter().for_each(|io| disk.submit(io));
    let mut done = Vec::new();
    disk.wait(count, &mut done);
    assert_eq!((done.len(), disk.in_flight()), (count, 0));
    done
}

fn sync(disk: &mut SimDisk) {
    let done = run(disk, vec![Io { id: 0, device: DEVICE, offset: 0, kind: IoKind::Sync }]);
    assert!(matches!(done[0].result, Ok(IoOutput::Synced)));
}

fn read(machine: &SimMachine, offset: u64, len: u32) -> Vec<u8> {
    machine.device_set().read_at(DEVICE, offset, len).expect("a readable device").to_vec()
}

/// The different bytes in a range, in order of value.
fn bytes_in(machine: &SimMachine, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = read(machine, offset, len);
    bytes.sort_unstable();
    bytes.dedup();
    bytes
}

#[test]
fn completions_come_in_another_order_and_all_come() {
    let machine = machine(1, SimFaults::none());
    let mut disk = machine.disk();
    let ids: Vec<u64> = run(&mut disk, (0..50).map(|n| write(n * 4096, n as u8, 4096)).collect())
        .iter()
        .map(|done| done.id)
        .collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_ne!(ids, sorted, "real devices do not keep the order");
    assert_eq!(sorted, (0..50).map(|n| n * 4096).collect::<Vec<_>>());
    assert_eq!(bytes_in(&machine, 4096 * 7, 4096), [7]);
}

#[test]
fn one_seed_is_one_run() {
    let trace = |seed| {
        let machine = machine(seed, SimFaults::all(0.2));
        let mut disk = machine.disk();
        let done = run(&mut disk, (0..100).map(|n| write(n * 512, n as u8, 512)).collect());
        machine.crash(Crash::Machine);
        let results: Vec<_> = done.iter().map(|done| (done.id, done.result.is_ok())).collect();
        machine.set_faults(SimFaults::none());
        (results, read(&machine, 0, 51_200))
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[test]
fn a_process_crash_keeps_what_was_acknowledged_and_tears_what_was_not() {
    let mut fates = [0; 3];
    for seed in 0..60 {
        let machine = machine(seed, SimFaults::none());
        let mut disk = machine.disk();
        run(&mut disk, vec![write(0, 1, 8192)]);
        disk.submit(write(8192, 2, 8192));
        machine.crash(Crash::Process);
        drop(disk);
        assert_eq!(bytes_in(&machine, 0, 8192), [1], "acknowledged");
        match bytes_in(&machine, 8192, 8192)[..] {
            [0] => fates[0] += 1,
            [2] => fates[1] += 1,
            [0, 2] => fates[2] += 1,
            ref other => panic!("bytes nobody wrote: {other:?}"),
        }
    }
    assert!(fates.iter().all(|&seen| seen > 0), "lost, kept and torn all happen: {fates:?}");
}

#[test]
fn a_machine_crash_keeps_what_was_synced_only() {
    let mut lost = 0;
    for seed in 0..60 {
        let machine = machine(seed, SimFaults::none());
        let mut disk = machine.disk();
        run(&mut disk, vec![write(0, 1, 4096)]);
        sync(&mut disk);
        run(&mut disk, vec![write(4096, 2, 4096), write(0, 3, 512)]);
        let boot = machine.boot_id();
        machine.crash(Crash::Machine);
        assert_ne!(machine.boot_id(), boot);
        assert_eq!(bytes_in(&machine, 512, 3584), [1], "synced and not written since");
        assert!([1, 3].contains(&read(&machine, 0, 512)[0]), "synced, then written");
        lost += usize::from(bytes_in(&machine, 4096, 4096) != [2]);
        // What is left is settled: another crash changes nothing.
        let before = read(&machine, 0, 8192);
        machine.crash(Crash::Machine);
        assert_eq!(read(&machine, 0, 8192), before);
    }
    assert!(lost > 10, "unsynced writes are lost or torn, not only kept: {lost} of 60");
}

#[test]
fn a_sync_covers_what_was_acknowledged_when_it_was_submitted() {
    let mut lost = 0;
    for seed in 0..60 {
        let machine = machine(seed, SimFaults::none());
        let mut disk = machine.disk();
        run(&mut disk, vec![write(0, 1, 512)]);
        disk.submit(Io { id: 9, device: DEVICE, offset: 0, kind: IoKind::Sync });
        disk.submit(write(512, 2, 512));
        let mut done = Vec::new();
        disk.wait(2, &mut done);
        machine.crash(Crash::Machine);
        assert_eq!(bytes_in(&machine, 0, 512), [1]);
        lost += usize::from(bytes_in(&machine, 512, 512) == [0]);
    }
    assert!(lost > 0, "a write in flight beside a sync is not covered by it");
}

#[test]
fn after_the_power_went_nothing_has_an_effect() {
    let machine = machine(3, SimFaults::none());
    let mut disk = machine.disk();
    let media = machine.create_media("journal", 4096);
    run(&mut disk, vec![write(0, 1, 512)]);
    machine.crash_after(0);
    assert!(media.store(0, &[1; 64]).is_err(), "cut short");
    assert!(machine.is_down());
    assert!(machine.meta().replace("state", b"x").is_err());
    assert!(machine.device_set().read_at(DEVICE, 0, 512).is_err());
    disk.submit(write(0, 2, 512));
    let mut done = Vec::new();
    disk.wait(1, &mut done);
    assert!(done[0].result.is_err());
    machine.crash(Crash::Process);
    // Handles of the life before stay dead.
    assert!(media.store(8, &[7; 8]).is_err());
    assert_eq!(bytes_in(&machine, 0, 512), [1]);
    let mut stored = [0; 64];
    machine
        .open_media("journal")
        .expect("it was created")
        .load(0, &mut stored)
        .expect("a readable area");
    let whole = stored.iter().take_while(|&&byte| byte == 1).count();
    assert!(
        whole % 8 == 0 && stored[whole..].iter().all(|&byte| byte == 0),
        "a prefix of whole words: {stored:?}"
    );
    assert_eq!(machine.meta().read("state").expect("readable"), None);
}

#[test]
fn media_survives_a_process_and_what_is_synced_survives_power_loss() {
    let (mut all, mut none, mut some) = (0, 0, 0);
    for seed in 0..60 {
        let machine = machine(seed, SimFaults::none());
        let media = machine.create_media("journal", 4096);
        media.store(0, &[1; 32]).expect("stored");
        media.sync().expect("synced");
        media.store(32, &[2; 64]).expect("stored");
        machine.crash(Crash::Process);
        let load = || {
            let mut bytes = [0; 96];
            machine
                .open_media("journal")
                .expect("it was created")
                .load(0, &mut bytes)
                .expect("a readable area");
            bytes
        };
        assert_eq!(load(), [[1u8; 32], [2; 32], [2; 32]].concat()[..]);
        machine.crash(Crash::Machine);
        assert_eq!(load()[..32], [1; 32]);
        match load()[32..].iter().filter(|&&byte| byte == 2).count() {
            64 => all += 1,
            0 => none += 1,
            _ => some += 1,
        }
    }
    assert!(all > 0 && none > 0 && some > 0, "kept {all}, lost {none}, mixed {some}");
}

#[test]
fn metadata_is_old_or_new_whatever_happens() {
    let mut seen = [0; 2];
    for seed in 0..40 {
        let machine = machine(seed, SimFaults::none());
        machine.meta().replace("state", b"old").expect("replaced");
        machine.crash_after(0);
        assert!(machine.meta().replace("state", b"new").is_err());
        machine.crash(Crash::Machine);
        match machine.meta().read("state").expect("readable").as_deref() {
            Some(b"old") => seen[0] += 1,
            Some(b"new") => seen[1] += 1,
            other => panic!("neither old nor new: {other:?}"),
        }
    }
    assert!(seen.iter().all(|&n| n > 0));
}

/// Runs one write and one read under a fault that always happens.
fn under(faults: SimFaults) -> (SimMachine, Vec<Done>, Vec<Done>) {
    let machine = machine(11, SimFaults::none());
    let mut disk = machine.disk();
    run(&mut disk, vec![write(0, 1, 4096)]);
    machine.set_faults(faults);
    let written = run(&mut disk, vec![write(0, 2, 4096)]);
    let read = run(
        &mut disk,
        vec![Io { id: 1, device: DEVICE, offset: 0, kind: IoKind::Read { len: 4096 } }],
    );
    drop(disk);
    machine.set_faults(SimFaults::none());
    (machine, written, read)
}

fn failed(done: &[Done], errno: Errno) -> bool {
    done[0].result.as_ref().is_err_and(|e| Errno::from_io_error(e) == Some(errno))
}

#[test]
fn each_fault_does_what_it_says() {
    let none = SimFaults::none();
    let (machine, written, _) = under(SimFaults { write_error: 1.0, ..none });
    assert!(
        failed(&written, Errno::IO) && bytes_in(&machine, 0, 4096) == [1, 2],
        "a failed write leaves a mixture"
    );

    let (machine, written, _) = under(SimFaults { no_space: 1.0, ..none });
    assert!(failed(&written, Errno::NOSPC) && bytes_in(&machine, 0, 4096) == [1]);

    let (machine, written, _) = under(SimFaults { lost_write: 1.0, ..none });
    assert!(written[0].result.is_ok() && bytes_in(&machine, 0, 4096) == [1]);

    let (machine, written, _) = under(SimFaults { misdirected_write: 1.0, ..none });
    let twos = read(&machine, 0, SIZE as u32).iter().filter(|&&byte| byte == 2).count();
    assert!(written[0].result.is_ok() && twos == 4096 && bytes_in(&machine, 0, 512) == [1]);

    let (machine, written, _) = under(SimFaults { flip_on_write: 1.0, ..none });
    let wrong: u32 = read(&machine, 0, 4096).iter().map(|byte| (byte ^ 2).count_ones()).sum();
    assert!(written[0].result.is_ok() && wrong == 1, "{wrong} bits differ");

    let (machine, _, done) = under(SimFaults { flip_on_read: 1.0, ..none });
    let Ok(IoOutput::Read(buf)) = &done[0].result else { panic!("a flipped read succeeds") };
    let wrong: u32 = buf.iter().map(|byte| (byte ^ 2).count_ones()).sum();
    assert!(
        wrong == 1 && bytes_in(&machine, 0, 4096) == [2],
        "{wrong} bits differ in the result, none on the device"
    );

    let (_, _, done) = under(SimFaults { read_error: 1.0, ..none });
    assert!(failed(&done, Errno::IO));
    let (_, _, done) = under(SimFaults { short_read: 1.0, ..none });
    assert!(done[0].result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof));
}

#[test]
fn a_failed_sync_makes_nothing_durable() {
    let mut lost = 0;
    for seed in 0..30 {
        let machine = machine(seed, SimFaults { sync_error: 1.0, ..SimFaults::none() });
        let mut disk = machine.disk();
        run(&mut disk, vec![write(0, 1, 512)]);
        let done =
            run(&mut disk, vec![Io { id: 0, device: DEVICE, offset: 0, kind: IoKind::Sync }]);
        assert!(failed(&done, Errno::IO));
        machine.crash(Crash::Machine);
        lost += usize::from(bytes_in(&machine, 0, 512) == [0]);
    }
    assert!(lost > 0);
}

#[test]
fn requests_outside_the_device_or_misaligned_are_refused() {
    let machine = machine(1, SimFaults::none());
    let mut disk = machine.disk();
    let refused = |io: Io| {
        let mut disk = machine.disk();
        run(&mut disk, vec![io])[0]
            .result
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::InvalidInput)
    };
    assert!(refused(write(SIZE, 1, 512)));
    assert!(refused(write(u64::MAX - 511, 1, 512)));
    assert!(refused(write(1, 1, 512)));
    assert!(refused(write(0, 1, 100)));
    assert!(refused(Io { id: 0, device: DeviceId(1), offset: 0, kind: IoKind::Sync }));
    assert!(run(&mut disk, vec![write(SIZE - 512, 1, 512)])[0].result.is_ok());
}
