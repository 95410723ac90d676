package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Values over the real engine. */
class FlashStoreTest {
  private static long hits(FlashStore store) {
    return store.stats().entrySet().stream()
        .filter(figure -> figure.getKey().startsWith("rows.hits."))
        .mapToLong(figure -> figure.getValue())
        .sum();
  }

  @Test
  void aValueOfAnyLengthIsLookedUpOnce(@TempDir Path dir) throws Exception {
    Native.load(dir.resolve("native"));
    String config = "data_dir=%s\ndevice=%s:%d\nmemory=%d\njournal=%d\nsegment=%d\nflags=2\n";
    FlashStore store =
        new FlashStore(
            String.format(config, dir, dir.resolve("flash"), 64 << 20, 64 << 20, 1 << 20, 4 << 20));
    int lookups = 0;
    for (int length : new int[] {1, 64 << 10, 100 << 10, 256 << 10, 300 << 10, 1000 << 10}) {
      byte[] key = ("key " + length).getBytes(StandardCharsets.UTF_8);
      byte[] value = new byte[length];
      new Random(length).nextBytes(value);
      assertTrue(store.put(key, value, length, 1));
      ByteBuffer found = store.get(key);
      byte[] bytes = new byte[found.remaining()];
      found.get(bytes);
      assertArrayEquals(value, bytes);
      assertEquals(++lookups, hits(store), "length " + length);
    }
  }
}
