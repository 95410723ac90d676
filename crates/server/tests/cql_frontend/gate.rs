//! Gates between plain text and TLS, so that a client and a database that speak none meet a front
//! end that does.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use afterglow::tls::{ClientFiles, ClientTls, ServerFiles, ServerTls, TlsSession};

/// A file of the certificates for tests.
pub fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls")).join(name)
}

/// A key as its owner should keep it, whatever the source tree says of it.
pub fn key(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::copy(file(name), &path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    (dir, path)
}

/// A server with the certificate `server`.
pub fn server(client_ca: Option<&str>) -> Arc<ServerTls> {
    server_with("server", client_ca)
}

/// A server with a certificate of that name.
pub fn server_with(name: &str, client_ca: Option<&str>) -> Arc<ServerTls> {
    let (_dir, key) = key(&format!("{name}.key"));
    let (certificates, client_ca) = (file(&format!("{name}.pem")), client_ca.map(file));
    let files = ServerFiles { certificates, key, private_key: true, client_ca };
    Arc::new(ServerTls::open(files).unwrap())
}

/// A client that trusts a CA, perhaps with a certificate of its own.
pub fn client(ca: &str, identity: Option<&str>) -> Arc<ClientTls> {
    let key = identity.map(|name| key(&format!("{name}.key")));
    let own = identity.zip(key.as_ref());
    let identity = own.map(|(name, (_, key))| (file(&format!("{name}.pem")), key.clone()));
    let files = ClientFiles { ca: file(ca), identity, verify_name: true };
    Arc::new(ClientTls::open(files).unwrap())
}

/// Takes plain connections and goes on to `to` with TLS; the address.
pub fn into_tls(to: SocketAddr, tls: Arc<ClientTls>) -> SocketAddr {
    gate(to, move |plain, secure| {
        carry(plain, secure, tls.session("127.0.0.1").unwrap());
    })
}

/// Takes TLS connections and goes on to `to` without; the address.
pub fn out_of_tls(to: SocketAddr, tls: Arc<ServerTls>) -> SocketAddr {
    gate(to, move |secure, plain| carry(plain, secure, tls.session().unwrap()))
}

/// The thread ends with the process.
fn gate(
    to: SocketAddr,
    carry: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for came in listener.incoming() {
            // A side that is down closes the other.
            let (Ok(came), Ok(goes)) = (came, TcpStream::connect(to)) else { continue };
            let carry = carry.clone();
            thread::spawn(move || carry(came, goes));
        }
    });
    address
}

fn carry(plain: TcpStream, mut secure: TcpStream, mut session: TlsSession) {
    let (mut came, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    for stream in [&plain, &secure] {
        stream.set_nodelay(true).unwrap();
    }
    let mut open = true;
    while open {
        let mut out = Vec::new();
        session.seal(&mut out).unwrap();
        if secure.write_all(&out).is_err() || !session.is_handshaking() {
            break;
        }
        let read = secure.read(&mut buffer).unwrap_or(0);
        open = read > 0 && session.open(&buffer[..read], &mut came);
    }
    // The alert, if there is one.
    let mut out = Vec::new();
    session.seal(&mut out).unwrap();
    let _ = secure.write_all(&out);
    if session.is_handshaking() {
        let _ = (plain.shutdown(Shutdown::Both), secure.shutdown(Shutdown::Both));
        return;
    }
    let session = Arc::new(Mutex::new(session));
    let (its, from, to) =
        (session.clone(), plain.try_clone().unwrap(), secure.try_clone().unwrap());
    let sealing = thread::spawn(move || seal(&its, from, to));
    let _ = (&plain).write_all(&came);
    while let Ok(read @ 1..) = secure.read(&mut buffer) {
        let mut said = Vec::new();
        let open = session.lock().unwrap().open(&buffer[..read], &mut said);
        if (&plain).write_all(&said).is_err() || !open {
            break;
        }
    }
    let _ = (plain.shutdown(Shutdown::Both), secure.shutdown(Shutdown::Both));
    let _ = sealing.join();
}

fn seal(session: &Mutex<TlsSession>, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut out = buffer[..read].to_vec();
        session.lock().unwrap().seal(&mut out).unwrap();
        if to.write_all(&out).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
