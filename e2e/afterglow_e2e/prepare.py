"""Makes ready what tests need from elsewhere, before any test's time counts: the plug-in's jar,
Cassandra's jars, and the libraries of the clients' programs.

python -m afterglow_e2e.prepare
"""

from . import clients, memcache, plugin
from .cassandra import VERSION, fetch


def main():
    print(plugin.build())
    for version in [VERSION, *plugin.OLDER]:
        fetch(version)
    for language in clients.TOOLS:
        clients.build(language)
    memcache.client_jars()
    memcache.go_modules()


if __name__ == "__main__":
    main()
