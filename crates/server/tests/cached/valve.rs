//! A valve between Afterglow and its database, which holds what is large half way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// The valve: open at first.
pub struct Valve {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Of what comes on one connection from now on, so many bytes pass.
    passes: Option<usize>,
    /// How often it was closed.
    turn: usize,
    /// So many connections are held.
    held: usize,
}

impl Valve {
    /// Takes connections and goes on to `to`.
    pub fn before(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::default());
        let valve = Self { address, state };
        let state = valve.state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, database) = (client.unwrap(), TcpStream::connect(to).unwrap());
                let (from, into) = (client.try_clone().unwrap(), database.try_clone().unwrap());
                let state = state.clone();
                thread::spawn(move || carry(from, into, |_| ()));
                thread::spawn(move || {
                    let (mut turn, mut passed) = (0, 0);
                    carry(database, client, |bytes| state.pass(&mut turn, &mut passed, bytes));
                });
            }
        });
        valve
    }

    /// Of the answers on one connection, only so many bytes pass from now on.
    pub fn close_after(&self, bytes: usize) {
        let mut state = self.state.0.lock().unwrap();
        state.passes = Some(bytes);
        state.turn += 1;
    }

    /// Waits until something is held.
    pub fn wait_for_held(&self) {
        let mut state = self.state.0.lock().unwrap();
        while state.held == 0 {
            state = self.state.1.wait(state).unwrap();
        }
    }

    /// What is held goes on.
    pub fn open(&self) {
        self.state.0.lock().unwrap().passes = None;
        self.state.1.notify_all();
    }
}

trait Pass {
    fn pass(&self, turn: &mut usize, passed: &mut usize, bytes: usize);
}

impl Pass for (Mutex<State>, Condvar) {
    /// Waits until so many more bytes may pass on a connection.
    fn pass(&self, turn: &mut usize, passed: &mut usize, bytes: usize) {
        let mut state = self.0.lock().unwrap();
        if state.turn != *turn {
            (*turn, *passed) = (state.turn, 0);
        }
        *passed += bytes;
        state.held += 1;
        while state.passes.is_some_and(|passes| *passed > passes) {
            self.1.notify_all();
            state = self.1.wait(state).unwrap();
        }
        state.held -= 1;
    }
}

fn carry(mut from: TcpStream, mut into: TcpStream, mut pass: impl FnMut(usize)) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        pass(read);
        if into.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
