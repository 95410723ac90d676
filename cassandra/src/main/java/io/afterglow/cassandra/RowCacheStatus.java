package io.afterglow.cassandra;

import java.util.Map;

/** The figures of a row cache. */
final class RowCacheStatus implements RowCacheStatusMXBean {
  private final FlashRowCache cache;

  RowCacheStatus(FlashRowCache cache) {
    this.cache = cache;
  }

  @Override
  public String getState() {
    return cache.state();
  }

  @Override
  public long getHits() {
    return cache.hits.sum();
  }

  @Override
  public long getMisses() {
    return cache.misses.sum();
  }

  @Override
  public long getFills() {
    return cache.fills.sum();
  }

  @Override
  public long getOvertakenFills() {
    return cache.overtaken.sum();
  }

  @Override
  public long getRefusedFills() {
    return cache.refused.sum();
  }

  @Override
  public long getUndecodable() {
    return cache.undecodable.sum();
  }

  @Override
  public long getCrowdedOut() {
    return cache.crowded.sum();
  }

  @Override
  public long getTableDrops() {
    return cache.tableDrops.sum();
  }

  @Override
  public long getEntries() {
    return cache.size();
  }

  @Override
  public long getBytes() {
    return cache.weightedSize();
  }

  @Override
  public Map<String, Long> getEngine() {
    return cache.figures();
  }
}
