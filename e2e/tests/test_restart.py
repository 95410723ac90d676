"""Warm and never stale after kill -9; warm after a clean stop; clear words when it cannot start."""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow, describe
from afterglow_e2e.drivers import connect
from afterglow_e2e.history import History
from afterglow_e2e.memcache import MemcacheAfterglow, content, fill, on_flash
from afterglow_e2e.process import Failure, free_port, poll
from afterglow_e2e.relay import Relay

ROWS = 500


@pytest.fixture
def own(cassandra):
    """An instance for one test, which may do with it what it likes."""
    with Afterglow(cassandra.contact) as instance:
        await_caching(instance)
        yield instance


@pytest.fixture
def filled(direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text, pad blob)")
    insert = direct.prepare(f"INSERT INTO {table} (k, v, pad) VALUES (?, ?, ?)")
    for k in range(ROWS):
        direct.execute(insert, (k, f"v{k}", bytes([k % 256]) * 2000))
    return table


def read_all(instance, table, expected):
    """Read every row through the instance and check it; how many of the reads were hits."""
    before = instance.metrics().hits()
    with connect(instance) as session:
        select = session.prepare(f"SELECT v, pad FROM {table} WHERE k = ?")
        for k in range(ROWS):
            assert session.execute(select, (k,)).one() == (expected(k), bytes([k % 256]) * 2000)
    return instance.metrics().hits() - before


def first_hit(instance, table):
    """The lease comes a moment after the start; nothing may be served before."""
    with connect(instance) as session:

        def hit():
            before = instance.metrics().hits()
            session.execute(f"SELECT v FROM {table} WHERE k = 0")
            return instance.metrics().hits() > before

        poll("the first hit after the restart", hit, 30, check=instance.child.check)


def await_on_flash(instance):
    """Until the background copy has nothing left to do."""
    saved = lambda: instance.metrics().value("afterglow_engine_unsaved_bytes") == 0  # noqa: E731
    poll("everything in DRAM to be copied to flash", saved, 30, check=instance.child.check)


def test_warm_after_kill_9(own, filled):
    read_all(own, filled, lambda k: f"v{k}")
    assert read_all(own, filled, lambda k: f"v{k}") == ROWS
    await_on_flash(own)
    own.kill()
    own.start()
    first_hit(own, filled)
    assert read_all(own, filled, lambda k: f"v{k}") >= 0.99 * ROWS, describe(own.metrics())


def test_writes_before_a_kill_9_are_seen_after_it(own, filled):
    read_all(own, filled, lambda k: f"v{k}")
    await_on_flash(own)
    written = {}
    with connect(own) as session:
        update = session.prepare(f"UPDATE {filled} SET v = ? WHERE k = ?")
        for k in range(0, ROWS, 3):
            session.execute(update, (f"new{k}", k))
            written[k] = f"new{k}"
    own.kill()  # with the last write acknowledged a moment ago
    own.start()
    first_hit(own, filled)
    hits = read_all(own, filled, lambda k: written.get(k, f"v{k}"))
    assert hits >= ROWS - len(written) - 0.01 * ROWS, describe(own.metrics())


def test_warm_after_a_clean_stop(own, filled):
    read_all(own, filled, lambda k: f"v{k}")
    assert own.terminate() == 0
    own.start()
    first_hit(own, filled)
    assert read_all(own, filled, lambda k: f"v{k}") >= 0.99 * ROWS, describe(own.metrics())


def test_cold_after_being_away_too_long(cassandra, filled):
    with Afterglow(cassandra.contact, extra=("--restart-grace", "1s")) as instance:
        await_caching(instance)
        read_all(instance, filled, lambda k: f"v{k}")
        assert instance.terminate() == 0
        with connect(cassandra) as session:  # the promise of `exclusive` is broken while it is away
            session.execute(f"UPDATE {filled} SET v = 'past' WHERE k = 0")
        away = time.monotonic()
        poll("the grace to be over", lambda: time.monotonic() - away > 2.5, 5)
        instance.start()
        await_caching(instance)
        with connect(instance) as session:
            assert session.execute(f"SELECT v FROM {filled} WHERE k = 0").one() == ("past",)


