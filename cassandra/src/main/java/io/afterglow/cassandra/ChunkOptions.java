package io.afterglow.cassandra;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

/** How the chunk cache is set up; docs/cassandra.md explains each option. */
final class ChunkOptions {
  /** Without it nothing of Cassandra is touched. */
  static final String FLASH = "afterglow.chunkcache.flash";

  private static final String DIR = "afterglow.chunkcache.dir";
  private static final String MEMORY = "afterglow.chunkcache.memory";
  private static final String QUEUE = "afterglow.chunkcache.queue";
  private static final String READS = "afterglow.chunkcache.reads";
  private static final String ADMIT = "afterglow.chunkcache.admit";
  private static final String COMPRESS = "afterglow.chunkcache.compress";
  private static final String VERIFY = "afterglow.chunkcache.verify";
  private static final String WRITE_BUDGET = "afterglow.chunkcache.write-budget";
  private static final String ALLOW = "afterglow.chunkcache.tables.allow";
  private static final String DENY = "afterglow.chunkcache.tables.deny";

  static final Set<String> KNOWN =
      new HashSet<>(
          Arrays.asList(
              FLASH,
              DIR,
              MEMORY,
              QUEUE,
              READS,
              ADMIT,
              COMPRESS,
              VERIFY,
              WRITE_BUDGET,
              ALLOW,
              DENY));

  private static final long MIN_FLASH = 64L << 20;
  private static final long MIN_MEMORY = 32L << 20;
  private static final long MIN_QUEUE = 1L << 20;

  /** Four of the usual largest chunk, 64 KiB, and what goes with them, must fit a segment. */
  private static final long MIN_SEGMENT = 1L << 20;

  private static final long MAX_SEGMENT = 16L << 20;

  final List<OptionValues.Device> devices;
  final Path dir;
  final long memory;

  /** Bytes of chunks that may wait for flash. */
  final long queue;

  final int reads;

  /** Reads of a chunk, not long ago, that make it worth keeping. */
  final int admit;

  final boolean compress;
  final boolean verify;

  /** Bytes per second, 0 for no limit. */
  final long writeBudget;

  final OptionValues.TableLists tables;
  final Path nativeDir;

  /**
   * Checks everything.
   *
   * @param given all properties; those of other programs are ignored
   */
  ChunkOptions(Properties given) throws ConfigException {
    Map<String, String> options = OptionValues.ours(given);
    String flash = options.get(FLASH);
    if (flash == null) {
      throw new ConfigException(
          FLASH + " is missing: set it to PATH:SIZE, such as /flash/chunks:200GiB");
    }
    devices = OptionValues.devices(FLASH, flash, MIN_FLASH);
    dir = Paths.get(options.getOrDefault(DIR, devices.get(0).path + ".meta"));
    memory = size(options, MEMORY, 64L << 20, MIN_MEMORY);
    queue = size(options, QUEUE, 32L << 20, MIN_QUEUE);
    reads = (int) OptionValues.number(READS, options.get(READS), 64, 1, 65536);
    admit = (int) OptionValues.number(ADMIT, options.get(ADMIT), 2, 1, 15);
    compress = OptionValues.flag(COMPRESS, options.get(COMPRESS));
    verify = OptionValues.flag(VERIFY, options.get(VERIFY));
    writeBudget = OptionValues.size(WRITE_BUDGET, options.get(WRITE_BUDGET), 0);
    tables = OptionValues.tables(options, ALLOW, DENY);
    nativeDir = OptionValues.nativeDir(options);
  }

  private static long size(Map<String, String> options, String name, long otherwise, long least)
      throws ConfigException {
    long size = OptionValues.size(name, options.get(name), otherwise);
    return OptionValues.atLeast(name, size, least);
  }

  /** Bytes of flash. */
  long flash() {
    return devices.stream().mapToLong(device -> device.size).sum();
  }

  /** A 256th of the flash, as far as chunks fit into that. */
  private long segment() {
    long segment = Long.highestOneBit(flash() / 256);
    return Math.min(Math.max(segment, MIN_SEGMENT), MAX_SEGMENT);
  }

  /** What the engine is told. */
  String engine() {
    StringBuilder text = new StringBuilder();
    text.append("namespace=chunks\n");
    text.append("data_dir=").append(dir).append('\n');
    devices.forEach(device -> text.append(device.line()));
    text.append("memory=").append(memory).append('\n');
    text.append("segment=").append(segment()).append('\n');
    // Only removals of whole SSTables are journalled.
    text.append("journal=").append(1 << 20).append('\n');
    text.append("reads=").append(reads).append('\n');
    if (writeBudget > 0) {
      text.append("write_budget=").append(writeBudget).append('\n');
    }
    text.append("flags=").append(Native.IMMUTABLE).append('\n');
    return text.toString();
  }
}
