"""What a campaign must have seen at least. One of which the cache has no part proves nothing."""

from collections import Counter

# At least this part of the reads that clients ask must be hits, in each run. A ring must have a
# third in calm time. Here something is broken all the time, and each kill takes a while.
LEAST_HITS = 1 / 20
# Acknowledged writes, a second of each run. Runs of a minute on busy machines had 45 to 200.
LEAST_WRITES = 2
# For so many seconds more clients go on, with nothing broken, where a run is below these. On a busy
# machine Afterglow may be away for most of a short one.
GRACE = 60
# What a campaign must have counted, a minute. On a machine that was
# much too busy, ten seconds had 209 and 337.
LEAST_OF_ALL = {"updated": 20, "refreshed": 20}
# The same of runs with small units: reads that found a unit end before what they want. There it was
# 44 in ten seconds.
LEAST_BEYOND = 5
# One write of unknown outcome must be settled in so many lulls. Each follows several lost
# connections of eight clients, and is longer than the hold.
LULLS = 4
# Sums over a campaign with one instance, and what they are called in the figures of a run.
SUMS = {
    "reads": "reads",
    "writes": "acknowledged",
    "hits": "hits",
    "updated": "updated",
    "refreshed": "refreshed",
    "settled": "settled",
}


def wanted_at_least(text, names):
    """The least that sums must reach, of `reads=1000000,minutes=5`; names are known."""
    least = {name: float(number) for name, number in (part.split("=") for part in text.split(","))}
    if strange := least.keys() - names:
        raise ValueError(f"no sum is called {strange}")
    return least


def short_of(found, least):
    """Which sums are below the least that they must reach."""
    return [
        f"{name}: {found[name]:g} instead of {number:g}"
        for name, number in least.items()
        if found[name] < number
    ]


def complaints(figures):
    """Why a run is not fine, whatever its reads say."""
    if figures["hits"] < max(1, LEAST_HITS * figures["asked"]):
        yield f"{figures['hits']} hits: fewer than {LEAST_HITS:.0%} of the reads"
    if figures["off"]:
        yield f"{figures['off']} reads were of tables whose policy is off"
    if figures["acknowledged"] < max(1, LEAST_WRITES * figures["seconds"]):
        yield f"{figures['acknowledged']} writes acknowledged: fewer than {LEAST_WRITES} a second"


def sums(runs):
    """What was done and seen in all runs in which clients were at work."""
    total = Counter()
    for figures in runs:
        total.update({name: figures[of] for name, of in SUMS.items()})
    return {"minutes": sum(figures["seconds"] for figures in runs) / 60, **total}


def missing(runs):
    """What a campaign of one instance does not show."""
    found, limited = sums(runs), [figures for figures in runs if figures["limited"]]
    lulls = sum(figures["lulls"] for figures in runs)
    least = {name: number * found["minutes"] for name, number in LEAST_OF_ALL.items()}
    if lulls >= LULLS:
        least["settled"] = lulls // LULLS
    if limited:
        found["beyond"] = sum(figures["beyond"] for figures in limited)
        least["beyond"] = LEAST_BEYOND * sums(limited)["minutes"]
    return short_of(Counter(found), least)
