"""The load client `afterglow-bench`, as campaigns and comparisons use it."""

import json
import subprocess

from .afterglow import binary
from .process import Failure


class Table:
    """So many rows of one field of so many bytes."""

    def __init__(self, records, size):
        self.records = records
        self.words = ("--records", records, "--fields", 1, "--field-size", size)

    def load(self, contact, *more):
        """Makes the table and fills it; `more`: further arguments, as for TLS."""
        run("load-cql", "--hosts", contact, *self.words, "--create", *more)


def words(command, *arguments):
    return [str(part) for part in (binary("afterglow-bench"), command, *arguments, "--quiet")]


def run(command, *arguments):
    done = subprocess.run(words(command, *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"afterglow-bench {command}: {done.stderr[-2000:]}")


def together(runs):
    """Results of several `run-cql` at the same time; `runs` has a file and arguments of each."""
    started = [
        subprocess.Popen(
            words("run-cql", *arguments, "--json", file),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for file, arguments in runs
    ]
    said = [(each, each.communicate()[1]) for each in started]
    for each, errors in said:
        if each.returncode != 0:
            raise Failure(f"afterglow-bench run-cql: {errors[-2000:]}")
    return [json.loads(file.read_text()) for file, _ in runs]
