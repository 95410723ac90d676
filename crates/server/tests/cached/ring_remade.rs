//! A table of a ring is dropped and made again, with another key, while a write to it is under way.
//! So the write may have touched rows whose owner has not heard of it.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afterglow_cql::frame::{Opcode, Version};
use afterglow_loadgen::cql::CqlError;
use afterglow_testkit::fake_backend::{Ask, FakeBackend};

use crate::node::{Client, direct, furnished, one_text, wait_until};
use crate::ring_world::World;

pub const WRITE: Duration = Duration::from_millis(400);

const WRITE_TIMEOUT: i32 = 0x1100;
const VOID: i32 = 1;
/// That a row was cached, or that there is none.
const CACHED: [&str; 2] = ["afterglow_fills_total", "\"installed"];

/// The way to a member's ring port. It can be cut.
pub struct Cable {
    address: SocketAddr,
    /// Both ends of what goes through; `None` while it is cut.
    ends: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Cable {
    fn to(port: SocketAddr) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(Mutex::new(Some(Vec::new())));
        let cable = Cable { address, ends: ends.clone() };
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if let (Some(ends), Ok(far)) =
                    (ends.lock().unwrap().as_mut(), TcpStream::connect(port))
                {
                    ends.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                    carry(near.try_clone().unwrap(), far.try_clone().unwrap());
                    carry(far, near);
                }
            }
        });
        cable
    }

    pub fn cut(&self) {
        let ends = self.ends.lock().unwrap().take();
        for end in ends.into_iter().flatten() {
            // Who has ended it before has done the same.
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        *self.ends.lock().unwrap() = Some(Vec::new());
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// A write that the database was sent, and has not answered.
pub type Held = Arc<Mutex<Option<Arc<Ask>>>>;

/// Two members with a cable to each. The first write of `'fresh'` is kept, and not done. A write
/// gives up when an owner has not answered for [`WRITE`].
pub fn world() -> (World, Vec<Cable>, Held) {
    let held = Held::default();
    let kept = held.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let mut kept = kept.lock().unwrap();
        let takes = kept.is_none() && ask.text.contains("'fresh'");
        if takes {
            *kept = Some(ask.clone());
        }
        takes
    });
    let mut world = World::over(furnished(database.unwrap()), 2);
    let cable = |setup: &mut crate::node::Setup| {
        let ring = setup.ring.as_mut().unwrap();
        // A write gives up before anybody is put out, and before the lease ends.
        (ring.protocol.write, ring.protocol.silence) = (WRITE.as_micros() as u64, 5_000_000);
        ring.protocol.lease = 10_000_000;
        let cable = Cable::to(ring.listen);
        ring.advertised = cable.address.to_string();
        cable
    };
    let cables = world.setups.iter_mut().map(cable).collect();
    (0..2).for_each(|member| world.start(member));
    world.settle();
    (world, cables, held)
}

/// A key of text that the second member owns.
fn of_the_second(world: &World, client: &mut Client) -> String {
    let is_of_the_second = |key: &String| {
        let before = world.node(1).count(&CACHED);
        wait_until("it is cached by whoever owns it", || {
            let reads = world.database.reads();
            client.value(key);
            world.database.reads() == reads
        });
        world.node(1).count(&CACHED) > before
    };
    (0..).map(|n| format!("k{n}")).find(is_of_the_second).unwrap()
}

#[test]
fn an_owner_that_cannot_be_told_of_a_write_to_a_table_made_again_is_told_later() {
    let (world, cables, held) = world();
    let (mut writer, mut reader) = (world.client(0), world.client(1));
    let key = of_the_second(&world, &mut reader);
    let text = format!("INSERT INTO ks.t (k, v) VALUES ('fresh', '{key}')");
    let read = format!("SELECT k FROM ks.t WHERE v = '{key}'");
    thread::scope(|scope| {
        let written = scope.spawn(|| writer.try_run(&text));
        wait_until("it is sent", || held.lock().unwrap().is_some());
        direct(&world.database, "DROP TABLE ks.t");
        direct(&world.database, "CREATE TABLE ks.t (v text PRIMARY KEY, k text)");
        direct(&world.database, &format!("INSERT INTO ks.t (k, v) VALUES ('old', '{key}')"));
        // The writer's member has heard of the new table too: one that has not tells of it later.
        let mut beside = world.client(0);
        for client in [&mut reader, &mut beside] {
            wait_until("what was before is cached", || {
                let reads = world.database.reads();
                let found = client.try_run(&read).ok().and_then(one_text);
                found.as_deref() == Some("old") && world.database.reads() == reads
            });
        }
        cables.iter().for_each(Cable::cut);
        direct(&world.database, &text);
        let ask = held.lock().unwrap().clone().unwrap();
        ask.reply(Opcode::Result, &VOID.to_be_bytes());
        match written.join().unwrap() {
            Err(CqlError::Server(error)) => assert_eq!(error.code, WRITE_TIMEOUT, "{error}"),
            other => panic!("it is acknowledged: {other:?}"),
        }
    });
    cables.iter().for_each(Cable::mend);
    wait_until("what was written is read", || {
        reader.try_run(&read).ok().and_then(one_text).as_deref() == Some("fresh")
    });
}
