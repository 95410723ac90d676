//! The least that a server must do for a get from flash: receive it, read the record's bytes, send
//! an answer of the same length. A bare loop over io_uring does that and nothing else: no index, no
//! checksum, no memory tier, no counters. A key says where its answer lies.
//!
//! It is measured as a server is: on the servers' core, by the same client, in the same run. What
//! a server takes beyond it is the server's own, the rest is the kernel's.

use std::{
    fs::OpenOptions,
    io,
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt, OpenOptionsExt},
    thread,
    time::Duration,
};

use afterglow_engine::device::AlignedBuf;
use afterglow_loadgen::{
    cpu,
    memcache::{Client, Load, Objects, RequestKind},
    rng::Rng,
};
use rustix::fs::OFlags;

use super::{
    super::{BenchError, device::Target, pin::Pinned, progress, report::Run},
    floor_ring::FloorRing,
    row::{self, Contender, Gets, WARM},
};

/// Name of the thread that serves, by which its CPU is counted.
const THREAD: &str = "floor";
/// Bytes written at a time, at least.
const WRITE: usize = 1 << 20;
/// What stands before and behind the key of a request.
const GET: (&[u8], &[u8]) = (b"get ", b"\r\n");

/// A file with the whole answers to gets of the objects from 0 on, so many in each block.
pub(super) struct FloorFile<'a> {
    target: &'a Target,
    block: usize,
    answer: usize,
    per_block: u64,
    /// Objects that there are answers for.
    pub(super) objects: u64,
}

impl<'a> FloorFile<'a> {
    /// Writes as many answers to `target` as it has room for; a get reads `block` bytes of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(
        target: &'a Target,
        objects: &Objects,
        block: u32,
    ) -> Result<Self, BenchError> {
        let fail = || BenchError::io(format!("write {}", target.path.display()));
        let flags = OFlags::DIRECT.bits() as i32;
        let file =
            OpenOptions::new().write(true).custom_flags(flags).open(&target.path).map_err(fail())?;
        let (mut answer, block) = (Vec::new(), block as usize);
        append_answer(objects, 0, &mut answer);
        let answer = answer.len();
        let per_block = (block / answer) as u64;
        let blocks = target.size / block as u64;
        progress(format_args!("writing {} answers", blocks * per_block));
        let (mut rng, mut written) = (Rng::new(2), 0);
        let mut chunk = AlignedBuf::zeroed(block * WRITE.div_ceil(block));
        while written < blocks {
            let count = (blocks - written).min((chunk.len() / block) as u64);
            for at in 0..count {
                let first = (written + at) * per_block;
                let mut bytes = Vec::with_capacity(block + 8);
                (first..first + per_block).for_each(|id| append_answer(objects, id, &mut bytes));
                while bytes.len() < block {
                    bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
                }
                let at = at as usize * block;
                chunk[at..at + block].copy_from_slice(&bytes[..block]);
            }
            let len = count as usize * block;
            file.write_all_at(&chunk[..len], written * block as u64).map_err(fail())?;
            written += count;
        }
        file.sync_all().map_err(fail())?;
        Ok(Self { target, block, answer, per_block, objects: blocks * per_block })
    }
}

fn append_answer(objects: &Objects, id: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(&Objects::key(id));
    out.extend_from_slice(format!(" 0 {}\r\n", objects.value_len()).as_bytes());
    objects.append_value(id, out);
    out.extend_from_slice(b"\r\nEND\r\n");
}

/// What is awaited on a connection.
#[derive(Clone, Copy)]
enum Awaited {
    /// A request, of which so many bytes are there.
    Request(usize),
    /// The block in which the answer begins here.
    Block(usize),
    /// That an answer is sent, of which these bytes are left.
    Sent(usize, usize),
}

