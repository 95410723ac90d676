"""What an operator does with the jar, as docs/guide/inside-cassandra.md says: install, verify,
mend, remove.
"""

import json
import subprocess

import pytest

from afterglow_e2e.cassandra import java
from afterglow_e2e.drivers import connect
from afterglow_e2e.plugin import PluginNode, build
from afterglow_e2e.process import Failure, scratch
from afterglow_e2e.rowrace import CACHED, REPLICATION

ENVIRONMENT = 'JVM_OPTS="$JVM_OPTS -Dstock=true"\n'


class Tree(PluginNode):
    """A node that is started out of a tree as Cassandra's archive has it: lib, conf and what is
    said there.
    """

    def __init__(self):
        folder = scratch("operator-")
        super().__init__(folder=folder)
        self.home = self.folder / "home"
        self.conf = self.home / "conf"
        (self.home / "lib").mkdir(parents=True)
        self.conf.mkdir()
        (self.conf / "cassandra-env.sh").write_text(ENVIRONMENT)
        (self.conf / "cassandra.yaml").write_text(self.yaml())

    def yaml(self):
        config = json.loads((self.folder / "cassandra.yaml").read_text())
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())

    def files(self):
        return (self.conf / "cassandra.yaml").read_text(), (
            self.conf / "cassandra-env.sh"
        ).read_text()

    def command(self):
        """As bin/cassandra makes it: the options of cassandra-env.sh, conf and lib on the class
        path, and no more.
        """
        script = f'CASSANDRA_HOME={self.home}; . "$CASSANDRA_HOME/conf/cassandra-env.sh"; echo "$JVM_OPTS"'
        options = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
        program, *rest = super().command()
        parts = [str(part) for part in rest]
        parts.remove(f"-Dcassandra.config=file://{self.folder}/cassandra.yaml")
        path = parts.index("-cp") + 1
        _, *stock = parts[path].split(":")
        parts[path] = ":".join(
            [str(self.conf), *stock, *map(str, (self.home / "lib").glob("*.jar"))]
        )
        return [program, *options, *parts]

    def jar(self, *arguments):
        """`java -jar afterglow-cassandra.jar ...`: what it prints."""
        program, _ = java()
        command = [program, "-jar", build(), *arguments]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=180
        )
        if done.returncode != 0:
            raise Failure(done.stdout + done.stderr)
        return done.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_jar_is_installed_shown_to_work_said_to_be_wrong_and_removed():
    tree = Tree()
    stock = tree.files()
    flash = {"row": f"{tree.folder}/rows:256MiB", "chunk": f"{tree.folder}/chunks:256MiB"}
    tree.jar("install", tree.home, flash["row"])
    tree.jar("install-chunks", tree.home, flash["chunk"])
    with tree:
        tree.await_chunks()
        with connect(tree, timeout=60) as session:
            session.execute(f"CREATE KEYSPACE k WITH replication = {REPLICATION}")
            session.execute(f"CREATE TABLE k.t (p int PRIMARY KEY, v int) WITH {CACHED}")
            session.execute("INSERT INTO k.t (p, v) VALUES (1, 2)")
            for _ in range(2):
                assert session.execute("SELECT v FROM k.t WHERE p = 1").one().v == 2
        works = tree.verify()
        assert set(works) == {"the row cache works", "the chunk cache works"}
        assert works["the row cache works"]["Hits"] == "1"

        options = tree.conf / "afterglow.properties"
        text = options.read_text().replace(
            f"{tree.folder}/chunks", f"{tree.folder}/not-mounted/chunks"
        )
        options.write_text(text + "afterglow.rowcache.memory=lots\n")
        tree.restart()
        reasons = [
            "the row cache is off: afterglow.rowcache.memory: lots is not a size",
            f"the chunk cache is off: afterglow.chunkcache.flash: there is no folder {tree.folder}/not-mounted",
        ]
        tree.child.wait_for(
            "both complaints", lambda: tree.said("the node runs without it: ") == 2, 180
        )
        with pytest.raises(Failure) as complaint:
            tree.verify()
        for reason in reasons:
            assert f"error: {reason}" in str(complaint.value)
            cache, why = reason.split(" is off: ")
            assert (
                tree.said(
                    f"Afterglow {cache.removeprefix('the ')}: the node runs without it: {why}"
                )
                == 1
            )
        with connect(tree, timeout=60) as session:
            for _ in range(3):
                assert session.execute("SELECT v FROM k.t WHERE p = 1").one().v == 2

        tree.jar("remove", tree.home)
        assert tree.files() == stock
        assert list((tree.home / "lib").iterdir()) == []
