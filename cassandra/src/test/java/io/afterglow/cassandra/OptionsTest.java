package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class OptionsTest {
  private static Options options(String... pairs) throws ConfigException {
    Properties properties = new Properties();
    properties.setProperty("somebody.else", "anything");
    for (int n = 0; n < pairs.length; n += 2) {
      properties.setProperty(pairs[n], pairs[n + 1]);
    }
    return new Options(properties, 64L << 20);
  }

  @Test
  void everythingHasADefaultButTheFlash() throws ConfigException {
    Options options = options("afterglow.rowcache.flash", "/flash/rows:1GiB, /dev/sdz:64MiB");
    assertEquals(2, options.devices.size());
    assertEquals("/dev/sdz", options.devices.get(1).path);
    assertEquals((1L << 30) + (64 << 20), options.flash());
    assertEquals("/flash/rows.meta", options.dir.toString());
    assertEquals(64 << 20, options.memory, "row_cache_size");
    assertTrue(options.allows("any", "table"));
    assertTrue(options.engine().contains("device=/flash/rows:1073741824\n"), options.engine());
  }

  @Test
  void listsSayWhichTablesMayBeCached() throws ConfigException {
    Options options =
        options(
            "afterglow.rowcache.flash", "/f:1GiB",
            "afterglow.rowcache.tables.allow", "a.*, b.t",
            "afterglow.rowcache.tables.deny", "a.secret");
    assertTrue(options.allows("a", "x"));
    assertTrue(options.allows("b", "t"));
    assertFalse(options.allows("b", "x"));
    assertFalse(options.allows("a", "secret"));
  }

  @ParameterizedTest
  @CsvSource({
    "afterglow.rowcache.flash, flash:1GiB, must be an absolute path",
    "afterglow.rowcache.flash, /flash, is not PATH:SIZE",
    "afterglow.rowcache.flash, /flash:1GB, is not a size",
    "afterglow.rowcache.flash, /flash:1MiB, too few",
    "afterglow.rowcache.memory, 9999999999TiB, is not a size",
    "afterglow.rowcache.memory, 1MiB, at least 16MiB",
    "afterglow.rowcache.reads, 0, is not a number from 1 to 65536",
    "afterglow.rowcache.tables.allow, t, is not KEYSPACE.TABLE",
    "afterglow.rowcache.falsh, /f:1GiB, there is no option afterglow.rowcache.falsh",
  })
  void whatIsWrongIsNamed(String name, String value, String why) {
    ConfigException e =
        assertThrows(
            ConfigException.class,
            () -> options("afterglow.rowcache.flash", "/f:1GiB", name, value));
    assertTrue(e.getMessage().contains(name) && e.getMessage().contains(why), e.getMessage());
  }

  @Test
  void aFolderThatIsMissingIsNotMade(@TempDir Path there) throws Exception {
    String missing = there.resolve("not-mounted").resolve("rows").toString();
    ConfigException e =
        assertThrows(
            ConfigException.class,
            () -> options("afterglow.rowcache.flash", missing + ":1GiB").makeDir());
    assertTrue(e.getMessage().contains("there is no folder " + there), e.getMessage());
    assertFalse(Files.exists(there.resolve("not-mounted")));
    options("afterglow.rowcache.flash", there.resolve("rows") + ":1GiB").makeDir();
    assertTrue(Files.isDirectory(there.resolve("rows.meta")));
  }

  @Test
  void aFolderThatCannotBeMadeIsNamed(@TempDir Path there) throws Exception {
    Path file = Files.createFile(there.resolve("file"));
    ConfigException e =
        assertThrows(
            ConfigException.class,
            () ->
                options(
                        "afterglow.rowcache.flash",
                        there.resolve("rows") + ":1GiB",
                        "afterglow.rowcache.dir",
                        file.resolve("journal").toString())
                    .makeDir());
    assertTrue(e.getMessage().contains("cannot make the folder " + file), e.getMessage());
    assertTrue(e.getMessage().contains("set afterglow.rowcache.dir"), e.getMessage());
  }

  @Test
  void aDeviceHasNoPlaceForTheJournal() throws ConfigException {
    ConfigException e =
        assertThrows(
            ConfigException.class, () -> options("afterglow.rowcache.flash", "/dev/sdz:1GiB"));
    assertTrue(e.getMessage().contains("afterglow.rowcache.dir is missing"), e.getMessage());
    options("afterglow.rowcache.flash", "/dev/sdz:1GiB", "afterglow.rowcache.dir", "/flash/meta");
  }

  @Test
  void theFlashMustBeNamed() {
    ConfigException e = assertThrows(ConfigException.class, () -> options());
    assertTrue(e.getMessage().contains("afterglow.rowcache.flash is missing"), e.getMessage());
  }
}
