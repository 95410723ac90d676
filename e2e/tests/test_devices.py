"""Several flash devices, of which one is missing or empty when the server starts."""

import pytest

from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow, content, fill, on_flash
from afterglow_e2e.process import poll, run

COUNT, SIZE = 3_000, 4_000


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
