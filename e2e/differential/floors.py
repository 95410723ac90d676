"""What a campaign must have shown of the cache at least: hits of every kind of read."""

from collections import Counter

from afterglow_e2e.afterglow import Metrics

# At least this part of the reads that are asked again through Afterglow must be hits. Many are of a
# level or a shape that no cache answers: about a third are hits of each kind. Units that end behind
# their first rows have fewer hits.
LEAST = {"row": 0.1, "slice": 0.04, "IN": 0.02, "count": 0.04}
# A kind that was asked again less often than this shows too little.
ASKED = 10
# One row must be read again after a write in so many statements. 2,000 had 78.
REFRESHED = 200
HITS = "afterglow_hits_total"
SEVERAL = ("select several", "select in", "select clusterings")


def kind_of(statement):
    """The kind of a read, if it is one that the cache may answer."""
    if statement.kind.endswith("slice, count"):
        return "count"
    if statement.kind in SEVERAL:
        return "IN" if " IN " in statement.text else None
    if statement.kind.endswith("slice"):
        return "slice"
    return "row" if statement.kind.startswith(("select row", "story, read")) else None


def hits_of(instance):
    """How many hits there were so far. It is asked around many reads, so it looks at few lines."""
    _, text = instance.get("/metrics")
    return Metrics("\n".join(line for line in text.splitlines() if line.startswith(HITS))).hits()


class Again:
    """Reads asked again, and how many of them were hits, by kind. `hits` tells how many hits there
    were so far; nobody else may read meanwhile. Without it nothing is counted.
    """

    def __init__(self, hits=None):
        self.hits = hits
        self.asked, self.found = Counter(), Counter()

    def ask(self, statement, ask):
        """What `ask` gives."""
        kind = self.hits and kind_of(statement)
        if not kind:
            return ask()
        before = self.hits()
        answer = ask()
        self.asked[kind] += 1
        self.found[kind] += self.hits() > before
        return answer

    def __str__(self):
        return ", ".join(f"{kind} {self.found[kind]} of {self.asked[kind]}" for kind in LEAST)

    def complaints(self, release):
        """Which kinds of read were hits too seldom with this Cassandra. Counts of rows pass through
        to 3.11.
        """
        for kind, share in LEAST.items():
            if kind == "count" and release == "3.11":
                continue
            asked, found = self.asked[kind], self.found[kind]
            if asked < ASKED or found < max(1, int(share * asked)):
                yield f"{kind}: {found} of {asked} reads asked again were hits"
