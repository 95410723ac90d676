package io.afterglow.cassandra;

import java.util.Map;

/** {@code io.afterglow:type=RowCache}: what the row cache does, since the node was started. */
public interface RowCacheStatusMXBean {
  /**
   * on, off (by nodetool setcachecapacity), closed (after a drain) or failed (the log says why).
   */
  String getState();

  /** Reads answered. */
  long getHits();

  /** Reads of tables that may be cached, not answered. */
  long getMisses();

  /** Rows put. */
  long getFills();

  /** Rows not put because a write came in between: each would have been stale. */
  long getOvertakenFills();

  /** Rows that could not be written down. */
  long getRefusedFills();

  /** Rows found that could not be read, and were removed. */
  long getUndecodable();

  /** Reads that did not fill because too many others were filling. */
  long getCrowdedOut();

  /** Times that all rows of a table were removed at once. */
  long getTableDrops();

  /** Rows in the cache, about. */
  long getEntries();

  /** Bytes in use. */
  long getBytes();

  /** All counters of the engine, by name. */
  Map<String, Long> getEngine();
}
