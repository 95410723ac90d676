package io.afterglow.cassandra;

import java.util.Map;

/** The figures of a chunk cache. */
final class ChunkCacheStatus implements ChunkCacheStatusMXBean {
  private final ChunkCache cache;
  private final FlashStore store;

  ChunkCacheStatus(ChunkCache cache, FlashStore store) {
    this.cache = cache;
    this.store = store;
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
  public long getQueueHits() {
    return cache.queueHits.sum();
  }

  @Override
  public long getAheadHits() {
    return cache.aheadHits.sum();
  }

  @Override
  public long getAheadUseless() {
    return cache.aheadUseless.sum();
  }

  @Override
  public long getMisses() {
    return cache.misses.sum();
  }

  @Override
  public long getBypassed() {
    return cache.bypassed.sum();
  }

  @Override
  public long getUnidentified() {
    return cache.unidentified.sum();
  }

  @Override
  public long getFills() {
    return cache.fills.sum();
  }

  @Override
  public long getUnpopular() {
    return cache.unpopular.sum();
  }

  @Override
  public long getQueueFull() {
    return cache.queueFull.sum();
  }

  @Override
  public long getCooled() {
    return cache.cooled.sum();
  }

  @Override
  public long getOutlived() {
    return cache.outlived.sum();
  }

  @Override
  public long getRefused() {
    return cache.refused.sum();
  }

  @Override
  public long getErrors() {
    return cache.errors.sum();
  }

  @Override
  public long getFilesDropped() {
    return cache.filesDropped.sum();
  }

  @Override
  public long getCompared() {
    return cache.compared.sum();
  }

  @Override
  public long getDifferent() {
    return cache.different.sum();
  }

  @Override
  public long getFiles() {
    return cache.files();
  }

  @Override
  public long getQueueBytes() {
    return cache.waitingBytes();
  }

  @Override
  public long getUnsavedBytes() {
    return store.stats().get("unsaved_bytes");
  }

  @Override
  public Map<String, Long> getEngine() {
    return store.stats();
  }
}