def test_a_planned_restart_keeps_the_cache_and_a_crash_does_not(cassandra, filled):
    grace = ("--restart-grace", "1s", "--planned-restart-grace", "1h")
    with Afterglow(cassandra.contact, extra=grace) as instance:
        await_caching(instance)
        for clean in (True, False):
            read_all(instance, filled, lambda k: f"v{k}")
            await_on_flash(instance)
            if clean:
                assert instance.terminate() == 0
            else:
                instance.kill()
            away = time.monotonic()
            poll("restart-grace to be over", lambda away=away: time.monotonic() - away > 2.5, 5)
            instance.start()
            await_caching(instance)
            hits = read_all(instance, filled, lambda k: f"v{k}")
            kept = hits >= 0.99 * ROWS if clean else hits == 0
            assert kept, f"clean: {clean}, {hits} hits"


def test_another_instance_in_between_makes_it_cold(cassandra, filled):
    with Afterglow(cassandra.contact) as first:
        await_caching(first)
        read_all(first, filled, lambda k: f"v{k}")
        assert first.terminate() == 0
        with Afterglow(cassandra.contact) as second:
            await_caching(second)
            with connect(second) as session:
                session.execute(f"UPDATE {filled} SET v = 'by another' WHERE k = 0")
        first.start()
        await_caching(first)
        with connect(first) as session:
            assert session.execute(f"SELECT v FROM {filled} WHERE k = 0").one() == ("by another",)


def test_an_instance_without_the_lease_passes_through(own, cassandra, filled):
    with Afterglow(cassandra.contact) as second, connect(own) as ours, connect(second) as theirs:
        read = f"SELECT v FROM {filled} WHERE k = 1"
        for number in range(10):
            ours.execute(f"UPDATE {filled} SET v = 'n{number}' WHERE k = 1")
            for _ in range(2):
                assert theirs.execute(read).one() == (f"n{number}",)
        assert second.metrics().hits() == 0


def test_history_has_no_stale_read_across_kill_9(own, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    chance = random.Random(20260801)
    history = History(own, table)
    with history:
        for _ in range(2):
            goal = history.reads + chance.randrange(500, 2500)
            poll("readers to get on", lambda goal=goal: history.reads >= goal or history.stale, 60)
            own.kill()
            own.start()
        goal = history.reads + 1000
        poll("readers to get on", lambda: history.reads >= goal or history.stale, 60)
    history.verify_all()
    assert not history.stale, history.stale[:10]
    assert history.writes > 500 and own.metrics().hits() > 100, (
        history.reads,
        history.writes,
        history.failures,
    )


def test_sigterm_ends_cleanly_while_clients_are_connected(own, filled):
    with connect(own) as session:
        session.execute(f"SELECT v FROM {filled} WHERE k = 1")
        own.child.signal(signal.SIGTERM)
        assert own.child.process.wait(30) == 0
    assert "panic" not in own.log_text()


def refused(instance):
    """Start something that cannot start; the words it says."""
    with pytest.raises(Failure):
        instance.start(30)
    assert instance.child.process.returncode not in (0, None, -signal.SIGKILL), (
        "it should end by itself"
    )
    text = instance.log_text()
    assert "panicked" not in text, text
    return text


def test_a_second_process_on_the_same_folder(own, cassandra, filled):
    second = Afterglow(cassandra.contact, folder=own.folder / "second")
    second.data = own.data
    text = refused(second)
    assert str(own.data) in text and str(own.pid) in text, text
    with connect(own) as session:  # the first does not mind
        assert session.execute(f"SELECT v FROM {filled} WHERE k = 3").one() == ("v3",)


def test_a_folder_that_cannot_be_written(cassandra, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    instance = Afterglow(cassandra.contact, folder=tmp_path / "own")
    instance.data = blocked / "data"  # also root may not
    assert str(instance.data) in refused(instance)


def mounted(*mount):
    """A command prefix that runs a program with a file system of its own mounted, or None where
    that is not allowed.
    """
    script = f'mount {" ".join(map(str, mount))} && exec "$0" "$@"'
    as_root = ["unshare", "--mount", "sh", "-ec", script]
    as_user = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]
    for prefix in (as_root, as_user) if os.geteuid() == 0 else (as_user,):
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        ):
            return prefix
    return None


