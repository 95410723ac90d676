"""What a request costs in two builds of the server, measured in turn. `make bench-pairs`."""
