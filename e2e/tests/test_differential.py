"""A few thousand random statements, answered alike by the database and by Afterglow; `make
differential` has more.
"""

import itertools
import re
import time
from collections import Counter

import pytest
from differential import compare
from differential.compare import ALLOWED
from differential.floors import LEAST, REFRESHED, Again, hits_of
from differential.grammar import Statement
from differential.requests import Options
from differential.runner import Runner

from afterglow_e2e.afterglow import describe
from afterglow_e2e.process import ROOT, poll
from afterglow_e2e.rawcql import QUERY, long_string, parameters

SEED = "short"
STATEMENTS = 2000
NUMBERS = itertools.count()


def test_what_is_allowed_is_written_down():
    text = (ROOT / "docs" / "guide" / "cql.md").read_text()
    section = text.split("## What a client could still tell\n")[1].split("\n## ")[0]
    names = re.findall(r"^- \*\*(.+?)\.\*\*", section, re.MULTILINE)
    assert {name[0].lower() + name[1:] for name in names} == set(ALLOWED)


@pytest.fixture
def runner(cassandra, afterglow):
    made = Runner(cassandra.contact, afterglow.contact, next(NUMBERS), SEED, "5.0", short=True)
    made.create()
    yield made
    made.close()


def test_no_statement_tells_them_apart(runner, afterglow):
    before, runner.again = afterglow.metrics(), Again(lambda: hits_of(afterglow))
    while sum(runner.kinds.values()) < STATEMENTS and not runner.differences:
        runner.step()
    after = afterglow.metrics()
    print(f"{runner.requests} requests; {describe(after, before)}; allowed: {dict(runner.allowed)}")
    print(f"hits of reads asked again: {runner.again}")
    assert not runner.differences, f"seed {SEED}:\n" + "\n".join(runner.differences)
    assert after.hits() - before.hits() > STATEMENTS / 20
    assert after.updated() > before.updated()
    assert after.refreshed() - before.refreshed() >= STATEMENTS // REFRESHED
    assert not list(runner.again.complaints("5.0"))


def test_a_campaign_whose_slices_are_no_hits_is_not_called_good():
    again = Again()
    again.asked, again.found = Counter(dict.fromkeys(LEAST, 200)), Counter(dict.fromkeys(LEAST, 90))
    assert not list(again.complaints("5.0"))
    again.found["slice"] = 1
    (short,) = again.complaints("5.0")
    assert short.startswith("slice")
    again.found["slice"], again.asked["count"] = 90, 3
    (short,) = again.complaints("5.0")
    assert short.startswith("count")
    assert not list(again.complaints("3.11"))


def test_a_lie_is_found(runner):
    """The comparison itself: an answer with one bit changed somewhere in its body."""
    client = runner.through.clients[4]
    honest = client.receive

    def lie():
        answer = honest()
        if len(answer.body) > 20:
            changed = bytearray(answer.body)
            changed[-1] ^= 1
            answer.body = bytes(changed)
        return answer

    client.receive = lie
    for _ in range(200):
        runner.step()
        if runner.differences:
            return
    pytest.fail("no lie was found")


def test_a_row_that_is_served_past_its_end_is_no_matter_of_seconds(runner):
    """Also if it is served for so short that both sides agree when they are asked again later."""
    table = next(table for table in runner.grammar.tables if table.expires)
    asked = Statement("select row", table, read=True)
    asked.text = f"SELECT v, w FROM KSNAME.{table.name} WHERE k = 0 AND c = 1"
    options = Options(runner.random, 4, asked, None)

    def request(side):
        return QUERY, long_string(side.text(asked.text)) + parameters(version=4), 0

    def ask(side):
        return side.clients[4].request(*request(side))

    insert = f"INSERT INTO KSNAME.{table.name} (k, c, w) VALUES (0, 1, 'w') USING TTL 2"
    for side in runner.sides:
        assert side.clients[4].query(side.text(insert)).error is None
    shown = ask(runner.through)
    poll("both rows to end", lambda: not any(map(has_rows, map(ask, runner.sides))), 10)
    assert has_rows(shown)
    client, until = runner.through.clients[4], time.monotonic() + 1
    honest = client.receive

    def late():
        answer = honest()
        return shown if time.monotonic() < until else answer

    client.receive = late
    assert runner.settles(asked, 4, options, request) is None
    poll("the lie to end", lambda: time.monotonic() > until, 10)
    assert runner.settles(asked, 4, options, request) == "seconds of a TTL"


