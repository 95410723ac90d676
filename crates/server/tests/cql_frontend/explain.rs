//! `afterglow explain --backend` with a database that asks for TLS and for a login.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};

use crate::gate;

/// Its exit status, and all that it said.
fn explain(backend: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow"));
    command.args(["explain", "SELECT v FROM ks.t WHERE k = 'a'", "--backend", backend]).args(more);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// A database with a table and one user.
fn guarded() -> FakeBackend {
    let fake = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let mut direct =
        Connection::open(&fake.address().to_string(), &ConnectOptions::default()).unwrap();
    for text in [
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE ks.t (k text PRIMARY KEY, v text)",
    ] {
        direct.query(text, Consistency::One).unwrap();
    }
    fake.add_user("reader", "secret");
    fake
}

#[test]
fn it_logs_in_and_speaks_tls_with_the_options_of_serve() {
    let fake = guarded();
    let secured = gate::out_of_tls(fake.address(), gate::server(Some("ca.pem"))).to_string();
    let dir = tempfile::tempdir().unwrap();
    let credentials = dir.path().join("credentials");
    std::fs::write(&credentials, "username = \"reader\"\npassword = \"secret\"\n").unwrap();
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).unwrap();
    let (_keys, key) = gate::key("client.key");
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (ca, cert, key) =
        (path(&gate::file("ca.pem")), path(&gate::file("client.pem")), path(&key));
    let user = ["--backend-credentials", credentials.to_str().unwrap()];
    let trust = ["--backend-tls-ca", &*ca];
    let identity = ["--backend-tls-cert", &*cert, "--backend-tls-key", &*key];
    let all = [&user[..], &trust, &identity].concat();

    let (status, said) = explain(&secured, &all);
    assert!(status == Some(0) && said.contains("cached: one row of ks.t"), "{said}");
    let plain = fake.address().to_string();
    let (status, said) = explain(&plain, &user);
    assert!(status == Some(0) && said.contains("cached: one row of ks.t"), "{said}");

    for (backend, more, hint) in [
        (&plain, vec![], "give --backend-credentials FILE"),
        (&secured, [&trust[..], &identity].concat(), "give --backend-credentials FILE"),
        (&secured, [&user[..], &trust].concat(), "set --backend-tls-cert and --backend-tls-key"),
        (&plain, all.clone(), "the database speaks no TLS here"),
        (&secured, user.to_vec(), "if the database speaks TLS, give --backend-tls-ca FILE"),
    ] {
        let (status, said) = explain(backend, &more);
        assert!(status == Some(1) && said.contains(hint), "{more:?}: {said}");
    }
    // Options that are of use with others only.
    for more in [&identity[..2], &identity, &["--backend-tls-verify-host-name=false"]] {
        let (status, said) = explain(&secured, more);
        assert!(status == Some(2) && said.contains("required"), "{more:?}: {said}");
    }
}

#[test]
fn the_host_name_is_verified_unless_told_otherwise() {
    let fake = guarded();
    let elsewhere = gate::server_with("elsewhere", None);
    let secured = gate::out_of_tls(fake.address(), elsewhere).to_string();
    let ca = gate::file("ca.pem");
    let trust = ["--backend-tls-ca", ca.to_str().unwrap()];
    let (status, said) = explain(&secured, &trust);
    assert!(status == Some(1) && said.contains("does not name 127.0.0.1"), "{said}");
    let any = [&trust[..], &["--backend-tls-verify-host-name=false"]].concat();
    let (status, said) = explain(&secured, &any);
    assert!(status == Some(1) && said.contains("give --backend-credentials FILE"), "{said}");
}
