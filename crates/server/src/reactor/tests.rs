use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::TcpStream as StdStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use afterglow_engine::device::{self, AlignedBuf, DeviceConfig, DeviceId, IoEngine};
use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use futures_util::FutureExt;
use futures_util::future::Either;

use super::*;

fn reactors(threads: usize, driver: Driver) -> Reactors {
    Reactors::start(&ReactorsConfig { threads: Some(threads), driver }).unwrap()
}

/// Answers every connection with the name of the thread that serves it, once for each byte
/// received.
fn name_server(reactors: &Reactors) -> Listener {
    Listener::start(reactors, "127.0.0.1:0".parse().unwrap(), |mut stream, _, guard| async move {
        let _guard = guard;
        let name = std::thread::current().name().unwrap().as_bytes().to_vec();
        while let BufResult(Ok(1..), _) = stream.read(Vec::with_capacity(1)).await {
            let BufResult(sent, _) = stream.write_all(name.clone()).await;
            sent.unwrap();
        }
    })
    .unwrap()
}

fn ask_name(client: &mut StdStream) -> String {
    client.write_all(b"?").unwrap();
    let mut name = [0; "reactor-0".len()];
    client.read_exact(&mut name).unwrap();
    String::from_utf8(name.to_vec()).unwrap()
}

#[test]
fn few_connections_are_spread_evenly_and_places_are_given_back() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(2, driver);
        let listener = name_server(&reactors);
        let mut clients: Vec<_> =
            (0..4).map(|_| StdStream::connect(listener.address()).unwrap()).collect();
        let mut names: Vec<_> = clients.iter_mut().map(ask_name).collect();
        names.sort();
        assert_eq!(names, ["reactor-0", "reactor-0", "reactor-1", "reactor-1"]);
        reactors.shutdown();
    }
}

#[test]
fn a_task_that_cannot_even_be_made_costs_nothing_else() {
    let reactors = reactors(1, Driver::Auto);
    reactors.spawn_on(0, || -> std::future::Ready<()> { panic!("a bug") });
    assert_eq!(reactors.block_on(0, || async { 7 }), Some(7));
    assert!(reactors.are_running());
    reactors.shutdown();
}

#[test]
fn no_connection_goes_to_a_reactor_that_has_ended() {
    let reactors = reactors(2, Driver::Auto);
    let listener = name_server(&reactors);
    reactors.end_by_a_bug(1);
    let mut clients: Vec<_> =
        (0..4).map(|_| StdStream::connect(listener.address()).unwrap()).collect();
    assert!(clients.iter_mut().all(|client| ask_name(client) == "reactor-0"));
    reactors.shutdown();
}

#[test]
fn where_the_reactor_that_accepts_has_ended_connections_are_refused_and_others_go_on() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(2, driver);
        let listener = name_server(&reactors);
        let mut clients: Vec<_> =
            (0..2).map(|_| StdStream::connect(listener.address()).unwrap()).collect();
        let names: Vec<_> = clients.iter_mut().map(ask_name).collect();
        reactors.end_by_a_bug(0);
        assert!(!reactors.are_running());
        // A connection that the kernel took would wait for ever: nobody accepts it.
        let until = Instant::now() + Duration::from_secs(60);
        while StdStream::connect(listener.address()).is_ok() {
            assert!(Instant::now() < until, "connections are still taken");
            std::thread::yield_now();
        }
        let there = names.iter().position(|name| name == "reactor-1").unwrap();
        assert_eq!(ask_name(&mut clients[there]), "reactor-1");
        let ended = clients[1 - there].read(&mut [0; 1]);
        assert!(matches!(ended, Ok(0) | Err(_)), "whose reactor has ended hears so");
        reactors.shutdown();
    }
}

