//! The least that can stand in front of a database: it copies bytes, two blocking threads a
//! connection. What it adds to a read is the price of the sockets and of waking up, of which no
//! proxy can be rid.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::super::pin::Pinned;

/// Bytes copied at once.
const COPY: usize = 64 * 1024;

/// A relay that runs until it is dropped; connections then end with their clients.
pub struct Relay {
    /// Where it listens.
    pub address: String,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    /// Relays to `backend`, on one core, from a port that the system chooses.
    pub fn start(backend: &str, core: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, backend) = (listener.local_addr()?.to_string(), backend.to_owned());
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        // Threads stay where their maker is.
        let _pinned = Pinned::to(core)?;
        let accepting = thread::spawn(move || {
            for client in listener.incoming() {
                if end.load(Ordering::Acquire) {
                    return;
                }
                // A client whose connection cannot be relayed sees it closed, and says so.
                let _ = client.and_then(|client| relay(client, &backend));
            }
        });
        Ok(Self { address, ended, accepting: Some(accepting) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        let woken = TcpStream::connect(&self.address);
        if let (Ok(_), Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

fn relay(client: TcpStream, backend: &str) -> io::Result<()> {
    let server = TcpStream::connect(backend)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (to_server, to_client) = ((client.try_clone()?, server.try_clone()?), (server, client));
    for (from, to) in [to_server, to_client] {
        thread::spawn(move || copy(from, to));
    }
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; COPY];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        // Whichever side is gone, the other is told.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
