"""The CQL front end before the fake database: hits from DRAM, and reads that pass through.

Each build has a database of its own, for only one instance may cache an `exclusive` table. Clients
of some builds may come over TLS, which shows what that costs.
"""

import contextlib

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.certificates import Authority
from afterglow_e2e.fakedatabase import FakeDatabase
from afterglow_e2e.loadclient import Table, together

from .cost import Cost, cpu_microseconds, settle

ROWS = Table(20_000, 100)
POLICIES = {"hits": "*.*=exclusive", "passing": "*.*=off"}


@contextlib.contextmanager
def measured(kind, programs, folder, seconds, secured=(), rate=None):
    """Starts each program before a loaded database of its own. Gives a function that measures one
    run of a program, by its name and the number of the run. `secured`: the names of those whose
    clients come over TLS. `rate`: requests a second in equal distances; None for as fast as answers
    come. Then the program that answers faster is asked more, and finds fewer requests at once.
    """
    with contextlib.ExitStack() as stack:
        servers, trust = {}, dict.fromkeys(programs, ())
        for name, program in programs.items():
            place = folder / f"{kind}-{name}"
            place.mkdir()
            shown = ()
            if name in secured:
                ca = Authority(place, "ca")
                certificate, key = ca.sign("server", "IP:127.0.0.1")
                shown = ("--cql-tls-cert", certificate, "--cql-tls-key", key)
                trust[name] = ("--tls-ca", ca.pem)
            database = stack.enter_context(FakeDatabase(place))
            server = Afterglow(
                database.address,
                place,
                policies=[POLICIES[kind]],
                extra=["--reactors", "1", *shown],
                program=program,
            )
            stack.enter_context(server)
            ROWS.load(server.contact, *trust[name])
            settle(server)
            servers[name] = server

        def run(name, number):
            server, file = servers[name], folder / f"{kind}-{name}-{number}.json"
            load = ("--distribution", "uniform", "--connections", 4, "--seed", number + 1)
            times = ("--warmup", "0s", "--duration", f"{seconds}s")
            held = ("--rate", rate) if rate else ()
            before = cpu_microseconds(server.pid)
            words = ("--hosts", server.contact, *trust[name], *ROWS.words, *load, *times, *held)
            (result,) = together([(file, words)])
            spent = cpu_microseconds(server.pid) - before
            return Cost(spent / result["operations"], result["per_second"])

        for name in programs:
            # Two runs that do not count: rows are cached, and code and pages are warm.
            run(name, -1)
            run(name, -1)
        yield run
