"""Makes ready what tests need, before any test's time counts: the plug-in's jar, Cassandra's jars
and an archive of its classes, the libraries of the clients' programs, memcached's source, and a
Debian without anything.

python -m afterglow_e2e.prepare
"""

import fcntl

from . import clients, debian, memcache, memcached_suite, plugin
from .cassandra import VERSION, archive_classes, fetch
from .process import ROOT, Failure


def main():
    folder = ROOT / "target"
    folder.mkdir(exist_ok=True)
    # One after the other: a run ahead may still be under way.
    with (folder / "prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare()


def prepare():
    print(plugin.build())
    for version in [VERSION, *plugin.OLDER]:
        fetch(version)
    print(archive_classes())
    for language in clients.TOOLS:
        clients.build(language)
    memcache.client_jars()
    memcache.go_modules()
    memcached_suite.source()
    try:
        print(debian.bootstrapped())
    except Failure as failure:
        # Its tests are left out then, and say so.
        print(failure)


if __name__ == "__main__":
    main()
