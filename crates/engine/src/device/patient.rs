//! Reads of devices while a cache is opened: each ends, whatever its device does.
//!
//! No timeout ends a read of the kernel. So a thread of its own reads each device. Who has waited
//! for an answer for too long goes on without it, and that device is asked for nothing more: each
//! further read of it fails at once. The thread stays until the kernel gives the read up.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::answer::{ANSWER_WITHIN, start_thread};
use super::buf::AlignedBuf;
use super::disk::{DeviceId, DeviceInfo, DeviceSet};
use crate::sync::Mutex;

/// How long an opening waits for one answer of a device.
pub(crate) const PATIENCE: Duration = Duration::from_secs(ANSWER_WITHIN);

/// Says that a device did not answer in time.
pub(crate) fn no_answer() -> io::Error {
    let said = format!("the device has not answered for {ANSWER_WITHIN} s");
    io::Error::new(io::ErrorKind::TimedOut, said)
}

/// Whether an error says that.
pub(crate) fn is_no_answer(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Devices whose reads end.
pub(crate) struct PatientSet {
    set: Arc<dyn DeviceSet>,
    limit: Duration,
    readers: Vec<Mutex<Reader>>,
}

/// What reads a device.
enum Reader {
    /// Nobody yet.
    NotYet,
    /// A thread, one read at a time: its offset and length, and what came of it.
    Thread(Sender<(u64, u32)>, Receiver<io::Result<AlignedBuf>>),
    /// Nobody any more: it has not answered in time.
    GivenUp,
}

impl PatientSet {
    /// Over these devices.
    pub(crate) fn new(set: Arc<dyn DeviceSet>) -> Self {
        Self::within(set, PATIENCE)
    }

    fn within(set: Arc<dyn DeviceSet>, limit: Duration) -> Self {
        let readers = set.infos().iter().map(|_| Mutex::new(Reader::NotYet)).collect();
        Self { set, limit, readers }
    }

    /// Starts the thread that reads a device. It ends with this set.
    fn start(&self, device: DeviceId) -> io::Result<Reader> {
        let (asks, asked) = channel();
        let (answers, answered) = channel();
        let set = self.set.clone();
        let read = move || {
            for (offset, len) in asked {
                if answers.send(set.read_at(device, offset, len)).is_err() {
                    return;
                }
            }
        };
        start_thread("afterglow-open", read)?;
        Ok(Reader::Thread(asks, answered))
    }
}

impl DeviceSet for PatientSet {
    fn infos(&self) -> &[DeviceInfo] {
        self.set.infos()
    }

    fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
        let Some(reader) = self.readers.get(usize::from(device.0)) else {
            return self.set.read_at(device, offset, len);
        };
        let mut reader = reader.lock();
        if matches!(*reader, Reader::NotYet) {
            *reader = self.start(device)?;
        }
        let Reader::Thread(asks, answered) = &*reader else { return Err(no_answer()) };
        let asked = asks.send((offset, len)).is_ok();
        match answered.recv_timeout(self.limit) {
            Ok(read) if asked => read,
            _ => {
                let path = self.infos()[usize::from(device.0)].path.display();
                tracing::warn!(%path, "the device does not answer while the cache is opened");
                *reader = Reader::GivenUp;
                Err(no_answer())
            }
        }
    }

    fn raw_fd(&self, device: DeviceId) -> Option<RawFd> {
        self.set.raw_fd(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::{SimFaults, SimMachine};

    /// Devices of which the second does not answer while the lock is held.
    struct Hanging {
        set: Arc<dyn DeviceSet>,
        hangs: Arc<Mutex<()>>,
        asked: Mutex<u32>,
    }

    impl DeviceSet for Hanging {
        fn infos(&self) -> &[DeviceInfo] {
            self.set.infos()
        }

        fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
            if device == DeviceId(1) {
                *self.asked.lock() += 1;
                drop(self.hangs.lock());
            }
            self.set.read_at(device, offset, len)
        }

        fn raw_fd(&self, _: DeviceId) -> Option<RawFd> {
            None
        }
    }

    #[test]
    fn a_device_that_hangs_is_waited_for_once_and_holds_up_no_other() {
        let machine = SimMachine::new(1, SimFaults::none(), &[8192; 2]);
        let hangs = Arc::new(Mutex::new(()));
        let set = Arc::new(Hanging {
            set: machine.device_set(),
            hangs: hangs.clone(),
            asked: Mutex::new(0),
        });
        let patient = PatientSet::within(set.clone(), Duration::from_millis(200));
        let read = |device| patient.read_at(DeviceId(device), 4096, 4096);
        assert!(read(1).is_ok_and(|bytes| bytes.len() == 4096));
        let held = hangs.lock();
        assert!(read(1).is_err_and(|error| is_no_answer(&error)));
        assert!(read(0).is_ok() && read(1).is_err());
        drop(held);
        assert!(read(1).is_err() && read(0).is_ok(), "it stays given up");
        assert_eq!(*set.asked.lock(), 2, "it was asked for more");
        assert!(read(7).is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput));
    }
}
