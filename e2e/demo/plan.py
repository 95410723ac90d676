"""What the demo does, in figures. Everything is a constant, so that two runs are the same run."""

RECORDS, FIELDS, FIELD_BYTES = 100_000, 10, 400
DATA_BYTES = RECORDS * FIELDS * FIELD_BYTES

HEAP = "2G"  # Cassandra's
MEMORY = (
    "96MiB"  # all of Afterglow: index, write buffers and a DRAM tier of at most a fifth of the data
)
FLASH = "1GiB"
POLICY = "ycsb.*=exclusive"

CONNECTIONS, IN_FLIGHT = 4, 16
PAIRS = 3
MEASURE_SECONDS = 6
# A JVM climbs for most of a minute, with plateaus that look flat: so long at least, and so long at
# most after that.
JVM_SECONDS = 45
WARM_SECONDS = 50
CRASH_SECONDS = 9

DIRECT, THROUGH = "Cassandra directly", "through Afterglow"
FLAT_OUT, HALF = "flat out", "half of Cassandra's maximum"
