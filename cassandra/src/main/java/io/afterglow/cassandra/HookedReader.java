package io.afterglow.cassandra;

/**
 * What {@link ChunkTransformer} makes of Cassandra's chunk readers: each keeps what we know of its
 * file.
 */
public interface HookedReader {
  /** Null until the first call of the other. */
  Object afterglow$file();

  void afterglow$file(Object file);
}
