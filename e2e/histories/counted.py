"""What Afterglow has counted in a run, over all of its processes: each begins at zero."""

from collections import Counter

from afterglow_e2e.afterglow import Metrics

# What is counted, and where it stands in /metrics.
COUNTS = {
    "hits": Metrics.hits,
    "passed": lambda metrics: metrics.total("afterglow_passes_total"),
    # Reads of tables that are not cached at all.
    "off": lambda metrics: metrics.total("afterglow_passes_total", reason="policy_off"),
    "updated": Metrics.updated,
    "refreshed": Metrics.refreshed,
    # Reads behind the end of a unit: it covers a part of its partition.
    "beyond": lambda metrics: metrics.misses(reason="beyond"),
    "repeated": lambda metrics: metrics.total("afterglow_repeated_writes_total"),
    "settled": lambda metrics: metrics.total("afterglow_settled_writes_total"),
}


class Counted:
    """Sums since `begin`. `ends` must be called before each end of a process."""

    def __init__(self, instance):
        self.instance = instance
        # What processes that ended had counted, and the present one before the run.
        self.ended, self.before = Counter(), Counter()

    def begin(self):
        self.ended, self.before = Counter(), self.now()

    def ends(self):
        self.ended, self.before = Counter(self.sums()), Counter()

    def now(self):
        metrics = self.instance.metrics()
        return Counter({name: round(count(metrics)) for name, count in COUNTS.items()})

    def sums(self):
        """By name; 0 for what never was."""
        total = self.ended + (self.now() - self.before)
        return {name: total[name] for name in COUNTS}
