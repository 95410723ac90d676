//! Many readers of one row that is not cached.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use afterglow_cql::frame::{Decoder, Envelope, Header, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};
use tempfile::TempDir;

use crate::node::{Setup, direct, furnished};

const READERS: usize = 10;
/// Requests that each has under way at once.
const EACH: i16 = 1000;

/// A connection that sends many requests before it reads an answer.
struct Crowd {
    stream: TcpStream,
    decoder: Decoder,
}

impl Crowd {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut crowd = Self { stream, decoder: Decoder::for_responses() };
        // A map of one option.
        let options = b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.4.5";
        crowd.send(&[frame(0, Opcode::Startup, options)]);
        assert_eq!(crowd.receive().header.opcode, Opcode::Ready);
        crowd
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        self.stream.write_all(&frames.concat()).unwrap();
    }

    fn receive(&mut self) -> Envelope {
        loop {
            if let Some(envelope) = self.decoder.next_envelope().unwrap() {
                return envelope;
            }
            let mut bytes = [0; 64 * 1024];
            let len = self.stream.read(&mut bytes).unwrap();
            assert_ne!(len, 0, "the connection ended");
            self.decoder.feed(&bytes[..len]);
        }
    }
}

fn frame(stream: i16, opcode: Opcode, body: &[u8]) -> Vec<u8> {
    let mut frame = Header::new(Version::V4, stream, opcode).encode(body.len()).to_vec();
    frame.extend_from_slice(body);
    frame
}

#[test]
fn ten_thousand_readers_of_a_cold_row_make_one_read_of_the_database() {
    let faults = Faults { delay: Duration::from_millis(50), ..Faults::default() };
    let database = furnished(FakeBackend::start("127.0.0.1:0".parse().unwrap(), faults).unwrap());
    direct(&database, "INSERT INTO ks.t (k, v) VALUES ('a', 'the value')");
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let params = QueryParams::new(Consistency::LocalQuorum);
    let mut body = Vec::new();
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    Query { text, params }.encode(Version::V4, &mut body);
    let frames: Vec<_> = (0..EACH).map(|stream| frame(stream, Opcode::Query, &body)).collect();
    let mut crowds: Vec<_> = (0..READERS).map(|_| Crowd::connect(node.address)).collect();
    let before = database.reads();
    crowds.iter_mut().for_each(|crowd| crowd.send(&frames));
    for crowd in &mut crowds {
        let mut answered = vec![0; EACH as usize];
        for _ in 0..EACH {
            let answer = crowd.receive();
            assert_eq!(answer.header.opcode, Opcode::Result);
            assert!(answer.body.ends_with(b"the value"));
            answered[answer.header.stream as usize] += 1;
        }
        assert!(answered.iter().all(|&times| times == 1), "each request has one answer");
    }
    assert_eq!(database.reads() - before, 1);
}
