"""A member of a ring whose clock is far beyond the bound: `make history-drift BEYOND=1`.

It must have no lease and say so, and the others go on without it.
"""

from afterglow_e2e.process import Failure, poll

# By how many parts of 10,000 its clock is faster. The bound between two is 10.
FAR = 30
# So soon it must know, and have no lease.
SEEN = 60
# Faults after which a process is new. It has measured no clock yet, so it takes the drifting member
# in again until it has: that is not what is judged here.
RENEWING = ("kill", "terminate", "deaths", "leave")
# What it says of itself, and what the others say of it.
OURS = "the clock of this instance does not run like those of most members"
THEIRS = "the clocks of these members do not run like ours"


class Beyond:
    """The last of the instances. No fault makes it stand still, and no process starts anew."""

    def __init__(self, ring):
        self.ring = ring
        *self.others, self.member = ring.members

    def is_seen(self):
        """Whether it has no lease, for that reason, as its log and its metrics say."""
        status = self.ring.ask(self.member, "status")
        if status is None or status["lease_ms"] > 0 or OURS not in self.member.log_text():
            return False
        metrics = self.member.metrics()
        return (
            metrics.value("afterglow_ring_clocks_drifting") > 0
            and metrics.value("afterglow_ring_lease_seconds") == 0
        )

    def await_seen(self):
        poll("the drifting member to be without a lease and to say why", self.is_seen, SEEN)

    def complaints(self, leases):
        """What is wrong after a run in which it was seen with a lease so many times."""
        if leases:
            yield f"the member whose clock drifts had a lease in {leases} looks"
        try:
            self.await_seen()
        except Failure as failure:
            yield str(failure)
        if not any(THEIRS in member.log_text() for member in self.others):
            yield "no other member says that its clock drifts"
