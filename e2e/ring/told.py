"""Drivers of other languages in the load: programs that are told what to read and write."""

from afterglow_e2e.clients import Client, build
from afterglow_e2e.process import poll


class ToldDriver:
    """A driver of `e2e/cql-clients`, with the table of the load."""

    def __init__(self, name, command, members, keyspace, log):
        self.name, self.command, self.members = name, command, members
        self.keyspace, self.log, self.client = keyspace, log, None

    def open(self, stop):
        """Connects to one member, and learns of the others."""
        self.client = Client(self.command, self.members[0], self.keyspace, self.log, "--idempotent")
        poll(f"{self.name} to know all members", lambda: stop.is_set() or self.knows_all(), 60)

    def knows_all(self):
        return {f"{m.address}:{m.port}" for m in self.members} <= set(self.client("hosts"))

    def write(self, row, value):
        self.client("write", row, 0, str(value))

    def read(self, row):
        """The value of a row; None without one."""
        names, found = self.client("read", row, 0)
        return found and found[names.index("v")]

    def close(self):
        if self.client:
            self.client.close()


def told_drivers(members, keyspace, folder):
    """Java and Go, where their tools are; what is missing is said."""
    drivers = []
    for name, language in (("Java", "java"), ("Go", "go")):
        command = build(language)
        if command is None:
            print(f"{name} is left out: its tools are missing", flush=True)
            continue
        log = folder / f"{language}.log"
        drivers.append(ToldDriver(name, command, members, keyspace, log))
    return drivers
