"""The jar for stock Cassandra, and nodes that run with it. As a program it makes all of that ready."""

import os
import shutil
import subprocess
from pathlib import Path

from .cassandra import VERSION, Cassandra, fetch
from .process import ROOT, Failure, scratch

FOLDER = ROOT / "cassandra"
JAR = FOLDER / "target" / "afterglow-cassandra.jar"
OLDER = ["4.1.10", "4.0.19"]
PROVIDER = "io.afterglow.cassandra.FlashRowCacheProvider"
# Races are about order, not about speed: a busy machine must not end them.
PATIENT = {"write_request_timeout": "30000ms", "read_request_timeout": "30000ms"}


def build():
    """The jar, made from this source with the native library of `make build`. AFTERGLOW_JAR names another one."""
    if named := os.environ.get("AFTERGLOW_JAR"):
        return Path(named)
    native = ROOT / "target" / "debug"
    sources = [FOLDER / "pom.xml", native / "libafterglow_ffi.so", *(FOLDER / "src").rglob("*.java")]
    if not sources[1].exists():
        raise Failure(f"{sources[1]} is missing: make build")
    newest = max(path.stat().st_mtime for path in sources)
    if JAR.exists() and JAR.stat().st_mtime > newest:
        return JAR
    command = ["mvn", "-q", "-B", "-f", FOLDER / "pom.xml", f"-Dnative={native}", "package"]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failure(f"the jar cannot be built:\n{done.stdout[-4000:]}")
    return JAR


class RowCacheNode(Cassandra):
    """A stock Cassandra with the row cache on flash. `properties` add to and replace its options."""

    def __init__(self, flash="256MiB", memory="32MiB", properties=None, settings=None, **options):
        folder = scratch("row-cache-")
        own = {"afterglow.rowcache.flash": f"{folder}/flash:{flash}", "afterglow.rowcache.memory": memory}
        super().__init__(
            folder=folder,
            jars=[build()],
            properties={**own, **(properties or {})},
            settings={"row_cache_class_name": PROVIDER, "row_cache_size": "64MiB", **PATIENT, **(settings or {})},
            **options,
        )

    def stop(self):
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self, text):
        """How many lines of the node's log have `text`."""
        return sum(text in line for line in self.log.read_text(errors="replace").splitlines())


if __name__ == "__main__":
    print(build())
    for version in [VERSION, *OLDER]:
        fetch(version)