#[test]
fn who_waits_for_a_task_of_a_reactor_that_ends_hears_so() {
    let reactors = reactors(2, Driver::Auto);
    let (other, (tell, told)) = (reactors.clone(), mpsc::channel());
    let (begun, begins) = mpsc::channel();
    reactors.spawn_on(1, move || async move {
        let never = other.run_on(0, move || async move {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        tell.send(never.await).unwrap();
    });
    begins.recv().unwrap();
    // The destructor of the task that waits for nothing wakes a task of the other reactor.
    reactors.end_by_a_bug(0);
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(None));
    assert_eq!(reactors.block_on(1, || async { 7 }), Some(7));
    reactors.shutdown();
}

/// Both processes have one socket, and it has its flags but once. Where this fails the reactor
/// stands still in a call of the system.
#[test]
fn a_successor_that_takes_a_socket_leaves_whoever_listens_on_it_alone() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(1, driver);
        let bound = Bound::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, shared) = (bound.address(), bound.share().unwrap());
        let listener = Listener::start_on(&reactors, bound, |stream, _, guard| async move {
            drop((stream, guard));
        });
        let is_served = || StdStream::connect(address).unwrap().read(&mut [0; 1]);
        assert_eq!(is_served().unwrap(), 0);
        let taken = Bound::taken(shared).unwrap();
        assert_eq!(is_served().unwrap(), 0);
        let (tell, told) = mpsc::channel();
        let asked = reactors.clone();
        std::thread::spawn(move || tell.send(asked.block_on(0, || async { 7 })));
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Some(7)), "{driver:?}");
        listener.stop();
        reactors.shutdown();
        drop(taken);
    }
}

/// Where this fails it never ends.
#[test]
fn tasks_that_are_always_ready_hold_up_no_socket() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(1, driver);
        let listener = name_server(&reactors);
        let (stop, mut stopped) = futures_channel::oneshot::channel::<()>();
        reactors.spawn_on(0, move || async move {
            std::future::poll_fn(|context| match stopped.try_recv() {
                Ok(None) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            })
            .await;
        });
        let mut client = StdStream::connect(listener.address()).unwrap();
        assert_eq!(ask_name(&mut client), "reactor-0");
        drop(stop);
        reactors.shutdown();
    }
}

#[test]
fn who_yields_goes_on_once_what_has_come_was_seen() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(1, driver);
        let (mut client, accepted) = connected();
        let seen = reactors.block_on(0, move || async move {
            let mut stream = compio::net::TcpStream::from_std(accepted).unwrap();
            let read = Rc::new(Cell::new(0));
            let count = read.clone();
            compio::runtime::spawn(async move {
                while let BufResult(Ok(1..), _) = stream.read(Vec::with_capacity(1)).await {
                    count.set(count.get() + 1);
                }
            })
            .detach();
            // Its first read is under way. Each byte is there once it is written, on loopback.
            yield_now().await;
            let mut late = 0;
            for n in 1..=20 {
                client.write_all(b"?").unwrap();
                yield_now().await;
                yield_now().await;
                late += u32::from(read.get() < n);
            }
            late
        });
        assert_eq!(seen, Some(0), "bytes that were not seen in time");
        reactors.shutdown();
    }
}

