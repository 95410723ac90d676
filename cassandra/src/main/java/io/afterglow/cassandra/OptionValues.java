package io.afterglow.cassandra;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

/** Where options come from and how their values are written, for both caches. */
final class OptionValues {
  private static final String BESIDE_YAML = "afterglow.properties";

  /** A file or block device, and how many bytes of it to use. */
  static final class Device {
    final String path;
    final long size;

    Device(String path, long size) {
      this.path = path;
      this.size = size;
    }

    /** The line of the engine's configuration. */
    String line() {
      return "device=" + path + ':' + size + '\n';
    }
  }

  /** Which tables may be cached. */
  static final class TableLists {
    /** Empty: all. */
    private final Set<String> allow;

    private final Set<String> deny;

    TableLists(Set<String> allow, Set<String> deny) {
      this.allow = allow;
      this.deny = deny;
    }

    boolean allows(String keyspace, String table) {
      String name = keyspace + "." + table;
      String all = keyspace + ".*";
      boolean allowed = allow.isEmpty() || allow.contains(name) || allow.contains(all);
      return allowed && !deny.contains(name) && !deny.contains(all);
    }
  }

  private OptionValues() {}

  /** The properties file, if there is one, with the command line over it. */
  static Properties read() throws IOException, ConfigException {
    Properties properties = new Properties();
    try (InputStream file = propertiesFile()) {
      if (file != null) {
        properties.load(file);
      }
    }
    Properties system = System.getProperties();
    for (String name : system.stringPropertyNames()) {
      if (name.startsWith("afterglow.")) {
        properties.setProperty(name, system.getProperty(name));
      }
    }
    return properties;
  }

  private static InputStream propertiesFile() throws IOException, ConfigException {
    String named = System.getProperty(OptionNames.FILE);
    if (named != null) {
      Path path = Paths.get(named);
      if (!Files.isReadable(path)) {
        throw new ConfigException(OptionNames.FILE + ": cannot read " + path);
      }
      return Files.newInputStream(path);
    }
    String yaml = System.getProperty("cassandra.config", "");
    if (yaml.startsWith("file:")) {
      File beside = new File(new File(URI.create(yaml).getPath()).getParentFile(), BESIDE_YAML);
      if (beside.canRead()) {
        return Files.newInputStream(beside.toPath());
      }
    }
    // The folder of cassandra.yaml is on the class path.
    return OptionValues.class.getClassLoader().getResourceAsStream(BESIDE_YAML);
  }

  /** Those of ours; one that is known to neither cache is refused. */
  static Map<String, String> ours(Properties given) throws ConfigException {
    Set<String> known = OptionNames.known();
    known.add(OptionNames.FILE);
    Map<String, String> options = new HashMap<>();
    for (String name : given.stringPropertyNames()) {
      if (!name.startsWith("afterglow.")) {
        continue;
      }
      if (!known.contains(name)) {
        throw new ConfigException("there is no option " + name + "; there are " + known);
      }
      options.put(name, given.getProperty(name).trim());
    }
    return options;
  }

  /** {@code PATH:SIZE} with commas. */
  static List<Device> devices(String name, String text, long least) throws ConfigException {
    List<Device> devices = new ArrayList<>();
    for (String part : text.split(",")) {
      int colon = part.lastIndexOf(':');
      if (colon <= 0) {
        throw new ConfigException(
            name + ": " + part + " is not PATH:SIZE, such as /flash/rows:200GiB");
      }
      String path = part.substring(0, colon).trim();
      if (!Paths.get(path).isAbsolute()) {
        throw new ConfigException(name + ": " + path + " must be an absolute path");
      }
      long size = size(name, part.substring(colon + 1).trim(), 0) / 4096 * 4096;
      devices.add(new Device(path, atLeast(name, size, least)));
    }
    return Collections.unmodifiableList(devices);
  }

  static long atLeast(String name, long value, long least) throws ConfigException {
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

  static long number(String name, String text, long otherwise, long least, long most)
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

  /** Where the native library is put. */
  static Path nativeDir(Map<String, String> options) {
    return Paths.get(
        options.getOrDefault(OptionNames.NATIVE_DIR, System.getProperty("java.io.tmpdir")));
  }

  static boolean flag(String name, String text) throws ConfigException {
    if (text == null || text.equals("false")) {
      return false;
    }
    if (text.equals("true")) {
      return true;
    }
    throw new ConfigException(name + ": " + text + " is neither true nor false");
  }

  /** The lists that these two options are. */
  static TableLists tables(Map<String, String> options, String allow, String deny)
      throws ConfigException {
    return new TableLists(tables(allow, options.get(allow)), tables(deny, options.get(deny)));
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
}
