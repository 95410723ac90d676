"""The jar for stock Cassandra, and nodes that run with it."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

from .cassandra import Cassandra, java
from .process import ROOT, Failure, scratch

FOLDER = ROOT / "cassandra"
JAR = FOLDER / "target" / "afterglow-cassandra.jar"
OLDER = ["4.1.10", "4.0.19"]
PROVIDER = "io.afterglow.cassandra.FlashRowCacheProvider"
# Races are about order, not about speed: a busy machine must not end them.
PATIENT = {"write_request_timeout": "30000ms", "read_request_timeout": "30000ms"}
# Nor a campaign of an hour, where a node may start fifty times.
CAMPAIGN_BOOT_SECONDS = 900


def build():
    """The jar, made from this source with the native library of `make build`. AFTERGLOW_JAR names
    another one.
    """
    if named := os.environ.get("AFTERGLOW_JAR"):
        return Path(named)
    native = ROOT / "target" / "debug"
    sources = [
        FOLDER / "pom.xml",
        native / "libafterglow_ffi.so",
        *(FOLDER / "src").rglob("*.java"),
    ]
    if not sources[1].exists():
        raise Failure(f"{sources[1]} is missing: make build")
    newest = max(path.stat().st_mtime for path in sources)
    if JAR.exists() and JAR.stat().st_mtime > newest:
        return JAR
    command = ["mvn", "-q", "-B", "-f", FOLDER / "pom.xml", f"-Dnative={native}", "package"]
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise Failure(f"the jar cannot be built:\n{done.stdout[-4000:]}")
    # Maven leaves it as it is when only tests have changed.
    JAR.touch()
    return JAR


def generation(folder):
    """The number of the newest SSTable in a folder."""
    return max(
        int(re.search(r"-(\d+)-big-Data", file.name)[1]) for file in folder.glob("*-Data.db")
    )


def place(files, folder, number):
    """Copies the files of one SSTable under another number, over what is there: as who restores a
    snapshot does.
    """
    for file in files:
        shutil.copy(file, folder / re.sub(r"-\d+-big-", f"-{number}-big-", file.name))


class PluginNode(Cassandra):
    """A stock Cassandra with the jar, in a folder that goes with it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.jmx, self.asking = None, threading.Lock()

    def launch(self):
        self._forget_jmx()
        return super().launch()

    def files_of(self, keyspace, table):
        """The folder of a table's SSTables."""
        (folder,) = (self.folder / "data" / "data" / keyspace).glob(f"{table}-*")
        return folder

    def stop(self):
        self._forget_jmx()
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forget_jmx(self):
        """What was connected to a process that is gone."""
        if self.jmx:
            self.jmx.kill()
            self.jmx.communicate()
            self.jmx = None

    def ask(self, *words):
        """The lines that our JMX program answers: attributes NAME, flush or compact KEYSPACE
        TABLE.
        """
        with self.asking:
            if not self.jmx:
                program, _ = java()
                command = [
                    program,
                    "-Xmx64m",
                    "-XX:TieredStopAtLevel=1",
                    Path(__file__).with_name("Jmx.java"),
                    self.jmx_port,
                ]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
                self.jmx = subprocess.Popen([str(part) for part in command], **pipes)
            print(*words, file=self.jmx.stdin, flush=True)
            lines = []
            for line in self.jmx.stdout:
                if line == "ok\n":
                    return lines
                if line.startswith("failed "):
                    raise Failure(f"{' '.join(words)}: {line[7:]}")
                lines.append(line.rstrip("\n"))
            raise Failure(f"{' '.join(words)}: no answer from JMX")

    def figures(self):
        """Numbers of the chunk cache's MBean."""
        lines = self.ask("attributes", "io.afterglow:type=ChunkCache")
        figures = dict(line.split(" ", 1) for line in lines)
        return {name: int(value) for name, value in figures.items() if value.isdigit()}

    def await_chunks(self):
        """The chunk cache is open and has read its index: what it has it serves."""

        def loaded():
            # It opens behind the start of the node.
            return self.said("Afterglow chunk cache: ") and any(
                line.startswith("Engine ") and "key=loading, value=0}" in line
                for line in self.ask("attributes", "io.afterglow:type=ChunkCache")
            )

        self.child.wait_for("the chunk cache to be loaded", loaded, 180)

    def said(self, text):
        """How many lines of the node's log have `text`."""
        return sum(text in line for line in self.log.read_text(errors="replace").splitlines())

    def verify(self):
        """What `verify` prints: status, and the attributes of each cache by name, under the line
        that says it works.
        """
        program, _ = java()
        command = [program, "-jar", build(), "verify", f"127.0.0.1:{self.jmx_port}"]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=180
        )
        if done.returncode != 0:
            raise Failure(done.stdout + done.stderr)
        caches, figures = {}, {}
        for line in done.stdout.splitlines():
            if line.endswith("works"):
                caches[line], figures = figures, {}
            else:
                name, value = line.split(" ", 1)
                figures[name] = value
        return caches


class RowCacheNode(PluginNode):
    """A stock Cassandra with the row cache on flash, and with the chunk cache where `chunks` is its
    size.
    """

    def __init__(
        self, flash="256MiB", memory="32MiB", chunks=None, properties=None, settings=None, **options
    ):
        folder = scratch("row-cache-")
        own = {
            "afterglow.rowcache.flash": f"{folder}/flash:{flash}",
            "afterglow.rowcache.memory": memory,
        }
        if chunks:
            own["afterglow.chunkcache.flash"] = f"{folder}/chunks:{chunks}"
            options["agents"] = [build()]
        super().__init__(
            folder=folder,
            jars=[build()],
            properties={**own, **(properties or {})},
            settings={
                "row_cache_class_name": PROVIDER,
                "row_cache_size": "64MiB",
                **PATIENT,
                **(settings or {}),
            },
            **options,
        )


class ChunkCacheNode(PluginNode):
    """A stock Cassandra with the chunk cache on flash. `properties` add to and replace its
    options.
    """

    def __init__(self, flash="256MiB", memory="32MiB", properties=None, settings=None, **options):
        folder = scratch("chunk-cache-")
        own = {
            "afterglow.chunkcache.flash": f"{folder}/flash:{flash}",
            "afterglow.chunkcache.memory": memory,
        }
        super().__init__(
            folder=folder,
            agents=[build()],
            properties={**own, **(properties or {})},
            settings={**PATIENT, **(settings or {})},
            **options,
        )
