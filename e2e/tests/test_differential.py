"""A few thousand random statements, answered alike by the database and by Afterglow; `make differential` has more."""

import itertools

import pytest
from differential.runner import Runner

from afterglow_e2e.afterglow import describe

SEED = "short"
STATEMENTS = 2000
NUMBERS = itertools.count()


@pytest.fixture
def runner(cassandra, afterglow):
    made = Runner(cassandra.contact, afterglow.contact, next(NUMBERS), SEED, "5.0", short=True)
    made.create()
    yield made
    made.close()


def test_no_statement_tells_them_apart(runner, afterglow):
    before = afterglow.metrics()
    while sum(runner.kinds.values()) < STATEMENTS and not runner.differences:
        runner.step()
    after = afterglow.metrics()
    print(f"{runner.requests} requests; {describe(after, before)}; allowed: {dict(runner.allowed)}")
    assert not runner.differences, f"seed {SEED}:\n" + "\n".join(runner.differences)
    assert after.hits() - before.hits() > STATEMENTS / 20


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
