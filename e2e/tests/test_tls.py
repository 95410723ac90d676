"""TLS on both sides: drivers to Afterglow, Afterglow to a Cassandra that speaks nothing else and
asks for certificates.
"""

import os
import re
import signal
import socket
import ssl
from collections import namedtuple
from contextlib import ExitStack

import pytest
from cassandra import DriverException, InvalidRequest
from cassandra.cluster import NoHostAvailable

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import SHORT_LIVED, Cassandra
from afterglow_e2e.certificates import Authority, client_encryption, replace
from afterglow_e2e.clients import Client, build, rust
from afterglow_e2e.drivers import REPLICATION, await_caching, connect
from afterglow_e2e.process import Failure, free_port, poll
from afterglow_e2e.relay import Relay
from afterglow_e2e.tlsrelay import TlsRelay

ADDRESS = "127.0.0.251"
MANY = 40
LANGUAGES = ("java", "go", "node", "cpp", "rust")
# What the drivers say of it.
UNTRUSTED = {
    "ca": "PKIX path|unknown ?authority|verify the first certificate|UnknownIssuer",
    "no certificate": "certificate.?required",
    "host name": "matching IP|not 127.0.0.2|altnames|NotValidForName|name does not match",
}
Elsewhere = namedtuple("Elsewhere", "address port")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ca(folder):
    return Authority(folder, "ca")


@pytest.fixture(scope="module")
def other_ca(folder):
    return Authority(folder, "other-ca")


@pytest.fixture(scope="module")
def identity(ca):
    """The certificate of whoever is a client."""
    return ca.sign("client", "DNS:client")


@pytest.fixture(scope="module")
def database(ca, identity):
    pair = ca.sign("node", f"IP:{ADDRESS}")
    encryption = client_encryption(ca.keystore(*pair), ca.truststore())
    with Cassandra(
        address=ADDRESS,
        settings={"client_encryption_options": encryption},
        tls=ca.context(identity),
        options=SHORT_LIVED,
    ) as node:
        yield node


def towards_database(ca, identity):
    cert, key = identity
    return (
        *("--backend-tls-ca", ca.pem),
        *("--backend-tls-cert", cert, "--backend-tls-key", key),
    )


