"""Keys a second that pymemcache reads with one `get` a key and with `get_many`.

batches.py HOST:PORT
"""

import sys
import time

from pymemcache.client.base import Client

KEYS, BATCH, SECONDS = 10_000, 100, 3


def rate(read):
    """Keys a second, the best of three times."""
    best = 0
    for _ in range(3):
        begun, count = time.monotonic(), 0
        while time.monotonic() - begun < SECONDS / 3:
            count += read(count)
        best = max(best, count / (time.monotonic() - begun))
    return best


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    client = Client((host, int(port)), no_delay=True)
    keys = [f"batch{i}" for i in range(KEYS)]
    client.set_many(dict.fromkeys(keys, b"v" * 100), noreply=False)

    def one(at):
        assert client.get(keys[at % KEYS]) is not None
        return 1

    def many(at):
        first = at % KEYS
        found = client.get_many(keys[first : first + BATCH])
        assert len(found) == BATCH
        return BATCH

    print(f"{rate(one):.0f} keys/s by get, {rate(many):.0f} keys/s by get_many of {BATCH}")


main()
