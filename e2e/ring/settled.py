"""When a ring is whole and every driver sees it, before a campaign measures."""

from collections import Counter

from afterglow_e2e.drivers import connect
from afterglow_e2e.process import poll
from afterglow_e2e.ring import SHARDS


def settle(ring):
    """Waits until all members own their parts, and show them to drivers."""
    ring.settle()
    poll("drivers to see who owns what", lambda: is_shown(ring), 60, every=0.5)


def is_shown(ring):
    """Whether every member shows drivers that all have the same part of the shards."""
    running = ring.running()
    for member in running:
        with connect(member) as session:
            owners = session.cluster.metadata.token_map.token_to_host_owner.values()
        parts = Counter(owners).values()
        even = len(parts) == len(running) and max(parts) - min(parts) <= 1
        if not even or sum(parts) != SHARDS:
            return False
    return True