/// Serves until every client is gone.
fn serve(file: &FloorFile<'_>, streams: Vec<TcpStream>) -> io::Result<()> {
    let mut ring = FloorRing::new(&file.target.file, streams, file.block)?;
    let mut awaited = vec![Awaited::Request(0); ring.lanes()];
    let (mut open, mut ended) = (ring.lanes(), Vec::with_capacity(ring.lanes()));
    (0..open).for_each(|lane| ring.receive(lane, 0));
    while open > 0 {
        ring.wait(&mut ended)?;
        for (lane, moved) in ended.drain(..) {
            let moved = moved?;
            awaited[lane] = match awaited[lane] {
                Awaited::Request(_) if moved == 0 => {
                    open -= 1;
                    continue;
                }
                Awaited::Request(before) => {
                    let filled = before + moved;
                    match key(&ring.line(lane)[..filled]) {
                        Some(key) => {
                            let id = Objects::id(key).filter(|id| *id < file.objects);
                            let id = id.ok_or_else(|| io::Error::other("no key of ours"))?;
                            ring.read(lane, id / file.per_block * file.block as u64);
                            Awaited::Block((id % file.per_block) as usize * file.answer)
                        }
                        None => {
                            ring.receive(lane, filled);
                            Awaited::Request(filled)
                        }
                    }
                }
                Awaited::Block(at) if moved == file.block => {
                    ring.send(lane, at..at + file.answer);
                    Awaited::Sent(at, at + file.answer)
                }
                Awaited::Block(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Awaited::Sent(at, end) if at + moved < end => {
                    ring.send(lane, at + moved..end);
                    Awaited::Sent(at + moved, end)
                }
                Awaited::Sent(..) => {
                    ring.receive(lane, 0);
                    Awaited::Request(0)
                }
            };
        }
    }
    Ok(())
}

/// The key of a request that is there to its end.
fn key(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(GET.0)?.strip_suffix(GET.1)
}

/// Takes the connections of one load and serves them.
fn serve_load(file: &FloorFile<'_>, listener: &TcpListener, count: usize) -> io::Result<()> {
    let _pinned = Pinned::to(0)?;
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let stream = listener.accept()?.0;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    serve(file, streams)
}

/// The floor under gets with one outstanding on each connection, of the objects of `file`.
pub(super) fn contender<'a>(
    length: Duration,
    file: &'a FloorFile<'a>,
    objects: &'a Objects,
    gets: Gets,
) -> Contender<'a> {
    Contender::new(THREAD, move |seed| {
        let load = Load {
            connections: gets.connections,
            outstanding: 1,
            kind: RequestKind::Get { keys: 1 },
            ids: 0..gets.ids.end.min(file.objects),
            rate: None,
            seed: gets.form.seed(seed),
        };
        measure(file, objects, load, length)
    })
}

fn measure(
    file: &FloorFile<'_>,
    objects: &Objects,
    load: Load,
    length: Duration,
) -> Result<Run, BenchError> {
    let fail = || BenchError::io("serve the floor");
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(fail())?;
    let address = listener.local_addr().map_err(fail())?.to_string();
    let count = load.connections;
    thread::scope(|scope| {
        let serving = thread::Builder::new()
            .name(THREAD.into())
            .spawn_scoped(scope, || serve_load(file, &listener, count))
            .map_err(fail())?;
        let run = load_on(&address, objects, load, length);
        // If the load was never begun, it would wait for the rest of its connections for ever.
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        let served = serving.join().map_err(|_| BenchError::Void("the floor panicked".into()))?;
        // A client that broke off says more than the server that saw it go.
        let run = run?;
        served.map_err(fail())?;
        Ok(run)
    })
}

fn load_on(
    address: &str,
    objects: &Objects,
    load: Load,
    length: Duration,
) -> Result<Run, BenchError> {
    let failed = |e| BenchError::Void(format!("{THREAD}: {e}"));
    let used = || {
        cpu::of_threads(std::process::id(), THREAD)
            .map_err(BenchError::io("ask for the CPU time of the floor"))
    };
    let _pinned = Pinned::to(1).map_err(BenchError::io("keep the load on a core of its own"))?;
    let mut client = Client::connect(address, objects, load).map_err(failed)?;
    client.run(length.mul_f64(WARM)).map_err(failed)?;
    let before = used()?;
    let outcome = client.run(length).map_err(failed)?;
    row::seen(THREAD, &outcome, used()? - before, Some(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_get_is_answered_with_its_own_value() {
        for value in [100, 1024, 4096] {
            let dir = tempfile::tempdir().unwrap();
            let target = Target::make(dir.path(), 2 << 20).unwrap();
            let objects = Objects::new(value);
            let file = FloorFile::write(&target, &objects, 8192).unwrap();
            let answer = value + 50 + value.to_string().len();
            assert_eq!(file.objects, 256 * (8192 / answer as u64));
            let load = Load {
                connections: 3,
                outstanding: 1,
                kind: RequestKind::Get { keys: 1 },
                ids: 0..file.objects,
                rate: None,
                seed: 1,
            };
            let run = measure(&file, &objects, load, Duration::from_millis(20)).unwrap();
            assert!(run.operations > 0 && run.client.unwrap().hit_ratio == 1.0, "{run:?}");
        }
    }
}
