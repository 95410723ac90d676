package io.afterglow.cassandra;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;

/**
 * What the plug-in changes in the tree of a stock Cassandra. It adds a jar, a properties file,
 * three lines of cassandra.yaml for the row cache, and two of cassandra-env.sh for the chunk cache.
 */
final class Installation {
  private static final String JAR = "afterglow-cassandra.jar";
  private static final String ADDED = "# afterglow: added, `remove` takes it out";
  private static final String AWAY = "# afterglow: was ";

  private final Path lib;
  private final Path yaml;
  private final Path environment;
  private final Path properties;

  Installation(Path home) throws ConfigException {
    lib = home.resolve("lib");
    // A package of a distribution has its configuration elsewhere, and links to it.
    yaml = home.resolve("conf").resolve("cassandra.yaml");
    environment = yaml.resolveSibling("cassandra-env.sh");
    properties = yaml.resolveSibling("afterglow.properties");
    if (!Files.isDirectory(lib) || !Files.isRegularFile(yaml)) {
      throw new ConfigException(home + " is no Cassandra: it has no lib or no conf/cassandra.yaml");
    }
  }

  void install(Path jar, String flash) throws IOException, ConfigException {
    Properties given = new Properties();
    given.setProperty("afterglow.rowcache.flash", flash);
    // Refuses what the node would refuse.
    new Options(given, 0);
    List<String> lines = without(Files.readAllLines(yaml, StandardCharsets.UTF_8));
    String size = "row_cache_size";
    List<String> changed = new ArrayList<>();
    for (String line : lines) {
      if (line.startsWith("row_cache_class_name:") || line.matches("row_cache_size(_in_mb)?:.*")) {
        changed.add(AWAY + line);
      } else {
        changed.add(line);
      }
      if (line.matches("#? ?row_cache_size_in_mb:.*")) {
        size = "row_cache_size_in_mb";
      }
    }
    changed.add(ADDED);
    changed.add("row_cache_class_name: io.afterglow.cassandra.FlashRowCacheProvider");
    changed.add(size + (size.equals("row_cache_size") ? ": 256MiB" : ": 256"));
    option("afterglow.rowcache.flash", flash);
    Files.copy(jar, lib.resolve(JAR), StandardCopyOption.REPLACE_EXISTING);
    replace(yaml, changed);
    System.out.println(
        "installed. Restart the node, then: java -jar "
            + JAR
            + " verify. Tables are cached that say so:\n"
            + "  ALTER TABLE ks.t WITH caching = {'keys': 'ALL', 'rows_per_partition': 'ALL'};");
  }

  void installChunks(Path jar, String flash) throws IOException, ConfigException {
    Properties given = new Properties();
    given.setProperty(ChunkOptions.FLASH, flash);
    new ChunkOptions(given);
    if (!Files.isRegularFile(environment)) {
      throw new ConfigException(
          "there is no " + environment + ": add the agent to the JVM options");
    }
    List<String> lines = without(Files.readAllLines(environment, StandardCharsets.UTF_8));
    lines.add(ADDED);
    lines.add("JVM_OPTS=\"$JVM_OPTS -javaagent:$CASSANDRA_HOME/lib/" + JAR + "\"");
    option(ChunkOptions.FLASH, flash);
    Files.copy(jar, lib.resolve(JAR), StandardCopyOption.REPLACE_EXISTING);
    replace(environment, lines);
    System.out.println("installed. Restart the node, then: java -jar " + JAR + " verify");
  }

  /** A properties file in which every option is explained and none is set. */
  static List<String> explained() throws IOException {
    try (BufferedReader lines =
        new BufferedReader(
            new InputStreamReader(
                Installation.class.getResourceAsStream("options.properties"),
                StandardCharsets.UTF_8))) {
      return lines.lines().collect(Collectors.toList());
    }
  }

  /** Sets an option that is not set yet. */
  private void option(String name, String value) throws IOException {
    List<String> lines =
        Files.exists(properties)
            ? Files.readAllLines(properties, StandardCharsets.UTF_8)
            : explained();
    if (lines.stream().anyMatch(line -> line.startsWith(name))) {
      System.out.println(properties + " has " + name + " already and stays as it is");
      return;
    }
    int place = 0;
    while (place < lines.size() && !lines.get(place).startsWith("#" + name + "=")) {
      place++;
    }
    if (place < lines.size()) {
      lines.set(place, name + "=" + value);
    } else {
      lines.add(name + "=" + value);
    }
    Files.write(properties, lines, StandardCharsets.UTF_8);
  }

  void remove() throws IOException {
    // A node whose agent is gone would not start: first the line, then the jar.
    if (Files.isRegularFile(environment)) {
      List<String> lines = Files.readAllLines(environment, StandardCharsets.UTF_8);
      if (lines.contains(ADDED)) {
        replace(environment, without(lines));
      }
    }
    replace(yaml, without(Files.readAllLines(yaml, StandardCharsets.UTF_8)));
    Files.deleteIfExists(lib.resolve(JAR));
    System.out.println(
        "removed. " + properties + " and the flash files stay: delete them if nobody needs them");
  }

  /** The lines as they were before. */
  private static List<String> without(List<String> lines) {
    List<String> before = new ArrayList<>();
    for (int n = 0; n < lines.size(); n++) {
      String line = lines.get(n);
      if (line.equals(ADDED)) {
        // Two lines in cassandra.yaml, one in cassandra-env.sh.
        n += n + 1 < lines.size() && lines.get(n + 1).startsWith("JVM_OPTS") ? 1 : 2;
      } else {
        before.add(line.startsWith(AWAY) ? line.substring(AWAY.length()) : line);
      }
    }
    return before;
  }

  private static void replace(Path file, List<String> lines) throws IOException {
    Path temporary = file.resolveSibling(file.getFileName() + ".afterglow");
    Files.copy(
        file, temporary, StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.COPY_ATTRIBUTES);
    Files.write(temporary, lines, StandardCharsets.UTF_8);
    Files.move(temporary, file.toRealPath(), StandardCopyOption.REPLACE_EXISTING);
  }
}
