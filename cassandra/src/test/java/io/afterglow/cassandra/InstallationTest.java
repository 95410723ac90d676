package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class InstallationTest {
  @TempDir Path home;

  private Path yaml;

  private void tree(String... lines) throws Exception {
    yaml = home.resolve("conf").resolve("cassandra.yaml");
    Files.createDirectories(yaml.getParent());
    Files.createDirectories(home.resolve("lib"));
    Files.write(yaml, Arrays.asList(lines), StandardCharsets.UTF_8);
  }

  private Path jar() throws Exception {
    return Files.write(home.resolve("some.jar"), new byte[10]);
  }

  private List<String> active() throws Exception {
    return Files.readAllLines(yaml).stream()
        .filter(line -> line.startsWith("row_cache"))
        .collect(Collectors.toList());
  }

  private List<String> set() throws Exception {
    return Files.readAllLines(home.resolve("conf/afterglow.properties")).stream()
        .filter(line -> !line.isEmpty() && !line.startsWith("#"))
        .collect(Collectors.toList());
  }

  @Test
  void whatIsInstalledTwiceAndRemovedLeavesTheTreeAsItWas() throws Exception {
    String[] stock = {"a: 1", "# row_cache_class_name: org.x.Y", "row_cache_size: 0MiB", "z: 2"};
    tree(stock);
    for (int n = 0; n < 2; n++) {
      new Installation(home).install(jar(), "/flash/rows:1GiB");
      assertEquals(
          Arrays.asList(
              "row_cache_class_name: io.afterglow.cassandra.FlashRowCacheProvider",
              "row_cache_size: 256MiB"),
          active());
    }
    assertTrue(Files.exists(home.resolve("lib/afterglow-cassandra.jar")));
    assertEquals(Arrays.asList("afterglow.rowcache.flash=/flash/rows:1GiB"), set());
    new Installation(home).remove();
    assertEquals(Arrays.asList(stock), Files.readAllLines(yaml));
    assertFalse(Files.exists(home.resolve("lib/afterglow-cassandra.jar")));
  }

  @Test
  void theChunkCacheIsALineOfTheEnvironmentAndGoesWithItsJar() throws Exception {
    String[] stock = {"row_cache_size: 0MiB"};
    tree(stock);
    assertThrows(
        ConfigException.class,
        () -> new Installation(home).installChunks(jar(), "/flash/chunks:1GiB"),
        "no cassandra-env.sh");
    Path environment = home.resolve("conf/cassandra-env.sh");
    Files.write(environment, Arrays.asList("JVM_OPTS=\"$JVM_OPTS -ea\"", "# end"));
    new Installation(home).install(jar(), "/flash/rows:1GiB");
    for (int n = 0; n < 2; n++) {
      new Installation(home).installChunks(jar(), "/flash/chunks:1GiB");
      List<String> lines = Files.readAllLines(environment);
      assertEquals(4, lines.size(), lines.toString());
      assertEquals(
          "JVM_OPTS=\"$JVM_OPTS -javaagent:$CASSANDRA_HOME/lib/afterglow-cassandra.jar\"",
          lines.get(3));
    }
    assertEquals(
        Arrays.asList(
            "afterglow.rowcache.flash=/flash/rows:1GiB",
            "afterglow.chunkcache.flash=/flash/chunks:1GiB"),
        set());
    new Installation(home).remove();
    assertEquals(
        Arrays.asList("JVM_OPTS=\"$JVM_OPTS -ea\"", "# end"), Files.readAllLines(environment));
    assertEquals(Arrays.asList(stock), Files.readAllLines(yaml));
    assertFalse(Files.exists(home.resolve("lib/afterglow-cassandra.jar")));
  }

  @Test
  void cassandra40HasItsOwnNameForTheSize() throws Exception {
    tree("row_cache_size_in_mb: 0");
    new Installation(home).install(jar(), "/flash/rows:1GiB");
    assertTrue(active().contains("row_cache_size_in_mb: 256"), active().toString());
  }

  @Test
  void aPropertiesFileThatIsThereStaysAndGetsTheOption() throws Exception {
    tree("row_cache_size: 0MiB");
    Path properties = home.resolve("conf/afterglow.properties");
    Files.write(properties, Arrays.asList("afterglow.rowcache.reads=8"));
    new Installation(home).install(jar(), "/flash/rows:1GiB");
    assertEquals(
        Arrays.asList("afterglow.rowcache.reads=8", "afterglow.rowcache.flash=/flash/rows:1GiB"),
        Files.readAllLines(properties));
  }

  @Test
  void nothingIsTouchedWhenSomethingIsWrong() throws Exception {
    assertThrows(ConfigException.class, () -> new Installation(home));
    tree("row_cache_size: 0MiB");
    assertThrows(ConfigException.class, () -> new Installation(home).install(jar(), "rows"));
    assertEquals(Arrays.asList("row_cache_size: 0MiB"), Files.readAllLines(yaml));
    assertFalse(Files.exists(home.resolve("conf/afterglow.properties")));
  }
}
