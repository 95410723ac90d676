//! A device that answers no read.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsRawFd;
use std::time::Instant;

use compio::runtime::Runtime;

use super::*;

/// Reads of it are reads of a pipe that nobody writes to.
struct Hung {
    devices: Arc<dyn DeviceSet>,
    reader: PipeReader,
    _writer: PipeWriter,
}

impl DeviceSet for Hung {
    fn infos(&self) -> &[DeviceInfo] {
        self.devices.infos()
    }

    fn read_at(&self, _: DeviceId, _: u64, _: u32) -> io::Result<AlignedBuf> {
        unreachable!("it has a descriptor")
    }

    fn raw_fd(&self, _: DeviceId) -> Option<RawFd> {
        Some(self.reader.as_raw_fd())
    }
}

#[test]
fn reads_that_never_come_back_hold_up_no_answer_behind_them() {
    const COLD: usize = 20;
    let opened = Opened::new(COLD);
    let (reader, writer) = pipe().unwrap();
    let hung = Hung { devices: opened.cache.devices(), reader, _writer: writer };
    let config = config(&opened.dir);
    let front_end =
        MemcacheFrontEnd::start_over(Arc::new(hung), config, &opened.cache, &opened.reactors)
            .unwrap();
    let mut client = connect(&front_end);
    // Gets, a change of what only flash has, and a hit in memory behind them.
    let gets: String = (1..COLD).map(|n| format!("get cold{n}\r\n")).collect();
    client.send(&format!("{gets}append cold0 0 0 1\r\nx\r\nget warm\r\n"));
    let began = Instant::now();
    for n in 1..COLD {
        assert_eq!(client.line(), "END", "cold{n}");
    }
    // A pipe has no offsets: without a ring the reads fail at once, and nothing is shown.
    let has_ring = || async { !Runtime::with_current(|r| r.driver_type().is_polling()) };
    let hung = opened.reactors.block_on(0, has_ring).unwrap();
    assert!(!hung || began.elapsed() > Duration::from_secs(1), "nothing has hung");
    let changed = client.line();
    assert!(changed.starts_with("SERVER_ERROR") || changed == "NOT_STORED", "{changed}");
    assert_eq!([client.line(), client.line(), client.line()], ["VALUE warm 0 2", "hi", "END"]);
    // It is asked for nothing more: at once, a miss.
    client.send("get cold1\r\n");
    assert_eq!(client.line(), "END");
    assert!(front_end.drain(TIMEOUT));
}
