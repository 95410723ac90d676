"""Several flash devices, of which one is missing or empty when the server starts, or is pulled out
while it serves.
"""

import random
import threading

import pytest

from afterglow_e2e import loop_device
from afterglow_e2e.afterglow import binary
from afterglow_e2e.loop_device import LoopDevice
from afterglow_e2e.memcache import MemcacheAfterglow, content, fill, on_flash
from afterglow_e2e.process import poll, run

COUNT, SIZE = 3_000, 4_000
# More than memory holds.
MANY = 20_000
NO_LOOP_DEVICES = loop_device.missing()


@pytest.fixture
def server(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    flash = [part for folder in folders for part in ("--flash", f"{folder / 'flash'}:64MiB")]
    instance = MemcacheAfterglow(folder=tmp_path / "own", extra=flash)
    instance.folders = folders
    yield instance.start()
    instance.stop()


def hits(server):
    loaded = lambda: server.metrics().value("afterglow_engine_loading") == 0  # noqa: E731
    poll("the index to be loaded", loaded, 20)
    raw = server.connect()
    values = [raw.get(b"o%d" % i) for i in range(COUNT)]
    raw.close()
    assert all(value in (None, content(i, SIZE)) for i, value in enumerate(values))
    return sum(value is not None for value in values)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_device_that_is_missing_at_a_start_costs_its_share_and_nothing_else(server, gone):
    raw = server.connect()
    fill(raw, COUNT, SIZE)
    raw.close()
    on_flash(server)
    server.stop()
    there = server.folders[gone]
    away = there.rename(there.with_name("away"))
    config = server.folder / "afterglow.toml"
    flash = [f"{folder / 'flash'}:64MiB" for folder in server.folders]
    config.write_text(
        f'memcache = "{server.contact}"\ndata-dir = "{server.data}"\nmemory = "64MiB"\n'
        f'flash = {flash}\nadmin = "off"\n'
    )
    said = run(binary(), "check-config", config)
    assert "would go on without a device" in said and str(there) in said, said
    server.start()
    left = hits(server)
    assert COUNT // 4 < left < COUNT * 3 // 4
    assert f"{there / 'flash'}" in server.log_text()
    # It is no member any more, and still missing.
    server.stop()
    server.start()
    assert hits(server) == left
    # It joins again, empty, and the other keeps what it has.
    server.stop()
    away.rename(there)
    server.start()
    assert hits(server) == left
    assert "joins the cache, empty" in server.log_text()


class Reader(threading.Thread):
    """A client that reads one object after the other, and puts again what is not there."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.raw, self.random = server.connect(), random.Random(seed)
        self.over, self.failed = threading.Event(), None
        self.hits = self.misses = 0

    def run(self):
        try:
            while not self.over.is_set():
                self.read(self.random.randrange(MANY))
        except Exception as error:  # told at the end
            self.failed = error

    def read(self, i):
        key, value = b"o%d" % i, content(i, SIZE)
        found = self.raw.get(key)
        assert found in (None, value), key
        self.hits += found is not None
        self.misses += found is None
        if found is None:
            stored = self.raw.set(key, value)
            assert stored == b"STORED", stored

    def end(self):
        self.over.set()
        self.join(timeout=30)
        self.raw.close()
        assert not self.is_alive(), "it still waits for an answer"


@pytest.mark.skipif(bool(NO_LOOP_DEVICES), reason=NO_LOOP_DEVICES)
def test_a_device_that_is_pulled_out_under_load_costs_its_share_and_no_client_an_error(tmp_path):
    devices = [LoopDevice(tmp_path, 128 << 20) for _ in range(2)]
    flash = [part for device in devices for part in ("--flash", f"{device.path}:all")]
    server = MemcacheAfterglow(folder=tmp_path / "own", memory="32MiB", extra=flash)
    server.start()
    try:
        raw = server.connect()
        fill(raw, MANY, SIZE)
        on_flash(server)
        readers = [Reader(server, seed) for seed in range(4)]
        total = lambda of: sum(getattr(reader, of) for reader in readers)  # noqa: E731
        for reader in readers:
            reader.start()
        poll("a good many hits", lambda: total("hits") > MANY, 60)
        missed = total("misses")
        assert missed < MANY // 50, "nearly all is there"
        devices[1].pull()
        poll("what was there to be missed", lambda: total("misses") > missed + MANY // 4, 60)
        # What was put again is served from memory and from the other device.
        before, missed = total("hits"), total("misses")
        poll("hits again", lambda: total("hits") > before + 4 * MANY, 60)
        assert total("misses") - missed < MANY * 3 // 2, "it is missed once, or a few times"
        for reader in readers:
            reader.end()
        assert [reader.failed for reader in readers] == [None] * len(readers)
        assert raw.get(b"o0") in (None, content(0, SIZE))
        raw.close()
        # It is known which one.
        assert str(devices[1].path) in server.log_text()
        server.stop()
    finally:
        server.kill()
        for device in devices:
            device.close()
