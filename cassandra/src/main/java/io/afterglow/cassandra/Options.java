package io.afterglow.cassandra;

import java.util.Properties;

/**
 * The row cache's options: names that begin with {@code afterglow.}. They come from a properties
 * file, or from the command line, which wins. docs/guide/inside-cassandra.md explains each.
 */
final class Options extends FlashOptions {
  private static final long MIN_MEMORY = 16L << 20;
  private static final long MIN_FLASH = 32L << 20;

  /**
   * Checks everything.
   *
   * @param given all properties; those of other programs are ignored
   * @param rowCacheSize what cassandra.yaml says, in bytes: the default of the memory
   */
  Options(Properties given, long rowCacheSize) throws ConfigException {
    super(
        OptionNames.ROW_CACHE,
        given,
        new Bounds(
            "/flash/rows:200GiB", MIN_FLASH, MIN_MEMORY, Math.max(rowCacheSize, MIN_MEMORY), 256));
  }

  /** Whether rows of this table may be cached, as far as these options say. */
  boolean allows(String keyspace, String table) {
    return tables.allows(keyspace, table);
  }

  /** What the engine is told. */
  String engine() {
    return engine(Native.SURVIVES_CLEAN_STOP_ONLY, "");
  }
}
