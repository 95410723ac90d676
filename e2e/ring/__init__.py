"""The demo of the ring, and what judges it."""