def has_rows(answer):
    return bool(compare.rows(answer.message))


def test_a_difference_of_a_table_is_not_excused_by_its_view(runner):
    """Views follow their tables later; the tables themselves do not."""
    table = next(table for table in runner.grammar.tables if table.view)
    asked = Statement("select row", table, read=True)
    options = Options(runner.random, 4, asked, None)

    def settles(name):
        asked.text = f"SELECT * FROM KSNAME.{name} WHERE k = 0 AND c = 1 AND v = 1 ALLOW FILTERING"
        return runner.settles(asked, 4, options, request)

    def request(side):
        return QUERY, long_string(side.text(asked.text)) + parameters(version=4), 0

    assert settles(f"{table.name}_view") == "views that lag"
    assert settles(table.name) is None


def test_a_row_that_a_projection_hides_is_one_that_the_database_has(runner):
    """What a cache would show of a deleted row is no such row."""
    table = next(table for table in runner.grammar.tables if table.expires)
    asked = Statement("select row, columns", table, read=True)
    asked.text = f"SELECT c FROM KSNAME.{table.name} WHERE k = ? AND c = 1"
    options = Options(runner.random, 4, asked, None)
    options.values = [bytes(4)]

    def both(text):
        for side in runner.sides:
            assert side.clients[4].query(side.text(text)).error is None

    def ask(key):
        return runner.through.clients[4].query(runner.through.text(asked.text), key)

    both(f"INSERT INTO KSNAME.{table.name} (k, c, w) VALUES (0, 1, 'w')")
    answers = ask(b"\0\0\0\1"), ask(bytes(4))
    assert runner.hides(asked, options, answers)
    assert not runner.hides(asked, options, (answers[1], answers[0]))
    # As many rows in both copies, but others than Afterglow has shown.
    asked.text = asked.text.replace("c =", "c <")
    both(f"INSERT INTO KSNAME.{table.name} (k, c, w) VALUES (0, 0, 'w')")
    assert not runner.hides(asked, options, answers)
    asked.text = asked.text.replace("c <", "c =")
    both(f"DELETE FROM KSNAME.{table.name} WHERE k = 0 AND c = 1")
    assert not runner.hides(asked, options, answers)


def test_rows_of_a_slice_that_a_projection_hides_are_all_that_the_other_side_lacks(runner):
    table = next(table for table in runner.grammar.tables if table.expires)
    asked = Statement("select slice", table, read=True)
    asked.text = f"SELECT c FROM KSNAME.{table.name} WHERE k = ?"
    options = Options(runner.random, 4, asked, None)
    options.values = [bytes(4)]

    def both(text):
        for side in runner.sides:
            assert side.clients[4].query(side.text(text)).error is None

    def ask(columns, rest=""):
        text = asked.text.replace("SELECT c", f"SELECT {columns}") + rest
        return runner.through.clients[4].query(runner.through.text(text), bytes(4))

    for c in (1, 2, 3):
        both(f"INSERT INTO KSNAME.{table.name} (k, c, w) VALUES (0, {c}, 'w')")
    three = ask("c")
    assert runner.hides(asked, options, (ask("c", " AND c > 1"), three))
    assert runner.hides(asked, options, (ask("c", " AND c > 9"), three))
    # As many, more, others, or in another order.
    assert not runner.hides(asked, options, (three, three))
    assert not runner.hides(asked, options, (three, ask("c", " AND c > 1")))
    assert not runner.hides(asked, options, (ask("w", " AND c > 1"), three))
    assert not runner.hides(asked, options, (ask("c", " AND c > 1 ORDER BY c DESC"), three))
    both(f"DELETE FROM KSNAME.{table.name} WHERE k = 0 AND c = 1")
    assert not runner.hides(asked, options, (ask("c", " AND c > 1"), three))
