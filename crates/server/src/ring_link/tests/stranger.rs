//! The other side of a link, driven by a test byte by byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use afterglow_ring::{Credit, Frame};

use super::*;
use crate::ring_link::payload::Payload;
use crate::ring_link::{Handshake, Inbox, NONCE, Role, Sealed};

/// A connection with a member.
pub struct Stranger {
    pub stream: TcpStream,
    inbox: Inbox,
    keys: Option<Sealed>,
}

impl Stranger {
    /// Connects, and says nothing.
    pub fn dial(address: SocketAddr) -> Self {
        Self::on(TcpStream::connect(address).expect("somebody listens"))
    }

    /// On a connection that was accepted.
    pub fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self { stream, inbox: Inbox::default(), keys: None }
    }

    /// Makes the handshake and says HELLO as member `id`.
    pub fn enter(address: SocketAddr, hello: Hello) -> Self {
        let mut stranger = Self::dial(address);
        stranger.shake_hands(Role::Initiator, secret());
        stranger.say(&Payload::Control(Frame::Hello(hello)));
        stranger
    }

    /// Makes the handshake.
    pub fn shake_hands(&mut self, role: Role, secret: Secrets) {
        let mut handshake = Handshake::new(&secret, RING, role, [role as u8; NONCE]);
        let mut out = Vec::new();
        handshake.begin(&mut out);
        while self.keys.is_none() {
            self.stream.write_all(&out).unwrap();
            out.clear();
            assert!(self.read().expect("it answers") > 0, "it closed the connection");
            self.keys = handshake.advance(&mut self.inbox, &mut out).expect("no fault");
        }
        self.stream.write_all(&out).unwrap();
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 4096];
        let count = self.stream.read(&mut buffer)?;
        self.inbox.feed(&buffer[..count]);
        Ok(count)
    }

    /// The bytes of a frame with that.
    pub fn sealed(&mut self, payload: &Payload<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        let keys = self.keys.as_mut().expect("the handshake is over");
        keys.sealer.seal(&mut out, |out| payload.put(out));
        out
    }

    /// Says it. Fails where the connection is closed already.
    pub fn try_say(&mut self, payload: &Payload<'_>) -> io::Result<()> {
        let bytes = self.sealed(payload);
        self.stream.write_all(&bytes)
    }

    pub fn say(&mut self, payload: &Payload<'_>) {
        self.try_say(payload).expect("the connection is there");
    }

    /// What comes next but signs of life: its kind and its message; `None` at the end.
    pub fn hear(&mut self) -> Option<Heard> {
        loop {
            match self.hear_any() {
                Some(Heard::Alive) => {}
                heard => return heard,
            }
        }
    }

    /// What comes next, be it a sign of life; `None` at the end, or when nothing came in time.
    pub fn hear_any(&mut self) -> Option<Heard> {
        loop {
            let keys = self.keys.as_mut().expect("the handshake is over");
            if let Some(sealed) = self.inbox.frame(16 << 20).expect("a good length") {
                let payload = keys.opener.open(sealed).expect("it opens");
                match Payload::read(payload).expect("it can be read") {
                    Payload::Alive => return Some(Heard::Alive),
                    Payload::Control(Frame::Credit(credit)) => return Some(Heard::Credit(credit)),
                    Payload::Control(_) => return Some(Heard::Hello),
                    Payload::Message(bytes) => return Some(Heard::Message(bytes.to_vec())),
                    Payload::Request(bytes) => return Some(Heard::Request(bytes.to_vec())),
                }
            }
            if !matches!(self.read(), Ok(1..)) {
                return None;
            }
        }
    }

    /// Waits until the other side closes the connection, whatever it says before.
    pub fn is_closed(&mut self) {
        loop {
            match self.stream.read(&mut [0; 4096]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("it is still open: {error}"),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Hello,
    Credit(Credit),
    Message(Vec<u8>),
    Request(Vec<u8>),
    /// A sign of life.
    Alive,
}
