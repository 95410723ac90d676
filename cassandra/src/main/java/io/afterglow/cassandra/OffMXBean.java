package io.afterglow.cassandra;

/** In the place of a cache's figures where the node runs without it. */
public interface OffMXBean {
  /** {@code off: } and why. */
  String getState();
}
