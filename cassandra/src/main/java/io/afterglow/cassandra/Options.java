package io.afterglow.cassandra;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;

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
  private static final String NATIVE_DIR = "afterglow.native.dir";

  /** Where the properties file is; only on the command line. */
  static final String FILE = "afterglow.config";

  private static final Set<String> KNOWN =
      new HashSet<>(
          Arrays.asList(FLASH, DIR, MEMORY, READS, WRITE_BUDGET, ALLOW, DENY, NATIVE_DIR, FILE));

  private static final long MIN_MEMORY = 16L << 20;
  private static final long MIN_FLASH = 32L << 20;

  /** A file or block device, and how many bytes of it to use. */
  static final class Device {
    final String path;
    final long size;

    Device(String path, long size) {
      this.path = path;
      this.size = size;
    }
  }

  final List<Device> devices;
  final Path dir;
  final long memory;
  final int reads;

  /** Bytes per second, 0 for no limit. */
  final long writeBudget;

  /** Empty: all. */
  final Set<String> allow;

  final Set<String> deny;
  final Path nativeDir;

  /**
   * Checks everything.
   *
   * @param given all properties; those of other programs are ignored
   * @param rowCacheSize what cassandra.yaml says, in bytes: the default of the memory
   */
  Options(Properties given, long rowCacheSize) throws ConfigException {
    Map<String, String> options = ours(given);
    String flash = options.get(FLASH);
    if (flash == null) {
      throw new ConfigException(
          FLASH + " is missing: set it to PATH:SIZE, such as /flash/rows:200GiB");
    }
    devices = devices(flash);
    dir = Paths.get(options.getOrDefault(DIR, devices.get(0).path + ".meta"));
    memory =
        atLeast(
            MEMORY,
            size(MEMORY, options.get(MEMORY), Math.max(rowCacheSize, MIN_MEMORY)),
            MIN_MEMORY);
    reads = (int) number(READS, options.get(READS), 256, 1, 65536);
    writeBudget = size(WRITE_BUDGET, options.get(WRITE_BUDGET), 0);
    allow = tables(ALLOW, options.get(ALLOW));
    deny = tables(DENY, options.get(DENY));
    nativeDir = Paths.get(options.getOrDefault(NATIVE_DIR, System.getProperty("java.io.tmpdir")));
  }

  private static Map<String, String> ours(Properties given) throws ConfigException {
    Map<String, String> options = new HashMap<>();
    for (String name : given.stringPropertyNames()) {
      if (!name.startsWith("afterglow.")) {
        continue;
      }
      if (!KNOWN.contains(name)) {
        throw new ConfigException(
            "there is no option " + name + "; there are " + new TreeSet<>(KNOWN));
      }
      options.put(name, given.getProperty(name).trim());
    }
    return options;
  }

  private static List<Device> devices(String text) throws ConfigException {
    List<Device> devices = new ArrayList<>();
    for (String part : text.split(",")) {
      int colon = part.lastIndexOf(':');
      if (colon <= 0) {
        throw new ConfigException(
            FLASH + ": " + part + " is not PATH:SIZE, such as /flash/rows:200GiB");
      }
      String path = part.substring(0, colon).trim();
      if (!Paths.get(path).isAbsolute()) {
        throw new ConfigException(FLASH + ": " + path + " must be an absolute path");
      }
      long size = size(FLASH, part.substring(colon + 1).trim(), 0) / 4096 * 4096;
      devices.add(new Device(path, atLeast(FLASH, size, MIN_FLASH)));
    }
    return Collections.unmodifiableList(devices);
  }

  private static long atLeast(String name, long value, long least) throws ConfigException {
    if (value < least) {
      throw new ConfigException(
          name + ": " + value + " bytes are too few, give at least " + (least >> 20) + "MiB");
    }
    return value;
  }

  /** Bytes, or a number with KiB, MiB, GiB or TiB. */
  static long size(String name, String text, long otherwise) throws ConfigException {
    if (text == null) {
      return otherwise;
    }
    String[] units = {"KiB", "MiB", "GiB", "TiB"};
    int shift = 0;
    String digits = text;
    for (int n = 0; n < units.length; n++) {
      if (text.endsWith(units[n])) {
        shift = 10 * (n + 1);
        digits = text.substring(0, text.length() - 3).trim();
      }
    }
    try {
      long value = Long.parseLong(digits);
      if (value >= 0 && value <= Long.MAX_VALUE >> shift) {
        return value << shift;
      }
    } catch (NumberFormatException e) {
      // Said below.
    }
    throw new ConfigException(
        name + ": " + text + " is not a size, such as 512MiB, 200GiB or a number of bytes");
  }

  private static long number(String name, String text, long otherwise, long least, long most)
      throws ConfigException {
    if (text == null) {
      return otherwise;
    }
    try {
      long value = Long.parseLong(text);
      if (value >= least && value <= most) {
        return value;
      }
    } catch (NumberFormatException e) {
      // Said below.
    }
    throw new ConfigException(
        name + ": " + text + " is not a number from " + least + " to " + most);
  }

  private static Set<String> tables(String name, String text) throws ConfigException {
    Set<String> tables = new HashSet<>();
    if (text == null || text.isEmpty()) {
      return tables;
    }
    for (String table : text.split(",")) {
      if (!table.trim().matches("\\w+\\.(\\w+|\\*)")) {
        throw new ConfigException(
            name + ": " + table.trim() + " is not KEYSPACE.TABLE or KEYSPACE.*");
      }
      tables.add(table.trim());
    }
    return tables;
  }

  /** Whether rows of this table may be cached, as far as these options say. */
  boolean allows(String keyspace, String table) {
    String name = keyspace + "." + table;
    String all = keyspace + ".*";
    boolean allowed = allow.isEmpty() || allow.contains(name) || allow.contains(all);
    return allowed && !deny.contains(name) && !deny.contains(all);
  }

  /** Bytes of flash. */
  long flash() {
    return devices.stream().mapToLong(device -> device.size).sum();
  }

  /** What the engine is told. */
  String engine() {
    StringBuilder text = new StringBuilder();
    text.append("data_dir=").append(dir).append('\n');
    for (Device device : devices) {
      text.append("device=").append(device.path).append(':').append(device.size).append('\n');
    }
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
