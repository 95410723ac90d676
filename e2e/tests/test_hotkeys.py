"""`afterglow hotkeys`: the hottest keys and prefixes of a real server, and whose names are told."""

import json
import subprocess

from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow

ROUNDS, BATCH = 60, 1000


def ask(instance, *flags):
    """What the command prints."""
    command = [binary(), "hotkeys", "--admin", f"127.0.0.1:{instance.admin}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(instance):
    """60,000 reads: two of five of one key, one of five of another, the rest of own keys."""
    connection = instance.connect()
    for batch in range(ROUNDS):
        keys = [
            b"user:1"
            if n % 5 < 2
            else b"cart/9"
            if n % 5 == 2
            else b"user:x%d" % (batch * BATCH + n)
            for n in range(BATCH)
        ]
        connection.send(b"".join(b"get %s\r\n" % key for key in keys))
        for _ in keys:
            connection.until(b"END\r\n")
    connection.close()


def test_the_hottest_come_first_with_about_their_part_of_the_load():
    with MemcacheAfterglow(extra=["--show-keys"]) as instance:
        load(instance)
        (front_end,) = json.loads(ask(instance, "--json"))["front_ends"]
        first, second = front_end["keys"][:2]
        assert (first["name"], second["name"]) == ("user:1", "cart/9")
        # Of about 470 samples: six standard deviations.
        assert abs(first["part"] - 0.4) < 0.14 and abs(second["part"] - 0.2) < 0.11
        assert [one["name"] for one in front_end["prefixes"]] == ["user:"]
        text = ask(instance)
        assert text.index("user:1\n") < text.index("cart/9\n")
        assert "hidden" not in text


def test_a_key_cannot_write_to_the_terminal_of_who_looks():
    hostile = ["\x1b[2J\x1b]0;x\x07", "\x9b31m", "a\u202eb", "a\u2066b\u200b", "a\u2028b", "\u0301"]
    with MemcacheAfterglow(extra=["--show-keys"]) as instance:
        connection = instance.connect()
        for key in hostile:
            connection.send(b"get %s:1\r\n" % key.encode() * 4000)
            for _ in range(4000):
                connection.until(b"END\r\n")
        connection.close()
        command = [binary(), "top", "--once", "--view", "hotkeys"]
        command += ["--admin", f"127.0.0.1:{instance.admin}"]
        top = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        for told in (ask(instance), top):
            assert "\\u{1b}[2J" in told and "\\u{202e}" in told and "\\u{301}" in told
            assert not {c for key in hostile for c in key if not c.isascii() or c < " "} & set(told)


def test_names_are_told_to_nobody_unless_the_operator_says_so():
    with MemcacheAfterglow(extra=["--hotkeys-separator", "/"]) as instance:
        load(instance)
        status, answer = instance.get("/api/v1/hotkeys")
        (front_end,) = json.loads(answer)["front_ends"]
        assert status == 200 and len(front_end["keys"]) > 1 and len(front_end["prefixes"]) == 1
        for told in (answer, ask(instance), instance.get("/metrics")[1]):
            assert "user:" not in told and "cart" not in told
        assert "(hidden)" in ask(instance) and "--show-keys" in ask(instance)
        held = instance.metrics().value("afterglow_hot_keys_bytes")
        assert 0 < held < 500_000, "a bound for each reactor"
