//! Both sides of TLS without a socket.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::{CertificateError, Error};

use super::*;

/// A folder of the certificates for tests, with keys as their owner should keep them.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let all = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls")).unwrap();
        all.map(|entry| entry.unwrap().path())
            .for_each(|path| files.put(&path, path.file_name().unwrap().to_str().unwrap()));
        files
    }

    fn put(&self, from: &Path, name: &str) {
        let path = self.path(name);
        fs::write(&path, fs::read(from).unwrap()).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server_files(&self, name: &str, client_ca: Option<&str>) -> ServerFiles {
        ServerFiles {
            certificates: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            private_key: true,
            client_ca: client_ca.map(|name| self.path(name)),
        }
    }

    fn server(&self, name: &str, client_ca: Option<&str>) -> ServerTls {
        ServerTls::open(self.server_files(name, client_ca)).unwrap()
    }

    fn client_files(&self, ca: &str, identity: Option<&str>, verify_name: bool) -> ClientFiles {
        let pair =
            |name: &str| (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        ClientFiles { ca: self.path(ca), identity: identity.map(pair), verify_name }
    }

    fn client(&self, ca: &str, identity: Option<&str>, verify_name: bool) -> ClientTls {
        ClientTls::open(self.client_files(ca, identity, verify_name)).unwrap()
    }
}

/// What the server and the client say of each other in the end.
fn meet(server: &ServerTls, client: &ClientTls, host: &str) -> [Option<Error>; 2] {
    let (mut server, mut client) = (server.session().unwrap(), client.session(host).unwrap());
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    for turn in 0..4 {
        let (mut wire, mut said) = (Vec::new(), Vec::new());
        client.seal(&mut wire).unwrap();
        if turn == 3 && !client.is_handshaking() && client.fault().is_none() {
            let mut hello = b"hello".to_vec();
            client.seal(&mut hello).unwrap();
            wire.extend(hello);
        }
        let _ = server.open(&wire, &mut to_server);
        server.seal(&mut said).unwrap();
        let _ = client.open(&said, &mut to_client);
    }
    let faults = [server.fault().cloned(), client.fault().cloned()];
    assert_eq!(to_server == b"hello", faults == [None, None], "{faults:?}");
    faults
}

fn refuses(error: Option<&Error>, why: impl Fn(&CertificateError) -> bool) -> bool {
    matches!(error, Some(Error::InvalidCertificate(certificate)) if why(certificate))
}

#[test]
fn a_server_is_believed_by_its_ca_its_name_and_its_dates() {
    use CertificateError as Wrong;
    let files = Files::new();
    let (with_name, any_name) =
        (files.client("ca.pem", None, true), files.client("ca.pem", None, false));
    for host in ["localhost", "127.0.0.1"] {
        assert_eq!(meet(&files.server("server", None), &with_name, host), [None, None]);
    }
    let elsewhere = files.server("elsewhere", None);
    let [_, said] = meet(&elsewhere, &with_name, "localhost");
    let is_name = |wrong: &Wrong| {
        matches!(wrong, Wrong::NotValidForName | Wrong::NotValidForNameContext { .. })
    };
    assert!(refuses(said.as_ref(), is_name), "{said:?}");
    assert_eq!(meet(&elsewhere, &any_name, "localhost"), [None, None]);
    // Whatever the name, the chain and the dates count.
    let other = files.client("other-ca.pem", None, true);
    let other_any = files.client("other-ca.pem", None, false);
    for client in [&other, &other_any] {
        let [_, said] = meet(&files.server("server", None), client, "localhost");
        assert!(refuses(said.as_ref(), |wrong| *wrong == Wrong::UnknownIssuer), "{said:?}");
    }
    let is_old = |wrong: &Wrong| matches!(wrong, Wrong::Expired | Wrong::ExpiredContext { .. });
    for client in [&with_name, &any_name] {
        let [_, said] = meet(&files.server("expired", None), client, "localhost");
        assert!(refuses(said.as_ref(), is_old), "{said:?}");
    }
}

#[test]
fn a_client_needs_a_certificate_where_the_server_names_a_ca() {
    let files = Files::new();
    let server = files.server("server", Some("ca.pem"));
    let known = files.client("ca.pem", Some("client"), true);
    assert_eq!(meet(&server, &known, "localhost"), [None, None]);
    let [said, _] = meet(&server, &files.client("ca.pem", None, true), "localhost");
    assert_eq!(said, Some(Error::NoCertificatesPresented));
    let stranger = files.client("ca.pem", Some("stranger"), true);
    let [said, heard] = meet(&server, &stranger, "localhost");
    assert!(refuses(said.as_ref(), |wrong| *wrong == CertificateError::UnknownIssuer), "{said:?}");
    assert!(matches!(heard, Some(Error::AlertReceived(_))), "{heard:?}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_to_do() {
    let files = Files::new();
    let refused = |files: ServerFiles| ServerTls::open(files).unwrap_err().to_string();
    let good = files.server_files("server", Some("ca.pem"));
    let key = |name: &str| ServerFiles { key: files.path(name), ..good.clone() };
    let ca = |name: &str| ServerFiles { client_ca: Some(files.path(name)), ..good.clone() };
    fs::write(files.path("empty"), "").unwrap();
    fs::set_permissions(files.path("second.key"), PermissionsExt::from_mode(0o640)).unwrap();
    for (wrong, hint) in [
        (ServerFiles { certificates: files.path("gone"), ..good.clone() }, "cannot read"),
        (key("client.key"), "does not fit"),
        (key("gone"), "cannot be read"),
        (key("second.key"), "chmod 600"),
        (key("ca.pem"), "a private key"),
        (ca("gone"), "cannot be used as a CA"),
        (ca("empty"), "no certificate"),
        (ca("server.key"), "no certificate"),
    ] {
        let said = refused(wrong.clone());
        assert!(said.contains(hint), "{wrong:?}: {said}");
    }
    let wrong = files.client_files("ca.pem", Some("second"), true);
    assert!(ClientTls::open(wrong).unwrap_err().to_string().contains("chmod 600"));
    let wrong = files.client_files("empty", None, true);
    assert!(ClientTls::open(wrong).unwrap_err().to_string().contains("no certificate"));
    // Who has the files of memcached may have them as memcached takes them.
    let open = ServerFiles {
        certificates: files.path("second.pem"),
        private_key: false,
        ..key("second.key")
    };
    ServerTls::open(open).unwrap();
}

#[test]
fn new_files_are_for_new_sessions_and_bad_ones_change_nothing() {
    let files = Files::new();
    let (server, client) = (files.server("server", None), files.client("ca.pem", None, true));
    let mut old = server.session().unwrap();
    // Now of a name that the client does not look for.
    files.put(&files.path("elsewhere.pem"), "server.pem");
    assert!(server.refresh().unwrap_err().to_string().contains("does not fit"));
    assert_eq!(meet(&server, &client, "localhost"), [None, None]);
    files.put(&files.path("elsewhere.key"), "server.key");
    server.refresh().unwrap();
    assert!(meet(&server, &client, "localhost")[1].is_some());
    // One that began before has what it began with.
    let (mut its, mut wire) = (client.session("localhost").unwrap(), Vec::new());
    its.seal(&mut wire).unwrap();
    assert!(old.open(&wire, &mut Vec::new()));
    let mut answer = Vec::new();
    old.seal(&mut answer).unwrap();
    assert!(its.open(&answer, &mut Vec::new()) && its.fault().is_none());
    // And so where we are the client.
    let server = files.server("second", None);
    files.put(&files.path("other-ca.pem"), "ca.pem");
    client.refresh().unwrap();
    assert!(meet(&server, &client, "localhost")[1].is_some());
    fs::remove_file(files.path("ca.pem")).unwrap();
    let said = client.refresh().unwrap_err().to_string();
    assert!(said.contains("ca.pem"), "{said}");
}

#[test]
fn bytes_that_are_no_tls_end_a_session_and_nothing_else() {
    let files = Files::new();
    let (server, client) = (files.server("server", None), files.client("ca.pem", None, true));
    let mut hello = Vec::new();
    client.session("localhost").unwrap().seal(&mut hello).unwrap();
    for at in 0..hello.len() {
        for flip in [0xff, 0x01, 0x80] {
            let mut bad = hello.clone();
            bad[at] ^= flip;
            let (mut session, mut input) = (server.session().unwrap(), Vec::new());
            let _ = session.open(&bad, &mut input);
            let _ = session.open(&bad[..at], &mut input);
            // Whatever it was, an alert can be said, and nothing was said to us.
            let _ = session.seal(&mut Vec::new());
            assert!(input.is_empty() && session.is_handshaking(), "byte {at} ^ {flip:#x}");
        }
    }
}
