package io.afterglow.cassandra;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** What both caches are told of their flash, under names that begin with the cache's own. */
abstract class FlashOptions {
  private final String cache;
  private final Map<String, String> given;

  final List<OptionValues.Device> devices;
  final Path dir;
  final long memory;
  final int reads;

  /** The longest that a read of flash is waited for, in milliseconds. */
  final int timeout;

  /** Bytes per second, 0 for no limit. */
  final long writeBudget;

  final OptionValues.TableLists tables;
  final Path nativeDir;

  /** What differs between the caches. */
  static final class Bounds {
    final String example;
    final long minFlash;
    final long minMemory;
    final long memory;
    final int reads;

    /**
     * @param example of devices, for who names none
     * @param memory and {@code reads} are what is taken where nothing is said
     */
    Bounds(String example, long minFlash, long minMemory, long memory, int reads) {
      this.example = example;
      this.minFlash = minFlash;
      this.minMemory = minMemory;
      this.memory = memory;
      this.reads = reads;
    }
  }

  /**
   * Checks everything.
   *
   * @param cache what its names begin with, the dot included
   * @param properties all properties; those of other programs are ignored
   */
  FlashOptions(String cache, Properties properties, Bounds bounds) throws ConfigException {
    this.cache = cache;
    given = OptionValues.ours(properties);
    String flash = get("flash");
    if (flash == null) {
      throw new ConfigException(
          name("flash") + " is missing: set it to PATH:SIZE, such as " + bounds.example);
    }
    devices = OptionValues.devices(name("flash"), flash, bounds.minFlash);
    String first = devices.get(0).path;
    if (get("dir") == null && first.startsWith("/dev/")) {
      throw new ConfigException(
          name("dir") + " is missing: " + first + " is a device, set it to a folder on a drive");
    }
    dir = Paths.get(given.getOrDefault(name("dir"), first + ".meta"));
    memory = size("memory", bounds.memory, bounds.minMemory);
    reads = number("reads", bounds.reads, 1, 65536);
    timeout = number("timeout", 250, 10, 60_000);
    writeBudget = OptionValues.size(name("write-budget"), get("write-budget"), 0);
    tables = OptionValues.tables(given, name("tables.allow"), name("tables.deny"));
    nativeDir = OptionValues.nativeDir(given);
  }

  private String name(String own) {
    return cache + own;
  }

  private String get(String own) {
    return given.get(name(own));
  }

  final long size(String own, long otherwise, long least) throws ConfigException {
    long size = OptionValues.size(name(own), get(own), otherwise);
    return OptionValues.atLeast(name(own), size, least);
  }

  final int number(String own, int otherwise, int least, int most) throws ConfigException {
    return (int) OptionValues.number(name(own), get(own), otherwise, least, most);
  }

  final boolean flag(String own) throws ConfigException {
    return OptionValues.flag(name(own), get(own));
  }

  /**
   * Makes the folder of journal and lock. Those that the files of flash are to be in must be there:
   * a missing one is most likely a drive that is not mounted.
   */
  final void makeDir() throws ConfigException {
    for (OptionValues.Device device : devices) {
      Path folder = Paths.get(device.path).getParent();
      if (!Files.isDirectory(folder)) {
        throw new ConfigException(
            name("flash")
                + ": there is no folder "
                + folder
                + ": make it, or mount the drive that belongs there");
      }
    }
    try {
      Files.createDirectories(dir);
    } catch (IOException e) {
      throw new ConfigException(
          "cannot make the folder "
              + dir
              + " ("
              + e
              + "): it must be one that the user of Cassandra may write to, or set "
              + name("dir")
              + " to another");
    }
  }

  /** Bytes of flash. */
  final long flash() {
    return devices.stream().mapToLong(device -> device.size).sum();
  }

  /**
   * What the engine is told.
   *
   * @param own lines of this cache alone
   */
  final String engine(int flags, String own) {
    StringBuilder text = new StringBuilder(own);
    text.append("data_dir=").append(dir).append('\n');
    devices.forEach(device -> text.append(device.line()));
    text.append("memory=").append(memory).append('\n');
    // Only removals of whole tables and SSTables are journalled.
    text.append("journal=").append(1 << 20).append('\n');
    text.append("reads=").append(reads).append('\n');
    text.append("timeout=").append(timeout).append('\n');
    if (writeBudget > 0) {
      text.append("write_budget=").append(writeBudget).append('\n');
    }
    text.append("flags=").append(flags).append('\n');
    return text.toString();
  }
}
