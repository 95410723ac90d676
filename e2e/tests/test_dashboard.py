"""The dashboard in a real browser, in front of a real server with a load that is known."""

import contextlib
import os
from pathlib import Path

import pytest
from cassandra.concurrent import execute_concurrent_with_args

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.browser import Browser, programs
from afterglow_e2e.drivers import await_caching, connect
from afterglow_e2e.fakedatabase import FakeDatabase
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import poll
from afterglow_e2e.ring import Ring

OBJECTS, SIZE = 12000, 4000
PHONE, DESKTOP = (390, 844), (1280, 900)
OWNERS = ("this", "others", "nobody")


@pytest.fixture(scope="module")
def browser():
    if programs() is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    with Browser() as browser:
        yield browser


@pytest.fixture(autouse=True)
def forgotten(browser):
    """The page of the test before asks its server on, which may be gone: not heard here."""
    browser.open("about:blank")
    browser.console()
    browser.hosts()


@pytest.fixture(scope="module")
def loaded():
    """A server with 40 MiB of objects, more than its DRAM tier, each read once; 500 misses."""
    with MemcacheAfterglow(flash="128MiB", memory="48MiB") as instance:
        connection = instance.connect()
        value = b"x" * SIZE
        for first in range(0, OBJECTS, 100):
            keys = [b"user:%d" % n for n in range(first, first + 100)]
            connection.send(b"".join(b"set %s 0 0 %d\r\n%s\r\n" % (k, SIZE, value) for k in keys))
            for _ in keys:
                assert connection.until(b"\r\n") == b"STORED\r\n"
        for n in range(OBJECTS):
            connection.get(b"user:%d" % n)
        for n in range(500):
            assert connection.get(b"none:%d" % n) is None
        yield instance
        connection.close()


def show(browser, instance):
    """Opens the page and waits for its first figures."""
    browser.open(f"http://127.0.0.1:{instance.admin}/")
    ready = "return document.querySelectorAll('.tile').length > 5 && document.querySelector('#segments tbody') !== null"
    poll("the page to show figures", lambda: browser.run(ready), 20)


def cell(browser, scope, row, column=1):
    """A cell of a table, by its row's name."""
    return browser.run(
        "return document.querySelector(`${arguments[0]} [data-row='${arguments[1]}']`)"
        "?.children[arguments[2]].textContent",
        scope,
        row,
        column,
    )


def text(browser, selector):
    return browser.run("return document.querySelector(arguments[0])?.textContent", selector)


def assert_quiet(browser, instance):
    """Nothing on the console, and nobody else was asked."""
    assert browser.console() == []
    assert browser.hosts() == {f"127.0.0.1:{instance.admin}"}


