"""Shards of a ring move to another owner while a quorum of three nodes misses an acknowledged
write.

As in `holders.py`, writes at ONE go to a single node while the others hang. Then that one hangs,
the others answer, and an instance hands its shards over. Their new owner caches what a quorum
finds. That may be old, but not for ever. Once every node has the write and the short life of such
rows is over, each read must show it.
"""

from concurrent.futures import ThreadPoolExecutor

from afterglow_e2e.ring import Ring

from .holders import BACK, PARTITIONS, ROWS, Holders, options


class RingHolders(Holders):
    """One round over a ring of two: the first leaves, the second stays and is read through."""

    def __init__(self, seed, nodes, folder, profile=None):
        self.ring = Ring(
            nodes[0].contact, 2, folder / f"holders-{seed}", profile, extra=options(nodes)
        )
        super().__init__(seed, nodes, ends=("leave",), instances=self.ring.members)

    def only(self):
        """The last one: shards move through the first, to which the instances are connected."""
        return self.nodes[-1]

    def await_lease(self):
        self.instances[1].start(BACK)
        self.ring.settle(BACK)

    def write_all(self, level):
        """All at once: while a quorum hangs nobody can confirm a lease, which ends after a
        minute.
        """
        rows = [(partition, row) for partition in range(PARTITIONS) for row in range(ROWS)]

        def write(at):
            written = []
            self.persist(
                f"a write at {level} to be acknowledged",
                lambda: self.with_client(
                    self.instance, lambda client: written.append(self.write(client, *at, level))
                ),
            )
            return written

        with ThreadPoolExecutor(len(rows)) as threads:
            return [each for written in threads.map(write, rows) for each in written]

    def end(self, how):
        """The first hands its shards over and leaves."""
        self.ring.command(self.instance, how)
        self.holder = 1
