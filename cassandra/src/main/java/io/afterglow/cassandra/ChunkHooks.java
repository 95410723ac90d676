package io.afterglow.cassandra;

import java.nio.ByteBuffer;

/**
 * What Cassandra's chunk readers call. Public because the calls stand in classes of Cassandra.
 * Whatever goes wrong in here, the caller goes on as if we were not there.
 */
public final class ChunkHooks {
  /** The chunk is in the buffer: nothing else is to be read. */
  public static final Object HIT = HookedReader.HIT;

  /** Null as long as there is none, or none any more. */
  static volatile ChunkCache cache;

  private ChunkHooks() {}

  /**
   * Before a chunk is read.
   *
   * @return {@link #HIT}, or what is to be given to {@link #after}, or null
   */
  public static Object before(HookedReader reader, long position, ByteBuffer buffer) {
    ChunkCache present = cache;
    return present == null ? null : present.before(reader, position, buffer);
  }

  /** After a chunk was read from its SSTable. */
  public static void after(Object read, ByteBuffer buffer) {
    ChunkCache present = cache;
    if (present != null) {
      present.after((ChunkCache.Read) read, buffer);
    }
  }

  /** A class of Cassandra could not be given its calls. */
  static void lost(String name, Throwable why) {
    ChunkCache present = cache;
    if (present != null) {
      present.lost(name, why);
    }
  }

  /** An SSTable is about to be deleted. */
  public static void deleting(Object sstable) {
    ChunkCache present = cache;
    if (present != null) {
      present.deleting(CassandraFiles.path(sstable));
    }
  }
}