def assert_fits(browser, name):
    """The page fits a dark phone and a light desktop, of which `name` gets pictures if wanted."""
    for size, scheme in ((PHONE, "dark"), (DESKTOP, "light")):
        browser.screen(*size, scheme=scheme, mobile=size == PHONE)
        poll("the page to fit", lambda width=size[0]: browser.run(SCROLLS) <= width, 60)
        if folder := os.environ.get("AFTERGLOW_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"{name}-{size[0]}-{scheme}.png")


def test_the_page_shows_what_the_load_did(browser, loaded):
    show(browser, loaded)
    table = "[data-front-end=memcache]"
    assert cell(browser, table, "get") == f"{OBJECTS + 500:,}"
    assert cell(browser, table, "store") == f"{OBJECTS:,}"
    assert cell(browser, table, "connections", 2) == "1 open"
    read = loaded.metrics()
    assert read.total("afterglow_hits_total", tier="flash") > 1000, "flash was read"
    hits = read.total("afterglow_hits_total", frontend="memcache")
    absent = read.total("afterglow_misses_total", frontend="memcache", reason="absent")
    # A busy device may make a few more misses of hits, each with another reason.
    assert 500 <= absent <= OBJECTS + 500 - hits
    assert cell(browser, "#misses", "absent") == f"{absent:,.0f}"

    browser.run("document.querySelector('#range input[value=\"0\"]').click()")
    ratio = read.total("afterglow_hits_total", frontend="memcache") / (OBJECTS + 500)
    assert f"{ratio * 100:.1f} %" in text(browser, "[data-tile='Hit ratio']")
    dram = read.total("afterglow_hits_total", tier="dram") + read.total(
        "afterglow_hits_total", tier="buffer"
    )
    assert f"DRAM {dram / (OBJECTS + 500) * 100:.1f} %" in text(browser, "[data-tile='Hit ratio']")

    # Every segment is on the map, in its state.
    states = ["free", "open", "sealing", "sealed", "reclaiming", "retired", "checkpoint"]
    counts = [int(cell(browser, "#segments", state).replace(",", "")) for state in states]
    assert sum(counts) == read.value("afterglow_engine_flash_segments")
    assert counts[3] > 0 and counts[5] == 0
    assert "alive" in text(browser, "#segments-summary")
    assert "µs" in text(browser, "[data-tile='Read latency p99']")
    assert "MiB" in text(browser, "[data-tile='DRAM']")
    assert "write amplification 1." in text(browser, "[data-tile='Flash writes']")
    assert_quiet(browser, loaded)


def test_names_of_keys_are_not_on_the_page_unless_the_operator_says_so(browser, loaded):
    show(browser, loaded)
    hot = "return document.querySelector('[data-hot=Prefixes] tbody')?.textContent"
    poll("the hottest prefixes", lambda: browser.run(hot), 20)
    assert "hidden 1" in browser.run(hot)
    assert "user:" not in browser.run("return document.body.textContent")
    assert "--show-keys" in text(browser, "#hotkeys")


def test_a_key_cannot_put_anything_into_the_page(browser):
    tag = "<img/src=x/onerror=document.title='taken'>"
    with MemcacheAfterglow(extra=["--show-keys"]) as instance:
        with contextlib.closing(instance.connect()) as connection:
            for key in (f"{tag}:1", "a\u202eb:2"):
                connection.send(b"get %s\r\n" % key.encode() * 4000)
                for _ in range(4000):
                    connection.until(b"END\r\n")
        show(browser, instance)
        hot = "[data-hot=Keys] tbody"
        poll("the hottest keys", lambda: tag in (text(browser, hot) or ""), 20)
        assert "a\\u{202e}b" in text(browser, hot)
        assert browser.run("return document.images.length") == 1, "the page's own"
        assert browser.run("return document.title") == "Afterglow"
        assert_quiet(browser, instance)


def test_charts_follow_the_load_and_answer_to_keys(browser, loaded):
    show(browser, loaded)
    with contextlib.closing(loaded.connect()) as connection:

        def drawn():
            connection.get(b"user:1")
            return browser.run(
                "return document.querySelectorAll('#chart-reads polygon').length > 0 &&"
                " document.querySelectorAll('#chart-requests polyline').length > 0"
            )

        poll("the charts to show the load", drawn, 30, every=0.2)
    label = "return document.querySelector('#chart-reads svg').getAttribute('aria-label')"
    assert "Reads by where the answer came from, now: DRAM" in browser.run(label)
    browser.run("document.querySelector('#chart-reads svg').focus()")
    browser.keys("End", "ArrowLeft")
    assert "DRAM" in text(browser, "#chart-reads .moment")
    browser.keys("Escape")
    assert text(browser, "#chart-reads .moment") == ""
    browser.run("document.querySelector('#segments canvas').focus()")
    browser.keys("Home")
    assert text(browser, "#segments .moment").startswith("Segment 0: ")
    assert_quiet(browser, loaded)


# Draws a chart of its own and gives its texts: without points, with points of nothing, with two.
CHART = """
return import('/dashboard/chart.js').then(({ Chart }) => {
  const figure = document.createElement('figure');
  figure.id = 'ours';
  document.body.append(figure);
  const options = { title: 'Ours', format: String, empty: 'nothing came', logarithmic: true };
  const chart = new Chart(figure, options);
  const texts = (points) => {
    chart.show([{ name: 'one', color: 'dram' }], points, 0, 10);
    return [...figure.querySelectorAll('svg text:not([text-anchor=start])')]
      .filter((text) => !text.textContent.includes(':')).map((text) => text.textContent);
  };
  return [texts([]), texts([{ time: 5, values: [null] }]),
    texts([{ time: 5, values: [5] }, { time: 6, values: [3000] }])];
});
"""


def test_a_chart_says_why_it_is_empty_and_names_whole_powers(browser, loaded):
    show(browser, loaded)
    waits, empty, drawn = browser.run(CHART)
    assert "waiting for the second sample" in waits and "nothing came" not in waits
    assert "nothing came" in empty
    assert drawn == ["1", "10", "100", "1000", "10000"]
    assert_quiet(browser, loaded)


def test_the_database_and_the_lease_have_a_card_and_their_absence_is_told(browser, tmp_path):
    with FakeDatabase(tmp_path) as database, Afterglow(database.address) as instance:
        show(browser, instance)
        lease = "[data-tile='Lease']"
        poll("the lease", lambda: "held" in (text(browser, lease) or ""), 30)
        assert "connections to the database" in text(browser, lease)
        facts = "#database-state [data-fact='{}']"
        assert not browser.run("return document.querySelector('#database-card').hidden")
        assert " ready" in text(browser, facts.format("Connections"))
        assert "acquired" in text(browser, facts.format("Lease events"))
        assert browser.run(CONTRAST) == []
        for width, _ in (PHONE, DESKTOP):
            browser.screen(width, 900, mobile=width == PHONE[0])
            poll("the page to fit", lambda width=width: browser.run(SCROLLS) <= width, 60)
        database.kill()
        poll("its absence", lambda: "database is away" in text(browser, lease), 30)
        assert browser.run(f'return document.querySelector("{lease} .warn") !== null')
        ready = facts.format("Connections")
        poll("no connection", lambda: text(browser, ready).startswith("0 ready"), 30)
        poll("the status", lambda: "degraded" in text(browser, "#status"), 30)
        assert_quiet(browser, instance)


@pytest.mark.timeout(180)
def test_the_ring_has_a_card_with_its_members_and_tells_who_is_away(browser, tmp_path):
    with FakeDatabase(tmp_path) as database, Ring(database.address, 2) as ring:
        one, two = ring.settle().members
        for member in (one, two):
            shown = member.metrics()
            owned = {who: shown.total("afterglow_ring_shards", owner=who) for who in OWNERS}
            assert owned["this"] > 0 < owned["others"] and sum(owned.values()) == 4096, owned
            assert shown.total("afterglow_ring_lease_seconds") > 0
        show(browser, one)
        card, tile = "#ring-card", "[data-tile='Ring']"
        poll("both members", lambda: "2 members" in (text(browser, tile) or ""), 30)
        assert not browser.run(f"return document.querySelector('{card}').hidden")
        rows = f"return document.querySelectorAll('{card} tbody tr').length"
        assert browser.run(rows) == 2
        assert "(this)" in text(browser, f"{card} tbody")
        tiers = "#chart-reads"
        poll("the ring's tier", lambda: "other instances" in text(browser, tiers), 20)
        assert browser.run(CONTRAST) == []
        assert_fits(browser, "ring")
        two.kill()
        poll("its absence", lambda: "no link to 1" in text(browser, tile), 30)
        poll(
            "its shards to come here", lambda: "4,096 of 4,096" in text(browser, "#ring-state"), 60
        )
        assert_quiet(browser, one)


def test_before_a_real_database_it_shows_lease_tables_and_reads(browser, cassandra, keyspace):
    table = f"{keyspace}.hot"
    with Afterglow(cassandra.contact) as instance:
        await_caching(instance)
        with connect(instance) as session:
            session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
            insert = session.prepare(f"INSERT INTO {table} (id, name) VALUES (?, ?)")
            for n in range(20):
                session.execute(insert, (n, f"name{n}"))
            select = session.prepare(f"SELECT * FROM {table} WHERE id = ?")
            execute_concurrent_with_args(session, select, [(n % 20,) for n in range(4000)])
        show(browser, instance)
        browser.run("document.querySelector('#range input[value=\"0\"]').click()")
        assert "held" in text(browser, "[data-tile='Lease']")
        executed = int(cell(browser, "[data-front-end=cql]", "execute").replace(",", ""))
        read = instance.metrics()
        assert executed >= 4020 and read.hits() > 2000
        ratio = read.hits() / (read.hits() + read.misses())
        assert f"{ratio * 100:.1f} %" in text(browser, "[data-tile='Hit ratio']")
        hot = "[data-hot=Tables] tbody"
        poll("the hottest table", lambda: table in (text(browser, hot) or ""), 20)
        assert "name1" not in browser.run("return document.body.textContent")
        metrics = instance.get("/metrics")[1]
        assert f'keyspace="{keyspace}",table="hot",path="dram"' in metrics
        assert "name1" not in metrics, "it names tables and no keys"
        assert browser.run(CONTRAST) == []
        assert_fits(browser, "cassandra")
        assert_quiet(browser, instance)


SCROLLS = "return document.documentElement.scrollWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_fits_its_screen_and_its_reader(browser, loaded, size, scheme):
    browser.screen(*size, scheme=scheme, mobile=size == PHONE)
    show(browser, loaded)
    root = "document.documentElement"
    assert browser.run(f"return {root}.scrollWidth") <= size[0], "it scrolls sideways"
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    bright = sum(int(n) for n in background.removeprefix("rgb(").rstrip(")").split(",")) / 3
    assert bright > 200 if scheme == "light" else bright < 60
    assert browser.run(CONTRAST) == []
    if folder := os.environ.get("AFTERGLOW_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"{'x'.join(map(str, size))}-{scheme}.png")
    assert_quiet(browser, loaded)


# Texts whose colour is too near that of what is behind them (WCAG 2.2, 1.4.3).
CONTRAST = """
const parse = (c) => c.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0.5) return c;
  }
  return [255, 255, 255];
};
const poor = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.closest('noscript')) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(parse(e.closest('svg') ? style.fill : style.color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${e.tagName} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(1)}`);
}
return poor;
"""


def test_everything_can_be_reached_and_is_named(browser, loaded):
    show(browser, loaded)
    unnamed = browser.run(
        "return [...document.querySelectorAll('a, button, input, select, canvas, svg[tabindex]')]"
        ".filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim()"
        " || e.getAttribute('aria-labelledby'))).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    reached = []
    browser.run("document.activeElement.blur()")
    for _ in range(20):
        browser.keys("Tab")
        reached.append(browser.run("return document.activeElement.tagName"))
    assert {"A", "INPUT", "svg", "SELECT", "CANVAS"} <= set(reached)
    heads = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map((e) => e.tagName)")
    assert heads[0] == "H1" and heads.count("H1") == 1


def test_a_server_that_goes_away_is_shown_as_away_and_comes_back(browser):
    with MemcacheAfterglow() as instance:
        show(browser, instance)
        assert browser.run("return document.querySelector('#away').hidden")
        assert text(browser, "#status") == "ready"
        instance.kill()
        poll("the page to see it", lambda: text(browser, "#status") == "away", 20)
        assert "No answer from 127.0.0.1" in text(browser, "#away")
        assert not browser.run("return document.querySelector('#away').hidden")
        assert text(browser, "[data-tile='Requests']"), "what was known is still there"
        instance.start()
        poll("the page to see it again", lambda: text(browser, "#status") == "ready", 20)
        assert browser.run("return document.querySelector('#away').hidden")
        browser.console()  # That it could not connect is for the console too.


def test_another_site_can_neither_frame_nor_read_it(browser, loaded):
    """A page of a foreign name that points here gets nothing, whatever it asks for."""
    browser.open(f"http://localhost:{loaded.admin}/")
    assert text(browser, "h1").strip() == "Afterglow"
    for path in ["/", "/api/v1/overview"]:
        status = browser.run(
            "return fetch(arguments[0]).then((answer) => answer.status)", f"{path}"
        )
        assert status == 200
    blocked = browser.run(
        "return fetch(arguments[0]).then(() => 'read', () => 'blocked')",
        f"http://127.0.0.1:{loaded.admin}/api/v1/overview",
    )
    assert blocked == "blocked", "localhost and 127.0.0.1 are two sites"
    browser.console()