@pytest.mark.parametrize(
    ("options", "word"),
    [(("-o", "size=64m"), "space"), (("-o", "size=1g,ro"), "ead-only")],
    ids=["full", "read-only"],
)
def test_a_file_system_that_is_full_or_read_only(cassandra, tmp_path, options, word):
    data = tmp_path / "mount"
    data.mkdir()
    wrapper = mounted("-t", "tmpfs", *options, "none", data)
    if wrapper is None:
        pytest.skip("this machine does not let us mount a file system")
    instance = Afterglow(cassandra.contact, folder=tmp_path / "own", wrapper=wrapper)
    instance.data = data / "data"
    text = refused(instance)
    assert word in text and str(instance.data) in text, text


def test_on_an_overlay_the_journal_is_not_mapped_and_all_is_warm_after_kill_9(tmp_path):
    """As in a container whose data is on no volume."""
    layers = {name: tmp_path / name for name in ("lowerdir", "upperdir", "workdir")}
    data = tmp_path / "merged"
    for folder in (*layers.values(), data):
        folder.mkdir()
    options = ",".join(f"{name}={folder}" for name, folder in layers.items())
    wrapper = mounted("-t", "overlay", "-o", options, "none", data)
    if wrapper is None:
        pytest.skip("this machine does not let us mount an overlay")
    instance = MemcacheAfterglow(folder=tmp_path / "own", wrapper=wrapper)
    instance.data = data / "data"
    with instance:
        fill(instance.connect(), 100, 500)
        on_flash(instance)
        instance.kill()
        instance.start()
        loaded = lambda: instance.metrics().value("afterglow_engine_loading") == 0  # noqa: E731
        poll("the index to be loaded", loaded, 60)
        raw = instance.connect()
        assert [raw.get(b"o%d" % i) for i in range(100)] == [content(i, 500) for i in range(100)]
        said = "the journal is written with pwrite and not mapped"
        assert instance.log_text().count(said) == 2, instance.log_text()
    assert (layers["upperdir"] / "data" / "journal").exists()


def test_a_flash_file_of_another_format(cassandra, tmp_path):
    foreign = tmp_path / "precious"
    foreign.write_bytes(b"somebody else's data\n" * 10_000)
    instance = Afterglow(
        cassandra.contact, folder=tmp_path / "own", extra=("--flash", f"{foreign}:256MiB")
    )
    text = refused(instance)
    assert str(foreign) in text, text
    assert foreign.read_bytes() == b"somebody else's data\n" * 10_000


def test_a_schema_change_that_was_told_empties_nothing_when_the_connection_is_lost_later(
    cassandra, direct, table
):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1)")
    relay = Relay("127.0.1.251", free_port("127.0.1.251"), (cassandra.address, cassandra.port))
    with Afterglow("{}:{}".format(*relay.listener.getsockname())) as instance:
        try:
            await_caching(instance)
            with connect(instance) as session:
                for number in range(3):
                    # Not the table that is cached: what a change touches is dropped, and shall be.
                    session.execute(f"CREATE TABLE {table}_{number} (k int PRIMARY KEY)")
                    survives(instance, session, relay, f"SELECT v FROM {table} WHERE k = 1")
            assert "the schema changed while" not in instance.log_text()
        finally:
            relay.close()


def survives(instance, session, relay, select):
    """What is cached is still served when all connections to the database were cut and made
    again.
    """

    def hits():
        before = instance.metrics().hits()
        session.execute(select)
        return instance.metrics().hits() > before

    connects = lambda: instance.log_text().count("connected to the database")  # noqa: E731
    poll("the row to be cached", hits, 30, check=instance.child.check)
    before = connects()
    relay.cut()
    poll(
        "the connection to be made again",
        lambda: connects() > before,
        30,
        every=0.2,
        check=instance.child.check,
    )
    assert hits(), describe(instance.metrics())
