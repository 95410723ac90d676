package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.cassandra.db.compaction.OperationType;
import org.apache.cassandra.notifications.SSTableAddedNotification;
import org.apache.cassandra.notifications.SSTableListChangedNotification;
import org.apache.cassandra.schema.TableId;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CassandraNodeTest {
  /** What this has run writes the marker of a clean stop, which the next start believes. */
  @Test
  void onlyADrainThatSucceededIsTold() {
    CassandraNode node = new CassandraNode(null);
    AtomicInteger told = new AtomicInteger();
    node.onDrained(told::incrementAndGet);
    node.afterDrain(false);
    assertEquals(0, told.get());
    node.afterDrain(true);
    assertEquals(1, told.get());
  }

  /** A clean stop and the next start may fail to read the same file, with another table behind. */
  @Test
  void whatCannotBeReadIsNotTheSameTwice(@TempDir Path dir) throws IOException {
    TableId id = TableId.fromUUID(UUID.randomUUID());
    Path folder = dir.resolve("ks").resolve("t-" + id.asUUID().toString().replace("-", ""));
    Files.createDirectories(folder);
    for (String part : Arrays.asList("Data.db", "Statistics.db")) {
      Files.write(folder.resolve("nb-1-big-" + part), new byte[10]);
    }
    // A folder cannot be read as a file, not even by root.
    Files.createDirectory(folder.resolve("nb-1-big-Digest.crc32"));
    String[] directories = {dir.toString()};
    Tables.State stopped = state(CassandraNode.sstables(directories, id));
    assertFalse(stopped.same(state(CassandraNode.sstables(directories, id))));

    // Nor as it comes back from the marker, whatever is wrong with the file.
    CleanMarker marker =
        new CleanMarker(
            "5.0", 1, Collections.singletonList(new CleanMarker.Kept(id.asUUID(), 1, stopped)));
    CleanMarker read = CleanMarker.decode(marker.encode());
    assertEquals(1, read.tables.get(0).state.sstables.size());
    assertFalse(read.tables.get(0).state.same(state(CassandraNode.sstables(directories, id))));
  }

  private static Tables.State state(List<String> sstables) {
    return new Tables.State("schema", sstables);
  }

  @Test
  void whatComesWithoutAFlushIsForeignAndACompactionIsNot() {
    List<String> told = new ArrayList<>();
    Tables.Listener listener =
        new Tables.Listener() {
          @Override
          public void came(Collection<String> sstables) {
            told.add("came");
          }

          @Override
          public void foreign() {
            told.add("foreign");
          }

          @Override
          public void replaced(Collection<String> old, Collection<String> made) {
            told.add("replaced");
          }
        };
    CassandraNode.tell(new SSTableAddedNotification(Collections.emptyList(), null), listener);
    CassandraNode.tell(
        new SSTableListChangedNotification(
            Collections.emptyList(), Collections.emptyList(), OperationType.COMPACTION),
        listener);
    assertEquals(Arrays.asList("foreign", "came", "replaced"), told);
  }
}
