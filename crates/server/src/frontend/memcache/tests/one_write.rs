//! The front end over a connection whose writes are counted.

use std::cell::Cell;
use std::rc::Rc;

use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut};
use compio::io::{AsyncRead, AsyncWrite};

use super::*;

/// A connection that counts what it is asked to write.
#[derive(Clone)]
struct Counted {
    stream: compio::net::UnixStream,
    writes: Rc<Cell<usize>>,
}

impl AsFd for Counted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Counted {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.stream.read(buf).await
    }
}

impl AsyncWrite for Counted {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.writes.set(self.writes.get() + 1);
        self.stream.write(buf).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }
}

#[test]
fn pipelined_requests_are_answered_with_one_write() {
    let opened = Opened::new(0);
    let (mut client, server) = UnixStream::pair().unwrap();
    // Little enough for one read, so that all of it is there at once.
    client.write_all("get warm\r\n".repeat(400).as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (front_end, (tell, told)) = (opened.front_end.front_end.clone(), mpsc::channel());
    opened.reactors.spawn_on(0, move || async move {
        let stream = compio::net::UnixStream::from_std(server).unwrap();
        let stream = Counted { stream, writes: Rc::default() };
        let writes = stream.writes.clone();
        let ends = Ends { peer: String::new(), from: None, listener: "unix".into(), tls: false };
        connection::serve(front_end, stream, ends, ()).await;
        tell.send(writes.get()).unwrap();
    });
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, "VALUE warm 0 2\r\nhi\r\nEND\r\n".repeat(400));
    assert_eq!(told.recv_timeout(TIMEOUT), Ok(1), "writes for 400 answers");
}
