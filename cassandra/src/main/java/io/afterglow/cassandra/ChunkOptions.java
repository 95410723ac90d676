package io.afterglow.cassandra;

import java.util.Properties;

/** How the chunk cache is set up; docs/guide/inside-cassandra.md explains each option. */
final class ChunkOptions extends FlashOptions {
  /** Without it nothing of Cassandra is touched. */
  static final String FLASH = OptionNames.CHUNK_CACHE + "flash";

  private static final long MIN_FLASH = 64L << 20;
  private static final long MIN_MEMORY = 32L << 20;
  private static final long MIN_QUEUE = 1L << 20;

  /** Four of the usual largest chunk, 64 KiB, and what goes with them, must fit a segment. */
  private static final long MIN_SEGMENT = 1L << 20;

  private static final long MAX_SEGMENT = 16L << 20;

  /** Bytes of chunks that may wait for flash. */
  final long queue;

  /** Reads of a chunk, not long ago, that make it worth keeping. */
  final int admit;

  final boolean compress;
  final boolean verify;

  /**
   * Checks everything.
   *
   * @param given all properties; those of other programs are ignored
   */
  ChunkOptions(Properties given) throws ConfigException {
    super(
        OptionNames.CHUNK_CACHE,
        given,
        new Bounds("/flash/chunks:200GiB", MIN_FLASH, MIN_MEMORY, 64L << 20, 64));
    queue = size("queue", 32L << 20, MIN_QUEUE);
    admit = number("admit", 2, 1, 15);
    compress = flag("compress");
    verify = flag("verify");
  }

  /** A 256th of the flash, as far as chunks fit into that. */
  private long segment() {
    long segment = Long.highestOneBit(flash() / 256);
    return Math.min(Math.max(segment, MIN_SEGMENT), MAX_SEGMENT);
  }

  /** What the engine is told. */
  String engine() {
    return engine(Native.IMMUTABLE, "namespace=chunks\nsegment=" + segment() + '\n');
  }
}
