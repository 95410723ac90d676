//! The memcached front end against hostile peers. No peer hangs a reactor, loses another's
//! requests, or takes the memory that others need.

mod tls;
mod tls_peers;
mod tls_sessions;

use std::io::{BufRead, BufReader, Read, Write};
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow::frontend::memcache::{MemcacheFrontEnd, MemcacheFrontEndConfig, MemcacheLimits};
use afterglow::metrics::Metrics;
use afterglow::reactor::{Driver, Reactors, ReactorsConfig};
use afterglow::tls::{ServerFiles, ServerTls};
use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config, Durability};
use tempfile::TempDir;

/// Only so that a fault ends a test instead of hanging it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A front end on one reactor, so that whoever hangs it hangs everybody.
struct Opened {
    /// A reactor that hangs would hang the end of a test that has failed as well: then it is left
    /// to the system.
    front_end: ManuallyDrop<MemcacheFrontEnd>,
    cache: ManuallyDrop<Arc<Cache>>,
    reactors: ManuallyDrop<Reactors>,
    metrics: Arc<Metrics>,
    dir: TempDir,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.front_end.drain(TIMEOUT), "a connection did not end");
            self.reactors.shutdown();
            self.cache.close();
        }
    }
}

impl Opened {
    fn new(change: impl FnOnce(&mut MemcacheFrontEndConfig)) -> Opened {
        let dir = tempfile::tempdir().unwrap();
        let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
        let mut config = Config::new(dir.path(), vec![device]);
        (config.memory, config.journal_size) = (32 << 20, 1 << 20);
        let cache = Arc::new(Cache::open(config).unwrap());
        let reactors =
            Reactors::start(&ReactorsConfig { threads: Some(1), driver: Driver::Auto }).unwrap();
        let mut config = MemcacheFrontEndConfig {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            unix: Some(dir.path().join("socket")),
            tls: None,
            users: None,
            limits: MemcacheLimits { connections: 64, idle_timeout: None, memory: 32 << 20 },
            max_item: 1 << 20,
            parting: afterglow_memcache::Parting { above: 1 << 16, part: 8192 },
            buffers: 1 << 20,
            flush_enabled: true,
            dump_enabled: true,
            watch_enabled: true,
            rejoin_grace: None,
            durability: Durability::WriteBack,
            data_dir: dir.path().to_owned(),
            metrics: Arc::default(),
        };
        change(&mut config);
        let metrics = config.metrics.clone();
        let front_end = MemcacheFrontEnd::start(config, &cache, &reactors).unwrap();
        Opened {
            front_end: ManuallyDrop::new(front_end),
            cache: ManuallyDrop::new(cache),
            reactors: ManuallyDrop::new(reactors),
            metrics,
            dir,
        }
    }

    fn with_tls() -> Opened {
        let open = |certificates: &Path, key: &Path| {
            let (certificates, key) = (certificates.to_owned(), key.to_owned());
            let files = ServerFiles { certificates, key, private_key: false, client_ca: None };
            ServerTls::open(files).unwrap()
        };
        let [certificates, key] = tls::files();
        Opened::new(|config| config.tls = Some(Arc::new(open(certificates, key))))
    }

    /// TLS handshakes that failed, by the reasons that a test cares for.
    fn failed_handshakes(&self) -> [(&'static str, u64); 3] {
        let text = self.metrics.render(Default::default());
        ["plain", "late", "other"].map(|reason| {
            let name = format!(
                "afterglow_tls_handshake_failures_total{{frontend=\"memcache\",reason=\"{reason}\"}} "
            );
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            (reason, line.expect("a sample").parse().expect("a number"))
        })
    }

    /// A connection to the TCP port.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.front_end.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// A client of the Unix socket, which never speaks TLS.
    fn other(&self) -> Other {
        let stream =
            std::os::unix::net::UnixStream::connect(self.dir.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Other(BufReader::new(stream))
    }
}

/// A client that behaves.
struct Other(BufReader<std::os::unix::net::UnixStream>);

impl Other {
    /// The first line of the answer.
    fn ask(&mut self, text: &str) -> String {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the reactor serves others");
        line.trim_end().to_owned()
    }

    fn set(&mut self, key: &str, value: &str) {
        assert_eq!(self.ask(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len())), "STORED");
    }

    /// A figure of `stats`.
    fn stat(&mut self, name: &str) -> u64 {
        let start = format!("STAT {name} ");
        let (mut line, mut found) = (self.ask("stats\r\n"), None);
        while line != "END" {
            found = found.or(line.strip_prefix(&start).map(|value| value.parse().unwrap()));
            line = self.line();
        }
        found.expect("a figure of that name")
    }

    fn has(&mut self, key: &str) -> bool {
        if self.ask(&format!("get {key}\r\n")) == "END" {
            return false;
        }
        self.line();
        self.line() == "END"
    }
}

/// All that comes until the server ends the connection, however it does so.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("not closed: {error}")
        }
        _ => said,
    }
}
