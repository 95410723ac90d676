"""Nodes that are measured: all alike but for their cache, in a control group, on a disk of their
own.
"""

import os
import shutil
from pathlib import Path

from afterglow_e2e.drivers import REPLICATION, connect
from afterglow_e2e.plugin import PROVIDER, PluginNode, build

from . import plan

KEYSPACE = "ycsb"


class Node(PluginNode):
    """A stock Cassandra. The same folder may be started again with another cache."""

    def __init__(self, folder, cache="none", flash=None, group=None, heap=plan.HEAP):
        self.cache, self.group = cache, group
        properties, agents, settings = {}, [], {}
        if cache in ("chunks", "rows"):
            kind = "chunkcache" if cache == "chunks" else "rowcache"
            path, size = flash
            properties = {
                f"afterglow.{kind}.flash": f"{path}:{size}",
                f"afterglow.{kind}.memory": "64MiB",
            }
        if cache == "chunks":
            agents = [build()]
        elif cache != "none":
            settings = {"row_cache_size": "64MiB"} | (
                {"row_cache_class_name": PROVIDER} if cache == "rows" else {}
            )
        super().__init__(
            folder=folder,
            address="127.0.0.77",
            heap=f"{heap >> 20}M",
            jars=[build()] if cache == "rows" else [],
            agents=agents,
            properties=properties,
            settings={
                "memtable_heap_space": "64MiB",
                "memtable_offheap_space": "64MiB",
                **settings,
            },
        )

    def command(self):
        """Outside the heap there is as much as all caches and connections here need, and no
        more.
        """
        program, *rest = super().command()
        command = [program, f"-XX:MaxDirectMemorySize={plan.DIRECT >> 20}M", *rest]
        return self.group.enter(command) if self.group else command

    def stop(self):
        """Its folder is the benchmark's."""
        self._forget_jmx()
        if self.child:
            self.child.kill()

    def await_cache(self):
        if self.cache == "chunks":
            self.await_chunks()

    def cache_figures(self):
        """Numbers of our cache, by name; those of its engine too."""
        if self.cache not in ("chunks", "rows"):
            return {}
        name = "ChunkCache" if self.cache == "chunks" else "RowCache"
        lines = self.ask("attributes", f"io.afterglow:type={name}")
        figures = dict(line.split(" ", 1) for line in lines)
        return {name: int(value) for name, value in figures.items() if value.isdigit()}

    def cache_rows(self, shape, wanted):
        """Whether the table's rows go to a row cache."""
        rows = "ALL" if wanted else "NONE"
        with connect(self, timeout=60) as session:
            session.execute(
                f"ALTER TABLE {KEYSPACE}.{shape.table} WITH caching = {{'keys': 'ALL', 'rows_per_partition': '{rows}'}}"
            )


def create(node, shape):
    """The table of a shape, and nothing in it."""
    length = f"{{'class': 'LZ4Compressor', 'chunk_length_in_kb': {shape.chunk}}}"
    compression = length if shape.chunk else "{'enabled': 'false'}"
    columns = "".join(f", field{n} blob" for n in range(shape.fields))
    with connect(node, timeout=60) as session:
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {REPLICATION}"
        )
        session.execute(
            f"CREATE TABLE {KEYSPACE}.{shape.table} (y_id text PRIMARY KEY{columns}) WITH compression = {compression}"
        )


class Template:
    """The files of a node that was loaded and stopped. Files of tables never change, so that copies
    are links.
    """

    def __init__(self, disk):
        self.loaded, self.used = disk.path / "loaded", disk.path / "node"

    def exists(self):
        return (self.loaded / "complete").exists()

    def keep(self):
        """What `used` is now is what every measured node begins with."""
        shutil.copytree(self.used / "data" / "data", self.loaded / "data", copy_function=os.link)
        (self.loaded / "complete").touch()

    def fresh(self, name="node"):
        """The folder for a node with these files."""
        folder = self.loaded.with_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.loaded / "data", folder / "data" / "data", copy_function=os.link)
        return folder

    def size(self, shape):
        """Bytes of a table on disk."""
        files = Path(self.loaded / "data" / KEYSPACE).glob(f"{shape.table}-*/*")
        return sum(path.stat().st_size for path in files if path.is_file())
