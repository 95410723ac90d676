"""Random CQL, the same to Cassandra and to Afterglow in front of it, and both answers compared byte
for byte.
"""
