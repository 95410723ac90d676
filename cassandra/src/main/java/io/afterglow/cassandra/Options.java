package io.afterglow.cassandra;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

/**
 * How the row cache is set up: names that begin with {@code afterglow.}, from a properties file, or
 * from the command line, which wins. docs/cassandra.md explains each.
 */
final class Options {
  private static final String FLASH = "afterglow.rowcache.flash";
  private static final String DIR = "afterglow.rowcache.dir";
  private static final String MEMORY = "afterglow.rowcache.memory";
  private static final String READS = "afterglow.rowcache.reads";
  private static final String WRITE_BUDGET = "afterglow.rowcache.write-budget";
  private static final String ALLOW = "afterglow.rowcache.tables.allow";
  private static final String DENY = "afterglow.rowcache.tables.deny";

  static final Set<String> KNOWN =
      new HashSet<>(Arrays.asList(FLASH, DIR, MEMORY, READS, WRITE_BUDGET, ALLOW, DENY));

  private static final long MIN_MEMORY = 16L << 20;
  private static final long MIN_FLASH = 32L << 20;

  final List<OptionValues.Device> devices;
  final Path dir;
  final long memory;
  final int reads;

  /** Bytes per second, 0 for no limit. */
  final long writeBudget;

  final OptionValues.TableLists tables;
  final Path nativeDir;

  /**
   * Checks everything.
   *
   * @param given all properties; those of other programs are ignored
   * @param rowCacheSize what cassandra.yaml says, in bytes: the default of the memory
   */
  Options(Properties given, long rowCacheSize) throws ConfigException {
    Map<String, String> options = OptionValues.ours(given);
    String flash = options.get(FLASH);
    if (flash == null) {
      throw new ConfigException(
          FLASH + " is missing: set it to PATH:SIZE, such as /flash/rows:200GiB");
    }
    devices = OptionValues.devices(FLASH, flash, MIN_FLASH);
    dir = Paths.get(options.getOrDefault(DIR, devices.get(0).path + ".meta"));
    memory =
        OptionValues.atLeast(
            MEMORY,
            OptionValues.size(MEMORY, options.get(MEMORY), Math.max(rowCacheSize, MIN_MEMORY)),
            MIN_MEMORY);
    reads = (int) OptionValues.number(READS, options.get(READS), 256, 1, 65536);
    writeBudget = OptionValues.size(WRITE_BUDGET, options.get(WRITE_BUDGET), 0);
    tables = OptionValues.tables(options, ALLOW, DENY);
    nativeDir = OptionValues.nativeDir(options);
  }

  /** Whether rows of this table may be cached, as far as these options say. */
  boolean allows(String keyspace, String table) {
    return tables.allows(keyspace, table);
  }

  /** Bytes of flash. */
  long flash() {
    return devices.stream().mapToLong(device -> device.size).sum();
  }

  /** What the engine is told. */
  String engine() {
    StringBuilder text = new StringBuilder();
    text.append("data_dir=").append(dir).append('\n');
    devices.forEach(device -> text.append(device.line()));
    text.append("memory=").append(memory).append('\n');
    // Only removals of whole tables are journalled.
    text.append("journal=").append(1 << 20).append('\n');
    text.append("reads=").append(reads).append('\n');
    if (writeBudget > 0) {
      text.append("write_budget=").append(writeBudget).append('\n');
    }
    text.append("flags=").append(Native.SURVIVES_CLEAN_STOP_ONLY).append('\n');
    return text.toString();
  }
}
