package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Properties;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ChunkOptionsTest {
  private static ChunkOptions options(String... pairs) throws ConfigException {
    Properties properties = new Properties();
    for (int n = 0; n < pairs.length; n += 2) {
      properties.setProperty("afterglow.chunkcache." + pairs[n], pairs[n + 1]);
    }
    return new ChunkOptions(properties);
  }

  @Test
  void everythingHasADefaultButTheFlash() throws ConfigException {
    ChunkOptions options = options("flash", "/flash/chunks:1GiB,/dev/sdz:64MiB");
    assertEquals("/flash/chunks.meta", options.dir.toString());
    assertEquals(2, options.admit);
    assertFalse(options.verify || options.compress);
    assertTrue(options.engine().contains("namespace=chunks\n"), options.engine());
    assertTrue(options.engine().contains("flags=1\n"), options.engine());
  }

  @Test
  void aSegmentTakesLargeChunksHoweverSmallTheFlash() throws ConfigException {
    assertTrue(options("flash", "/f:64MiB").engine().contains("segment=1048576\n"));
    assertTrue(options("flash", "/f:1GiB").engine().contains("segment=4194304\n"));
    assertTrue(options("flash", "/f:1TiB").engine().contains("segment=16777216\n"));
  }

  @ParameterizedTest
  @CsvSource({
    "flash, chunks:1GiB, must be an absolute path",
    "flash, /flash:32MiB, at least 64MiB",
    "memory, 16MiB, at least 32MiB",
    "queue, 1KiB, at least 1MiB",
    "reads, many, is not a number from 1 to 65536",
    "admit, 0, is not a number from 1 to 15",
    "compress, yes, is neither true nor false",
    "verify, 1, is neither true nor false",
    "tables.deny, t, is not KEYSPACE.TABLE",
    "quue, 1MiB, there is no option afterglow.chunkcache.quue",
  })
  void whatIsWrongIsNamed(String name, String value, String why) {
    ConfigException e =
        assertThrows(ConfigException.class, () -> options("flash", "/f:1GiB", name, value));
    assertTrue(e.getMessage().contains("afterglow.chunkcache." + name), e.getMessage());
    assertTrue(e.getMessage().contains(why), e.getMessage());
  }
}
