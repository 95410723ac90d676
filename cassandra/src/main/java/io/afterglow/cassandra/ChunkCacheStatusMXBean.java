package io.afterglow.cassandra;

import java.util.Map;

/** {@code io.afterglow:type=ChunkCache}: what the chunk cache does, since the node was started. */
public interface ChunkCacheStatusMXBean {
  /** on; on, verifying; or closed (after a drain). */
  String getState();

  /** Chunks answered, whether from memory, flash or the queue. */
  long getHits();

  /** Those of them that still waited to be written. */
  long getQueueHits();

  /** Those of them that were read together with the chunk before. */
  long getAheadHits();

  /** Chunks read together with the chunk before that the thread did not want next. */
  long getAheadUseless();

  /** Chunks looked up and not found. */
  long getMisses();

  /** Chunks read by compaction, streaming and other scans, which are not looked up. */
  long getBypassed();

  /** Chunks read of files that were not finished, or not yet identified. */
  long getUnidentified();

  /** Chunks taken in. */
  long getFills();

  /** Chunks not taken in because they were not read often enough. */
  long getUnpopular();

  /** Chunks not taken in because the queue was full. */
  long getQueueFull();

  /** Chunks that lost their popularity while they waited. */
  long getCooled();

  /** Chunks whose file was deleted while they waited. */
  long getOutlived();

  /** Chunks of a form or length that is not kept, or refused by the engine. */
  long getRefused();

  /** Look-ups and fills that failed; the log says why. */
  long getErrors();

  /** SSTables deleted, with all of their chunks. */
  long getFilesDropped();

  /** SSTables known now. */
  long getFiles();

  /** Bytes of chunks that wait to be written. */
  long getQueueBytes();

  /** Bytes that are in memory only: a crash would lose them. */
  long getUnsavedBytes();

  /** Hits compared with the SSTable; only with afterglow.chunkcache.verify. */
  long getCompared();

  /** Those of them that were different: must be 0. */
  long getDifferent();

  /** All counters of the engine, by name. */
  Map<String, Long> getEngine();
}
