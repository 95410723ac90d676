package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Collections;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CassandraFilesTest {
  private static final String ID = "0123456789abcdef0123456789abcdef";
  private static final String NAME = "k/t-" + ID + "/nb-1-big-Data.db";

  @TempDir Path dir;
  private Path data;
  private Path digest;
  private Path statistics;

  @BeforeEach
  void aFinishedTable() throws IOException {
    data = dir.resolve("nb-1-big-Data.db");
    digest = dir.resolve("nb-1-big-Digest.crc32");
    statistics = dir.resolve("nb-1-big-Statistics.db");
    Files.write(data, new byte[100]);
    Files.write(digest, "12345\n".getBytes());
    Files.write(statistics, new byte[10]);
  }

  private String describe(long open) throws IOException {
    return CassandraFiles.describe(data, NAME, "plain", open);
  }

  @Test
  void whateverChangesMakesAnotherFile() throws IOException {
    String before = describe(100);
    assertEquals(before, describe(100));
    assertNotEquals(before, CassandraFiles.describe(data, NAME, "decompressed", 100));
    assertNotEquals(before, CassandraFiles.describe(data, "k/u-" + ID + "/x", "plain", 100));

    Files.write(digest, "12346\n".getBytes());
    assertNotEquals(before, describe(100));
    Files.write(digest, "12345\n".getBytes());
    assertEquals(before, describe(100));

    FileTime time = Files.getLastModifiedTime(data);
    Files.setLastModifiedTime(data, FileTime.fromMillis(time.toMillis() + 1000));
    assertNotEquals(before, describe(100));
    Files.setLastModifiedTime(data, time);
    assertEquals(before, describe(100));

    // The same name, length, time and digest, but another file.
    Path other = dir.resolve("other");
    Files.write(other, new byte[100]);
    Files.setLastModifiedTime(other, time);
    Files.delete(data);
    Files.move(other, data);
    assertNotEquals(before, describe(100));
    assertFalse(ChunkIdentity.of(before).same(ChunkIdentity.of(describe(100))));
  }

  @Test
  void whatIsNotFinishedOrNotTheOpenFileHasNoIdentity() throws IOException {
    assertNull(describe(99), "another file is open than the one of this name");
    Files.write(digest, new byte[0]);
    assertNull(describe(100));
    Files.delete(digest);
    assertNull(describe(100));
    Files.write(digest, "12345".getBytes());
    Files.delete(statistics);
    assertNull(describe(100));
  }

  @Test
  void onlyDataOfUsersTablesIsCached() {
    OptionValues.TableLists all =
        new OptionValues.TableLists(Collections.emptySet(), Collections.singleton("k.secret"));
    CassandraFiles files = new CassandraFiles(all, () -> {});
    assertEquals(NAME, files.cached("/var/lib/cassandra/data/" + NAME));
    String index = "k/t-" + ID + "/.by_name/nb-1-big-Data.db";
    assertEquals(index, files.cached("/d/" + index));
    assertNull(files.cached("/d/k/t-" + ID + "/nb-1-big-Index.db"));
    assertNull(files.cached("/d/k/secret-" + ID + "/nb-1-big-Data.db"));
    assertNull(files.cached("/d/system_schema/tables-" + ID + "/nb-1-big-Data.db"));
    assertNull(files.cached("/d/k/t-" + ID + "/snapshots/s/nb-1-big-Data.db"));
    assertNull(files.cached("/tmp/nb-1-big-Data.db"));
  }
}