@pytest.fixture(scope="module")
def own_pair(ca):
    """Afterglow's certificate, which a test may replace."""
    return ca.sign("afterglow", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def secured(database, ca, identity, own_pair):
    cert, key = own_pair
    clients = ("--cql-tls-cert", cert, "--cql-tls-key", key, "--cql-tls-client-ca", ca.pem)
    extra = (*clients, *towards_database(ca, identity))
    with Afterglow(database.contact, extra=extra, tls=ca.context(identity)) as instance:
        await_caching(instance)
        with connect(instance) as session:
            session.execute(f"CREATE KEYSPACE tls WITH replication = {REPLICATION}")
            session.execute("CREATE TABLE tls.t (k int PRIMARY KEY, v text)")
        yield instance


@pytest.mark.parametrize("version", [4, 5])
def test_reads_are_cached_and_writes_seen(secured, database, version):
    """Large values go in many records."""
    with connect(secured, version=version) as session, connect(database) as direct:
        insert = session.prepare("INSERT INTO tls.t (k, v) VALUES (?, ?)")
        select = session.prepare("SELECT v FROM tls.t WHERE k = ?")
        for size in (1, 20_000):
            for turn in "ab":
                values = {k: turn * (size + k) for k in range(MANY)}
                for pending in [session.execute_async(insert, pair) for pair in values.items()]:
                    pending.result()
                for _ in range(2):
                    before = secured.metrics().hits()
                    for k, value in values.items():
                        assert session.execute(select, (k,)).one() == (value,)
                assert secured.metrics().hits() - before == MANY
                assert direct.execute("SELECT v FROM tls.t WHERE k = 7").one() == (values[7],)
        with pytest.raises(InvalidRequest):
            session.execute("SELECT nothing FROM tls.t")


def test_all_connections_to_the_database_are_of_tls(secured, database):
    """The database takes no others, and it has those of the pool, the control and the lease."""
    with connect(database) as direct:
        rows = list(direct.execute("SELECT * FROM system_views.clients"))
    ours = [row for row in rows if row.driver_name == "Afterglow"]
    assert len(ours) >= 3, rows
    assert all(row.ssl_enabled for row in ours), ours


def refused(instance, context):
    with pytest.raises(NoHostAvailable), connect(instance, ssl_context=context):
        pass


def test_who_has_no_tls_or_no_certificate_is_turned_away(secured, ca, other_ca):
    reasons = ("plain", "certificate")

    def counted():
        seen = secured.metrics().by("afterglow_tls_handshake_failures_total", "reason")
        return [seen[reason] for reason in reasons]

    before = counted()
    refused(secured, None)
    poll("plain clients to be counted", lambda: counted()[0] > before[0], 60)
    assert "turn TLS on in the client" in secured.log_text()
    stranger = other_ca.sign("stranger", "DNS:client")
    for shown in (None, stranger):
        # A line a second is logged.
        before = counted()
        refused(secured, ca.context(shown))
        poll("the client to be counted", lambda seen=before: counted()[1] > seen[1], 60)
    with connect(secured) as session:
        assert session.execute("SELECT cluster_name FROM system.local").one()


@pytest.fixture(scope="module")
def rows(secured):
    """The keyspace with the table that the clients of other languages use."""
    with connect(secured) as session:
        session.execute("CREATE TABLE tls.rows (k int, c int, v text, PRIMARY KEY (k, c))")
    return "tls"


def told(language, ca, identity):
    """The command line of a language's client that trusts a CA and perhaps has a certificate."""
    command = rust() if language == "rust" else build(language)
    if command is None:
        pytest.skip(f"the tools for {language} are missing: make tools says which")
    files = {"CQL_TLS_CA": ca.pem}
    if identity:
        files["CQL_TLS_CERT"], files["CQL_TLS_KEY"] = identity
    return ["env", *(f"{name}={path}" for name, path in files.items()), *command]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_driver_of_another_language(secured, rows, ca, identity, language, tmp_path):
    """As clients without TLS do in test_drivers.py."""
    key = 2 * LANGUAGES.index(language)
    with Client(told(language, ca, identity), secured, rows, tmp_path / "log") as client:
        for value in ("one", "two", "Grüße, 世界"):
            client("write", key, 1, value)
            assert client("read", key, 1) == [["k", "c", "v"], [key, 1, value]]
            before = secured.metrics().hits()
            for _ in range(3):
                assert client("read", key, 1)[1] == [key, 1, value]
            assert secured.metrics().hits() - before == 3
        client("batch", key + 1, 49)
        for c, value in ((7, "b7"), (49, "text")):
            assert client("read", key + 1, c)[1] == [key + 1, c, value]
        assert client("page", key + 1, 7) == [50, 8]
        assert client("page", key + 1, 5000) == [50, 1]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("wrong", ["ca", "no certificate", "host name"])
def test_a_driver_of_another_language_and_what_it_must_not_trust(
    secured, rows, ca, other_ca, identity, language, wrong, tmp_path
):
    trusted = other_ca if wrong == "ca" else ca
    command = told(language, trusted, identity if wrong != "no certificate" else None)
    with ExitStack() as stack:
        server = secured
        if wrong == "host name":
            server = Elsewhere("127.0.0.2", free_port())
            relay = Relay(*server, (secured.address, secured.port))
            stack.callback(relay.close)
        with pytest.raises(Failure, match="ended"), Client(command, server, rows, tmp_path / "log"):
            pass
    assert re.search(UNTRUSTED[wrong], (tmp_path / "log").read_text(), re.IGNORECASE)


def serial(secured, ca, identity):
    """Which certificate a new connection is shown."""
    context = ca.context(identity)
    with (
        socket.create_connection((secured.address, secured.port), 10) as plain,
        context.wrap_socket(plain) as stream,
    ):
        return stream.getpeercert()["serialNumber"]


def connections(session):
    """Those that the driver has for requests."""
    holders = session.cluster.get_connection_holders()
    return {one for holder in holders for one in holder.get_connections()}


def test_sighup_takes_new_certificates_and_keeps_connections(secured, ca, identity, own_pair):
    said = "SIGHUP: the certificates of the CQL front end were read again"
    first = serial(secured, ca, identity)
    with connect(secured) as session:
        session.execute("INSERT INTO tls.t (k, v) VALUES (1, 'before')")
        opened = connections(session)
        replace(own_pair, ca.sign("renewed", "IP:127.0.0.1"))
        os.kill(secured.pid, signal.SIGHUP)
        poll("the certificates to be read", lambda: said in secured.log_text(), 60)
        second = serial(secured, ca, identity)
        assert second != first
        for _ in range(5):
            assert session.execute("SELECT v FROM tls.t WHERE k = 1").one() == ("before",)
        assert connections(session) == opened
    own_pair[0].write_text("no certificate")
    os.kill(secured.pid, signal.SIGHUP)
    wrong = "the certificates of the CQL front end are unchanged"
    poll("the wrong file to be refused", lambda: wrong in secured.log_text(), 60)
    assert serial(secured, ca, identity) == second


@pytest.fixture
def overseen(database, ca, identity):
    """A relay before the database that asks for certificates, at the address of the node: nobody
    goes round it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca.pem)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*ca.sign("relay", f"IP:{ADDRESS}"))
    target = database.address, database.port
    with TlsRelay(ADDRESS, free_port(ADDRESS), target, context, ca.context(identity)) as relay:
        yield relay


def reconnected(relay, instance, session):
    """The names that Afterglow shows once every connection to the database is cut."""
    known = len(relay.names)
    relay.cut()

    def answered():
        try:
            return session.execute("SELECT * FROM system_views.clients").one()
        except (NoHostAvailable, DriverException):
            return False

    again = lambda: len(relay.names) > known and answered()  # noqa: E731
    poll("Afterglow to connect again", again, 60, check=instance.child.check)
    return set(relay.names[known:])


def test_sighup_shows_the_database_another_certificate(overseen, ca):
    pair = ca.sign("first", "DNS:client")
    contact, extra = f"{overseen.address}:{overseen.port}", towards_database(ca, pair)
    with Afterglow(contact, extra=extra) as instance, connect(instance) as session:

        def sighup(words):
            said = f"the certificates of connections to the database {words}"
            known = instance.log_text().count(said)
            os.kill(instance.pid, signal.SIGHUP)
            told = lambda: instance.log_text().count(said) > known  # noqa: E731
            poll(said, told, 60, check=instance.child.check)

        session.execute("SELECT * FROM system_views.clients")
        assert set(overseen.names) == {"first"}
        open_ones = len(overseen.pairs)
        assert open_ones
        replace(pair, ca.sign("second", "DNS:client"))
        sighup("were read again")
        # What is open stays.
        session.execute("SELECT * FROM system_views.clients")
        assert overseen.ended == 0 and len(overseen.pairs) >= open_ones
        assert reconnected(overseen, instance, session) == {"second"}
        # A certificate of another key, and none at all.
        pair[0].write_bytes(ca.sign("third", "DNS:client")[0].read_bytes())
        sighup("are unchanged")
        assert reconnected(overseen, instance, session) == {"second"}
        pair[0].write_text("no certificate")
        sighup("are unchanged")
        assert reconnected(overseen, instance, session) == {"second"}


def says(backend, extra, words):
    """An instance that cannot reach its database, and says why."""
    with Afterglow(backend, extra=extra).launch_only() as instance:
        poll(words, lambda: words in instance.log_text(), 30, check=instance.child.check)


@pytest.mark.parametrize("wrong", ["ca", "no certificate", "stranger", "no tls"])
def test_a_database_that_cannot_be_trusted_or_trusts_not_is_named(
    database, ca, other_ca, identity, wrong, request
):
    match wrong:
        case "ca":
            extra = towards_database(other_ca, identity)
            says(database.contact, extra, "name the CA that has signed it")
        case "no certificate":
            extra = ("--backend-tls-ca", ca.pem)
            says(database.contact, extra, "set --backend-tls-cert and --backend-tls-key")
        case "stranger":
            extra = towards_database(ca, other_ca.sign("stranger", "DNS:client"))
            says(database.contact, extra, "set --backend-tls-cert and --backend-tls-key")
        case "no tls":
            plain = request.getfixturevalue("cassandra")
            extra = ("--backend-tls-ca", ca.pem)
            says(plain.contact, extra, "the database speaks no TLS here")


def test_host_names_are_verified_unless_told_otherwise(database, ca, identity):
    port = free_port()
    relay = Relay("127.0.0.1", port, (database.address, database.port))
    try:
        extra = towards_database(ca, identity)
        says(f"127.0.0.1:{port}", extra, "certificate does not name 127.0.0.1")
        extra = (*extra, "--backend-tls-verify-host-name=false")
        with Afterglow(f"127.0.0.1:{port}", extra=extra) as instance, connect(instance) as session:
            assert session.execute("SELECT cluster_name FROM system.local").one()
    finally:
        relay.close()


def test_a_tls_client_trusts_nobody_else(secured, other_ca, identity):
    with pytest.raises(ssl.SSLError):
        serial(secured, other_ca, identity)
