"""Stores keys again and again, whatever comes of it, and says after each round that it did.

dead_server.py pymemcache|pylibmc|pylibmc-remove
"""

import contextlib
import os
import sys
import time

import pylibmc
from pymemcache.client.hash import HashClient


def client(name, servers):
    if name == "pymemcache":
        more = {"retry_attempts": 2, "retry_timeout": 1, "dead_timeout": 30}
        return HashClient(servers, connect_timeout=0.25, timeout=0.5, ignore_exc=True, **more)
    behaviors = {"ketama": True, "connect_timeout": 250, "retry_timeout": 1}
    if name == "pylibmc-remove":
        behaviors.update(remove_failed=3, dead_timeout=2)
    return pylibmc.Client(servers, behaviors=behaviors)


def main():
    store = client(sys.argv[1], os.environ["SERVERS"].split(","))
    for number in range(1_000_000):
        for i in range(100):
            with contextlib.suppress(pylibmc.Error):
                store.set(f"key{i}", "value")
        print("round", number, flush=True)
        time.sleep(0.05)


main()
