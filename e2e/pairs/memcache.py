"""The memcached front end: gets and sets in DRAM, and gets from flash.

The client is a script on another core. So rates are its own, and only the server's CPU counts.
"""

import contextlib
import random
import time

from afterglow_e2e.memcache import MemcacheAfterglow

from .cost import Cost, cpu_microseconds, settle

CONNECTIONS, BATCH = 32, 16
# Bytes of a value, objects, memory and flash of the server.
DRAM, FLASH = (100, 200_000, "1GiB", "1GiB"), (1_024, 400_000, "64MiB", "1GiB")
SIZES = {"get": DRAM, "get16": DRAM, "mget": DRAM, "set16": DRAM, "flash": FLASH, "flash16": FLASH}


def key(number):
    return b"key-%027d" % number


def request(kind, keys, value):
    """A request of this kind, what ends its answer, how many such ends and keys it has."""
    if kind in ("get", "flash"):
        return b"get %s\r\n" % keys[0], b"END\r\n", 1, 1
    if kind == "mget":
        return b"get " + b" ".join(keys) + b"\r\n", b"END\r\n", 1, len(keys)
    if kind == "set16":
        sets = (b"set %s 0 0 %d\r\n%s\r\n" % (each, len(value), value) for each in keys)
        return b"".join(sets), b"STORED\r\n", len(keys), len(keys)
    return b"".join(b"get %s\r\n" % each for each in keys), b"END\r\n", len(keys), len(keys)


def fill(raw, objects, value):
    for first in range(0, objects, 64):
        keys = [key(number) for number in range(first, min(first + 64, objects))]
        command, end, ends, _ = request("set16", keys, value)
        raw.send(command)
        for _ in range(ends):
            raw.until(end)


@contextlib.contextmanager
def filled(name, program, folder, sizes):
    """A server with one reactor that has its objects and is at rest. `sizes`: bytes and number of
    the objects, its memory and its flash.
    """
    size, objects, memory, flash = sizes
    with MemcacheAfterglow(
        folder / name, flash=flash, memory=memory, extra=["--reactors", "1"], program=program
    ) as server:
        fill(server.connect(), objects, b"v" * size)
        settle(server)
        yield server


@contextlib.contextmanager
def measured(kind, programs, folder, seconds):
    """Starts and fills each program. Gives a function that measures one run of a program, by its
    name and the number of the run.
    """
    size, objects, *_ = SIZES[kind]
    value = b"v" * size
    with contextlib.ExitStack() as stack:
        servers, clients = {}, {}
        for name, program in programs.items():
            server = stack.enter_context(filled(f"{kind}-{name}", program, folder, SIZES[kind]))
            servers[name] = server
            clients[name] = [server.connect() for _ in range(CONNECTIONS)]

        def run(name, number):
            chosen, pid = random.Random(number), servers[name].pid
            count, began, before = 0, time.monotonic(), cpu_microseconds(pid)
            while time.monotonic() - began < seconds:
                asked = []
                for client in clients[name]:
                    keys = [key(chosen.randrange(objects)) for _ in range(BATCH)]
                    command, end, ends, of = request(kind, keys, value)
                    client.send(command)
                    asked.append((client, end, ends))
                    count += of
                for client, end, ends in asked:
                    for _ in range(ends):
                        client.until(end)
            lasted = time.monotonic() - began
            return Cost((cpu_microseconds(pid) - before) / count, count / lasted)

        for name in programs:
            run(name, -1)
        yield run
