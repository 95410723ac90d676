package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CleanMarkerTest {
  private static final UUID TABLE = UUID.randomUUID();
  private static final long LIMIT = 60_000;

  private static CleanMarker marker() {
    List<String> sstables = Arrays.asList("sstable /a/b 1 2 3", "sstable /a/c 4 5 6");
    return new CleanMarker(
        "5.0.5 messaging 13",
        9,
        Arrays.asList(
            new CleanMarker.Kept(TABLE, 7, new Tables.State("1700000000", sstables)),
            new CleanMarker.Kept(
                UUID.randomUUID(), 9, new Tables.State("none", Collections.emptyList()))));
  }

  @Test
  void whatIsWrittenIsTakenOnce(@TempDir Path dir) throws IOException {
    marker().write(dir, LIMIT);
    CleanMarker taken = CleanMarker.take(dir, LIMIT);
    assertEquals("5.0.5 messaging 13", taken.stamp);
    assertEquals(9, taken.lastGroup);
    assertEquals(TABLE, taken.tables.get(0).id);
    assertEquals(7, taken.tables.get(0).group);
    assertEquals(2, taken.tables.get(0).state.sstables.size());
    assertEquals(0, taken.tables.get(1).state.sstables.size());
    assertEquals("1700000000", taken.tables.get(0).state.schema);
    assertNull(CleanMarker.take(dir, LIMIT), "a second start without a clean stop");
  }

  /** Whoever opens a pipe waits for its other end. */
  @Test
  void aDriveThatHangsHoldsUpNeitherStartNorStop(@TempDir Path dir) throws Exception {
    for (String file : Arrays.asList("rows.clean", "rows.clean.new")) {
      String pipe = dir.resolve(file).toString();
      assertEquals(0, new ProcessBuilder("mkfifo", pipe).start().waitFor());
    }
    assertThrows(IOException.class, () -> CleanMarker.take(dir, 50));
    assertThrows(IOException.class, () -> marker().write(dir, 50));
  }

  @Test
  void aMarkerThatCannotBeWrittenIsAFailure(@TempDir Path dir) {
    assertThrows(IOException.class, () -> marker().write(dir.resolve("not there"), LIMIT));
  }

  @Test
  void noDamagedMarkerHolds() throws IOException {
    byte[] whole = marker().encode().getBytes(StandardCharsets.UTF_8);
    for (int n = 0; n < whole.length; n++) {
      byte[] damaged = whole.clone();
      damaged[n] ^= 4;
      String text = new String(damaged, StandardCharsets.UTF_8);
      CleanMarker found = null;
      try {
        found = CleanMarker.decode(text);
      } catch (RuntimeException e) {
        // As good as none: take() says so.
      }
      assertNull(found, "byte " + n);
    }
  }

  @Test
  void anSSTableIsKnownByWhatItHolds(@TempDir Path dir) throws IOException {
    String[] directories = {dir.toString()};
    Path folder = dir.resolve("ks").resolve("t-" + TABLE.toString().replace("-", ""));
    Files.createDirectories(folder.resolve("snapshots"));
    for (String part : Arrays.asList("Data.db", "Digest.crc32", "Statistics.db")) {
      Files.write(folder.resolve("nb-1-big-" + part), "one".getBytes(StandardCharsets.UTF_8));
    }
    // Not finished yet: no statistics.
    Files.write(folder.resolve("nb-2-big-Data.db"), new byte[10]);
    List<String> before = SSTables.list(directories, TABLE);
    assertEquals(1, before.size());
    assertEquals(before, SSTables.list(directories, TABLE));
    Files.write(folder.resolve("nb-1-big-Digest.crc32"), "two".getBytes(StandardCharsets.UTF_8));
    assertNotEquals(before, SSTables.list(directories, TABLE));
    assertEquals(0, SSTables.list(directories, UUID.randomUUID()).size());
    // One that was streamed has no table of contents, and a copied one may have no digest.
    for (String part : Arrays.asList("Data.db", "Statistics.db")) {
      Files.write(folder.resolve("nb-3-big-" + part), new byte[5]);
    }
    assertEquals(2, SSTables.list(directories, TABLE).size());
  }
}
