"""What a ring costs, in short: everything but the bounds on its figures, which need a machine of
their own. `make ring-scaling` and `make ring-write-cost` are the long forms.
"""

import pytest
from ring.scaling import Bound, Site
from ring.writecost import MOST, campaign

from afterglow_e2e import cgroup


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_write_fails_through_an_instance_without_rows(cassandra, no_ring):
    runs = campaign(cassandra, pairs=1, seconds=1, warmup=1)
    assert runs.keys() == {"owner", "non-owner", "direct"}
    for (run,) in runs.values():
        assert run.keys() == MOST.keys() and min(run.values()) > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_reads_of_four_as_one_ring_are_hits_as_those_of_four_alone(cassandra, no_ring):
    if why := cgroup.lacking():
        pytest.skip(f"instances cannot be held back here: {why}")
    bound = Bound("CPU", rows=100, size=100, cores=0.3)
    with Site(bound, cassandra.contact, seconds=1, rounds=1) as site:
        bound.table().load(site.contact)
        # It fails by itself where reads were misses.
        ((four, by_token, anywhere),) = site.in_turn()
    assert min(four.rate, by_token.rate, anywhere.rate) > 0
