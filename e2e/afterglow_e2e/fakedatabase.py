"""The database in memory of `afterglow-testkit`, for what is not about the database."""

from pathlib import Path

from .afterglow import binary
from .process import Child, free_port, poll

KEYSPACE = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


class FakeDatabase:
    """Runs while it is entered; `kill` ends it before."""

    def __init__(self, folder, *options):
        self.options = options
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = Path(folder)

    def __enter__(self):
        command = [binary("afterglow-testkit"), "fake-backend", "--listen", self.address]
        command += self.options
        self.child = Child("the fake database", command, self.folder / "fake-database.log")
        return self

    def kill(self):
        self.child.kill()

    def __exit__(self, *_):
        self.kill()


def cache_a_row(instance, client, value):
    """Makes the table `ks.t` with the row `a`, and reads it until it is a hit."""
    client.query(f"CREATE KEYSPACE ks WITH replication = {KEYSPACE}")
    client.query("CREATE TABLE ks.t (k text PRIMARY KEY, v text)")
    client.query(f"INSERT INTO ks.t (k, v) VALUES ('a', '{value}')")

    def hit():
        before = instance.metrics().hits()
        client.query("SELECT v FROM ks.t WHERE k = 'a'")
        return instance.metrics().hits() > before

    poll("the row to be cached", hit, 20)
