"""`make demo`: the same reads from a stock Cassandra directly and through Afterglow, with a kill -9
in the middle.
"""