/// Two ends of a connection.
fn connected() -> (StdStream, StdStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn a_stopped_listener_refuses_and_what_is_connected_goes_on() {
    let reactors = reactors(1, Driver::Auto);
    let listener = name_server(&reactors);
    let mut client = StdStream::connect(listener.address()).unwrap();
    ask_name(&mut client);
    listener.stop();
    // The socket closes when its task has ended; a connection made before that is never served.
    while StdStream::connect(listener.address()).is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(ask_name(&mut client), "reactor-0");
    reactors.shutdown();
}

#[test]
fn an_address_in_use_is_refused_by_name() {
    let reactors = reactors(1, Driver::Auto);
    let first = name_server(&reactors);
    let error = Listener::start(&reactors, first.address(), |_, _, _| async {}).err().unwrap();
    assert!(error.to_string().contains(&first.address().to_string()), "{error}");
    reactors.shutdown();
}

#[test]
fn flash_is_read_on_the_ring_whole_or_with_an_error() {
    let dir = std::env::temp_dir().join(format!("afterglow-reactor-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("flash");
    let opened =
        device::open(&[DeviceConfig { path: path.clone(), size: 1 << 20 }], IoEngine::Pread)
            .unwrap();
    let page: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    {
        use std::os::unix::fs::FileExt;
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .write_all_at(&page, 8192)
            .unwrap();
    }
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(1, driver);
        let set = opened.set.clone();
        let (whole, beyond) = reactors
            .block_on(0, move || async move {
                let file = FlashFile::new(set, DeviceId(0)).unwrap();
                // A read nobody waits for any more must not disturb the ones after it.
                assert!(
                    read_flash(&file, 0, AlignedBuf::for_read(65536)).now_or_never().is_none(),
                    "the read is under way when it is dropped"
                );
                (
                    read_flash(&file, 8192, AlignedBuf::for_read(4096)).await,
                    read_flash(&file, 1 << 20, AlignedBuf::for_read(4096)).await,
                )
            })
            .unwrap();
        assert_eq!(&whole.unwrap()[..], &page[..]);
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        reactors.shutdown();
    }
    drop(opened);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A cache of one small file.
fn small_file(dir: &std::path::Path) -> FlashFile {
    let config = DeviceConfig { path: dir.join("flash"), size: 1 << 20 };
    let opened = device::open(&[config], IoEngine::Pread).unwrap();
    FlashFile::new(opened.set, DeviceId(0)).unwrap()
}

/// A read that never comes back.
async fn never(file: &FlashFile) -> io::Error {
    let Ok(mut reading) = silence::enter(file).await else { panic!("it is silent") };
    std::future::poll_fn(|context| match reading.wait(context.waker()) {
        Ok(()) => Poll::Pending,
        Err(error) => Poll::Ready(error),
    })
    .await
}

#[test]
fn reads_of_a_device_that_answers_none_are_given_up_until_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    for driver in [Driver::Auto, Driver::Readiness] {
        let reactors = reactors(1, driver);
        let file = small_file(dir.path());
        let (first, second) = reactors
            .block_on(0, move || async move {
                let ends = futures_util::join!(never(&file), never(&file));
                // It answers the block that it is asked for then.
                while let Err(error) = read_flash(&file, 0, AlignedBuf::for_read(4096)).await {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    yield_now().await;
                }
                ends
            })
            .unwrap();
        assert_eq!([first.kind(), second.kind()], [io::ErrorKind::TimedOut; 2]);
        reactors.shutdown();
    }
}

#[test]
fn a_read_waits_on_as_long_as_its_device_answers_others() {
    let dir = tempfile::tempdir().unwrap();
    let reactors = reactors(1, Driver::Auto);
    let file = small_file(dir.path());
    let answered = reactors
        .block_on(0, move || async move {
            let long = pin!(never(&file));
            let others = pin!(async {
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(4) {
                    read_flash(&file, 0, AlignedBuf::for_read(4096)).await.unwrap();
                    compio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            matches!(futures_util::future::select(long, others).await, Either::Right(_))
        })
        .unwrap();
    assert!(answered, "it was given up");
    reactors.shutdown();
}

/// Two files of one cache.
fn two_files(dir: &std::path::Path) -> [FlashFile; 2] {
    let config = |name| DeviceConfig { path: dir.join(name), size: 1 << 20 };
    let opened = device::open(&[config("one"), config("two")], IoEngine::Pread).unwrap();
    [0, 1].map(|n| FlashFile::new(opened.set.clone(), DeviceId(n)).unwrap())
}

/// Each has a helper thread there, and the reactor stands still while there is none.
#[test]
fn without_a_ring_a_read_waits_for_a_place_of_its_device() {
    let dir = tempfile::tempdir().unwrap();
    let reactors = reactors(1, Driver::Readiness);
    let [file, other] = two_files(dir.path());
    let waited = reactors
        .block_on(0, move || async move {
            let mut under_way = Vec::new();
            for _ in 0..silence::PLACES / 2 {
                under_way.push(silence::enter(&file).now_or_never().expect("a place").ok());
            }
            let read = |file| read_flash(file, 0, AlignedBuf::for_read(4096));
            let mut gone = Box::pin(read(&file));
            let mut next = Box::pin(read(&file));
            let waited = [&mut gone, &mut next].map(|read| read.as_mut().now_or_never().is_none());
            read(&other).await.unwrap();
            // The place that is free now was offered to who goes.
            under_way.pop();
            drop(gone);
            next.await.unwrap();
            waited
        })
        .unwrap();
    assert_eq!(waited, [true; 2], "all places are taken");
    reactors.shutdown();
}

#[test]
fn results_come_back_from_another_reactor() {
    let reactors = reactors(2, Driver::Auto);
    let other = reactors.clone();
    let (tx, rx) = mpsc::channel();
    reactors.spawn_on(0, move || async move {
        let name =
            other.run_on(1, || async { std::thread::current().name().map(str::to_owned) }).await;
        tx.send(name.flatten()).unwrap();
    });
    assert_eq!(rx.recv().unwrap().as_deref(), Some("reactor-1"));
    reactors.shutdown();
}

/// Where this fails the process of all tests ends, and says nothing.
#[test]
fn a_thread_that_panics_takes_its_listener_along_and_not_the_process() {
    let thread = std::thread::spawn(|| {
        let listener = name_server(&reactors(1, Driver::Auto));
        panic!("on purpose, with {} open", listener.address());
    });
    let panic = thread.join().unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().starts_with("on purpose"));
}
