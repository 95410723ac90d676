"""What the caches inside Cassandra are worth: a stock node against the same one with them. `make
bench-cassandra`.
"""
