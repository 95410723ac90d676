"""What the end-to-end tests and the demo share: a stock Cassandra, the real `afterglow` binary,
ways to watch both.
"""
