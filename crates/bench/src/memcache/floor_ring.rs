//! Sockets and a file on one io_uring, with one request to the kernel under way on each connection:
//! what [`floor`](super::floor) is made of.
//!
//! The memory that the kernel reads or writes belongs to the ring. It is lent out only while no
//! request of its connection is under way.

#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    net::{Shutdown, TcpStream},
    ops::Range,
    os::fd::AsRawFd,
};

use afterglow_engine::device::AlignedBuf;
use io_uring::{IoUring, opcode, squeue, types};

/// Longest request.
const LINE: usize = 256;
/// `IORING_RECVSEND_POLL_FIRST` of `linux/io_uring.h`.
const POLL_FIRST: u16 = 1;

/// A connection, and the memory of its requests.
struct FloorLane {
    stream: TcpStream,
    line: Box<[u8; LINE]>,
    block: AlignedBuf,
    under_way: bool,
}

/// A request to the kernel that has ended: of which connection, and how many bytes it moved or why
/// it failed.
pub(super) type Ended = (usize, io::Result<usize>);

/// Connections, and the file that is read for them.
pub(super) struct FloorRing {
    ring: IoUring,
    lanes: Vec<FloorLane>,
    under_way: usize,
}

impl FloorRing {
    /// A ring whose completions are handled when we ask for them, where the kernel knows that. File
    /// and blocks are registered with it, so that the kernel need not look them up for each read.
    pub(super) fn new(file: &File, streams: Vec<TcpStream>, block: usize) -> io::Result<Self> {
        let entries = streams.len().max(1).next_power_of_two() as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        let lane = |stream| FloorLane {
            stream,
            line: Box::new([0; LINE]),
            block: AlignedBuf::zeroed(block),
            under_way: false,
        };
        let mut lanes: Vec<FloorLane> = streams.into_iter().map(lane).collect();
        let memory = |lane: &mut FloorLane| libc::iovec {
            iov_base: lane.block.as_mut_ptr().cast(),
            iov_len: lane.block.len(),
        };
        let blocks: Vec<_> = lanes.iter_mut().map(memory).collect();
        // SAFETY: the blocks are on the heap and live as long as the ring: both belong to `self`,
        // which drops no lane before its last request has ended.
        unsafe { ring.submitter().register_buffers(&blocks)? };
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self { ring, lanes, under_way: 0 })
    }

    /// How many connections.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn idle(&mut self, lane: usize) -> &mut FloorLane {
        let lane = &mut self.lanes[lane];
        assert!(!lane.under_way, "the kernel has this memory");
        lane
    }

    /// The memory that is received into, of a connection with no request under way.
    pub(super) fn line(&mut self, lane: usize) -> &[u8] {
        &self.idle(lane).line[..]
    }

    fn push(&mut self, lane: usize, entry: squeue::Entry) {
        let entry = entry.user_data(lane as u64);
        self.idle(lane).under_way = true;
        self.under_way += 1;
        // SAFETY: the entry names memory on the heap of this lane, and its socket or the registered
        // file. The memory belongs to `self`. It is not touched while `under_way`, and is dropped
        // after the completion. A descriptor closed meanwhile fails the request and touches
        // nothing.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has an entry for every connection");
    }

    /// Receives behind the first `filled` bytes.
    pub(super) fn receive(&mut self, lane: usize, filled: usize) {
        let FloorLane { stream, line, .. } = self.idle(lane);
        let rest = &mut line[filled..];
        let entry =
            opcode::Recv::new(types::Fd(stream.as_raw_fd()), rest.as_mut_ptr(), rest.len() as u32);
        // The next request has not come yet: the kernel need not look first.
        self.push(lane, entry.ioprio(POLL_FIRST).build());
    }

    /// Fills the block of a connection from `offset` of the file.
    pub(super) fn read(&mut self, lane: usize, offset: u64) {
        let block = &mut self.idle(lane).block;
        let (at, len) = (block.as_mut_ptr(), block.len() as u32);
        let entry = opcode::ReadFixed::new(types::Fixed(0), at, len, lane as u16);
        self.push(lane, entry.offset(offset).build());
    }

    /// Sends a part of the block.
    pub(super) fn send(&mut self, lane: usize, part: Range<usize>) {
        let FloorLane { stream, block, .. } = self.idle(lane);
        let part = &block[part];
        let entry =
            opcode::Send::new(types::Fd(stream.as_raw_fd()), part.as_ptr(), part.len() as u32);
        self.push(lane, entry.build());
    }

    /// Hands to the kernel what was prepared, sleeps until at least one request has ended, and
    /// appends what has.
    pub(super) fn wait(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        for completion in self.ring.completion() {
            let lane = completion.user_data() as usize;
            assert!(std::mem::take(&mut self.lanes[lane].under_way), "ended once");
            self.under_way -= 1;
            let moved = usize::try_from(completion.result());
            let failed = |_| io::Error::from_raw_os_error(-completion.result());
            ended.push((lane, moved.map_err(failed)));
        }
        Ok(())
    }
}

impl Drop for FloorRing {
    fn drop(&mut self) {
        for lane in &self.lanes {
            // Ends what waits for the client. One that is closed already is as good.
            let _ = lane.stream.shutdown(Shutdown::Both);
        }
        let mut ended = Vec::new();
        while self.under_way > 0 {
            if self.wait(&mut ended).is_err() {
                // The kernel may still write into them.
                return std::mem::forget(std::mem::take(&mut self.lanes));
            }
        }
    }
}
