package io.afterglow.cassandra;

/**
 * What {@link ChunkTransformer} makes of Cassandra's chunk readers: each keeps what we know of its
 * file.
 */
public interface HookedReader {
  /** The chunk is in the buffer: nothing else is to be read. */
  Object HIT = new Object();

  /** Null until the first call of the other. */
  Object afterglow$file();

  void afterglow$file(Object file);
}
