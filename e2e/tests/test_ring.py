"""Several instances over one Cassandra as one cache; `make demo-ring` is the long form."""

import signal
import subprocess

import pytest
from histories.watch import CACHED
from ring.load import Load, prepare

from afterglow_e2e.afterglow import Afterglow, binary
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, free_port, poll
from afterglow_e2e.rawcql import RawClient
from afterglow_e2e.ring import Ring


@pytest.fixture(scope="module")
def table(cassandra, direct, keyspace):
    return prepare(direct, keyspace)


def put(session, table, row, number):
    session.execute(f"INSERT INTO {table} (k, c, v) VALUES ({row}, 0, '{number}')")


def value(session, table, row):
    return int(session.execute(f"SELECT v FROM {table} WHERE k = {row} AND c = 0").one().v)


@pytest.fixture
def pair(cassandra, table, no_ring):
    with Ring(cassandra.contact, 2) as ring:
        yield ring.settle()


def test_each_instance_answers_for_rows_that_the_other_has_cached(pair, table):
    owner, other = pair.members
    with connect(owner) as first, connect(other) as second:
        for key in range(20):
            put(first, table, key, 1)
            for session in (first, second, first, second):
                assert value(session, table, key) == 1
            # The other's write is seen at once where the row is cached.
            put(second, table, key, 2)
            for session in (first, second):
                assert value(session, table, key) == 2
    assert owner.metrics().hits(tier="ring") > 0 < other.metrics().hits(tier="ring")
    status = pair.command(other, "status")
    assert "this instance" in status, status
    assert "lease for" in status, status


@pytest.mark.timeout(300)
def test_no_read_fails_or_is_stale_while_the_owner_is_killed_and_comes_back(pair, table):
    owner, other = pair.members
    with Load(pair, table, clients=2, rows=200) as load:
        load.read_all()
        owner.kill()

        def taken():
            members = pair.status(other)["members"]
            return len(members) == 1 and members[0]["shards"] == 4096

        poll("the other to own all rows", taken, 60)
        before = load.total("reads")
        owner.start()
        poll("the owner to be a member again", lambda: len(pair.status(other)["members"]) == 2, 60)
        poll("the clients to read on", lambda: load.total("reads") > before + 200, 60)
    assert not load.crashed()
    assert load.total("stale") == []
    assert load.total("failed_reads") == []
    assert load.total("failed_writes") == []
    assert other.metrics().hits() > 0


@pytest.mark.timeout(300)
def test_the_rows_of_a_member_are_hits_again_after_kill_9_and_a_start(pair, table, direct):
    member, other = pair.members
    rows = range(10_000, 10_300)
    for row in rows:
        put(direct, table, row, 1)

    def read_all():
        """Reads all rows through it: how many it had, and how many nobody had."""
        before = member.metrics(), other.metrics()
        with RawClient(member.address, member.port) as client:
            for row in rows:
                answer = client.query(f"SELECT v FROM {table} WHERE k = {row} AND c = 0")
                assert answer.error is None, answer.error
        after = member.metrics(), other.metrics()
        had = sum(after[0].hits(tier=tier) - before[0].hits(tier=tier) for tier in CACHED)
        misses = sum(b.misses() - a.misses() for a, b in zip(before, after, strict=True))
        return had, misses

    read_all()
    poll("all rows to be cached", lambda: read_all()[1] == 0, 60)
    owned, _ = read_all()
    assert len(rows) / 4 < owned < len(rows) * 3 / 4
    saved = lambda: member.metrics().value("afterglow_engine_unsaved_bytes") == 0  # noqa: E731
    poll("all rows to be on flash", saved, 60)
    member.kill()
    member.start()
    # At once if it was quick enough to keep its shards; else they come back to it.
    pair.settle()

    def kept():
        """Whether it serves what it had. What it has read from the database since is in DRAM."""
        read_all()
        return member.metrics().hits(tier="flash") >= 0.95 * owned

    poll("its rows to be hits again", kept, 60)


@pytest.mark.timeout(300)
def test_an_instance_that_leaves_hands_its_rows_over(pair, table):
    owner, other = pair.members
    with connect(owner) as session:
        put(session, table, 7, 1)
    assert pair.command(owner, "leave") == "it has left the ring\n"
    assert "LEFT THE RING: stop it, or restart it" in pair.command(owner, "status")
    poll("its metrics", lambda: owner.metrics().total("afterglow_ring_left") == 1, 30)
    assert other.metrics().total("afterglow_ring_left") == 0
    poll("the other to be alone", lambda: len(pair.status(other)["members"]) == 1, 30)
    assert pair.shards(other) == 4096
    with connect(owner) as left, connect(other) as session:
        put(left, table, 7, 2)
        assert value(session, table, 7) == 2


def test_one_member_is_asked_to_drop_rows_of_all(pair, table, direct):
    def invalidate(member, *arguments):
        command = [binary(), "invalidate", table, *arguments, "--data-dir", member.data]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr

    with connect(pair.members[0]) as session:

        def read(k):
            return value(session, table, k)

        for k in range(40):
            put(session, table, k, 1)
            read(k)
            put(direct, table, k, 2)
        assert {read(k) for k in range(40)} == {1}, "they are hits"
        invalidate(pair.members[1], "--where", "k = 7")
        assert [k for k in range(40) if read(k) == 2] == [7]
        invalidate(pair.members[0])
        assert {read(k) for k in range(40)} == {2}


def test_a_member_with_another_secret_is_kept_out_and_told(pair, cassandra):
    log = "no link of the ring"

    with Ring(cassandra.contact, 1) as stranger:
        # It finds the others in the database, and may not talk to them.
        (one,) = stranger.members
        poll("it to be told", lambda: "--ring-secret" in one.log_text(), 60)
        assert log in one.log_text()
        statuses = [pair.status(member) for member in pair.members]
        ids = {status["me"] for status in statuses}
        for status in statuses:
            assert {each["id"] for each in status["members"]} == ids, status
        assert len(ids) == 2 and stranger.status(one)["lease_ms"] == 0
        for member in pair.members:
            has_lease = lambda of=member: pair.status(of)["lease_ms"] > 0  # noqa: E731
            poll("each of the two to have a lease", has_lease, 30)


def test_the_secret_is_changed_while_members_run(pair):
    first, other = pair.members
    file = pair.folder / "secret"
    old, new = file.read_text(), "another secret, " * 4 + "\n"

    def everywhere(text):
        file.write_text(text)
        for member in pair.members:
            seen = member.log_text().count("secret was read again")
            member.child.signal(signal.SIGHUP)
            poll(
                "the secret to be read",
                lambda of=member, seen=seen: of.log_text().count("secret was read again") > seen,
                20,
            )

    def linked():
        members = pair.status(other)["members"]
        return len(members) == 2 and all(each["linked"] is not False for each in members)

    for text in (old + new, new + old, new):
        everywhere(text)
        # Its links begin anew, with what the file says now.
        first.kill()
        first.start()
        poll("the two to be linked", linked, 60)
    file.write_text("too short\n")
    other.child.signal(signal.SIGHUP)
    poll("it to be refused", lambda: "secret is unchanged" in other.log_text(), 20)


def test_settings_that_make_no_ring_are_refused_with_what_to_do(tmp_path, cassandra):
    def check(*extra):
        program = [binary(), "serve", "--cql", f"127.0.0.1:{free_port()}", "--backend"]
        program += [cassandra.contact, "--data-dir", tmp_path / "data", *extra]
        done = subprocess.run(program, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2, done.stderr
        return done.stderr

    address = f"127.0.0.1:{free_port()}"
    assert "--ring-secret FILE" in check("--ring-address", address)
    secret = tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o600)
    assert "needs 32" in check("--ring-address", address, "--ring-secret", secret)
    secret.write_text("x" * 40)
    secret.chmod(0o644)
    assert "chmod 600" in check("--ring-address", address, "--ring-secret", secret)
    assert "--ring-address" in check("--ring-secret", secret)


def test_without_a_ring_the_commands_say_so(cassandra):
    with Afterglow(cassandra.contact) as alone:
        done = subprocess.run(
            [binary(), "ring", "status", "--data-dir", alone.data], capture_output=True, text=True
        )
        assert done.returncode == 1 and "in no ring" in done.stderr, done.stderr
    done = subprocess.run(
        [binary(), "ring", "status", "--data-dir", "/nonexistent"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "no server runs" in done.stderr, done.stderr
    with pytest.raises(Failure):
        Ring(cassandra.contact, 1).command(alone, "status")
