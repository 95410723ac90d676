package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.cassandra.schema.TableId;
import org.junit.jupiter.api.Test;

/** The tables without a cache behind them. */
class TablesTest {
  private static final TableId TABLE = TableId.fromUUID(UUID.randomUUID());
  private static final TableId OTHER = TableId.fromUUID(UUID.randomUUID());

  private final FakeNode node = new FakeNode();

  /** A read of the first may put its mark when the rows of that are gone already. */
  @Test
  void aTableThatIsMadeAgainWithItsIdBeginsEmpty() {
    Tables tables = new Tables(node, Runnable::run);
    List<Integer> emptied = new ArrayList<>();
    tables.onForeign(table -> emptied.add(table.group));
    int group = tables.cached(TABLE).group;
    node.dropped.add(TABLE);
    assertEquals(Collections.emptyList(), new ArrayList<>(tables.present()));
    assertNull(tables.cached(TABLE));
    assertEquals(1, tables.all().size(), "its number stays");
    assertEquals(Arrays.asList(group), emptied);
    node.dropped.clear();
    assertEquals(group, tables.cached(TABLE).group);
    assertEquals(Arrays.asList(group, group), emptied);
    assertEquals(1, tables.present().size());
  }

  /** Who watches a table may wait for the end of a DROP, which asks for the tables. */
  @Test
  void aDropWaitsForNobodyWhoWatches() throws Exception {
    Tables tables = new Tables(node, Runnable::run);
    assertNotNull(tables.cached(TABLE));
    node.dropped.add(TABLE);
    Barrier barrier = new Barrier();
    node.passage = barrier;
    ExecutorService reader = Executors.newSingleThreadExecutor();
    Future<Tables.Table> read = reader.submit(() -> tables.cached(TABLE));
    Barrier.await(barrier.reached);
    assertEquals(1, tables.present().size(), "it is left to the reader");
    barrier.opens.countDown();
    assertNull(read.get());
    assertEquals(0, node.watches);
    assertEquals(0, tables.present().size());
    reader.shutdown();
  }

  @Test
  void keptTablesThatWereAlteredMeanwhileAreEmpty() {
    Tables tables = new Tables(node, Runnable::run);
    tables.keep(TABLE, 3, new Tables.State("schema-0", node.sstables));
    Set<Integer> dropped = new HashSet<>();
    tables.onForeign(table -> dropped.add(table.group));
    assertNotNull(tables.cached(TABLE));
    assertEquals(Collections.singleton(3), dropped);
  }

  @Test
  void keptTablesAreComparedAgainWhenTheyAreFirstUsed() {
    Tables tables = new Tables(node, Runnable::run);
    tables.keep(TABLE, 3, new Tables.State("schema-1", node.sstables));
    tables.keep(OTHER, 5, new Tables.State("schema-1", Collections.singletonList("sstable two")));
    Set<Integer> dropped = new HashSet<>();
    tables.onForeign(table -> dropped.add(table.group));
    assertEquals(3, tables.cached(TABLE).group);
    assertEquals(Collections.emptySet(), dropped);
    assertEquals(5, tables.cached(OTHER).group);
    assertEquals(Collections.singleton(5), dropped, "its files have changed since the start");
    assertEquals(
        6, tables.cached(TableId.fromUUID(UUID.randomUUID())).group, "no number comes twice");
  }

  /** A removal that begins before a second one is asked for is none for that. */
  @Test
  void aTableIsServedAgainWhenAllRemovalsThatWereAskedForAreOver() {
    Deque<Runnable> waiting = new ArrayDeque<>();
    Tables tables = new Tables(node, waiting::add);
    List<String> removals = new ArrayList<>();
    tables.onForeign(
        table -> {
          if (removals.isEmpty()) {
            node.foreign.run();
          }
          removals.add("over");
        });
    assertNotNull(tables.cached(TABLE));
    node.foreign.run();
    node.foreign.run();
    assertNull(tables.cached(TABLE));
    assertEquals(1, waiting.size(), "one is enough for both");
    waiting.remove().run();
    assertNull(tables.cached(TABLE), "asked for again when the first had begun");
    waiting.remove().run();
    assertNotNull(tables.cached(TABLE));
    assertEquals(2, removals.size());
  }

  @Test
  void aTableWhoseRowsWereStillToBeRemovedAtTheStopIsNotKept() {
    Deque<Runnable> waiting = new ArrayDeque<>();
    Tables tables = new Tables(node, waiting::add);
    Tables.Table other = tables.cached(OTHER);
    Tables.Table table = tables.cached(TABLE);
    node.foreign.run();
    assertEquals(Collections.emptyList(), tables.state(table).sstables);
    tables.end();
    waiting.remove().run();
    assertEquals(
        Collections.emptyList(), tables.state(table).sstables, "it came when all was written");
    assertEquals(node.sstables, tables.state(other).sstables);
  }

  @Test
  void aTableThatIsEmptiedAfterTheStopHasBegunIsNotKept() {
    Tables tables = new Tables(node, Runnable::run);
    Tables.Table table = tables.cached(TABLE);
    tables.end();
    assertEquals(node.sstables, tables.state(table).sstables);
    node.foreign.run();
    assertEquals(Collections.emptyList(), tables.state(table).sstables);
  }

  /** The lines of SSTables with these names. */
  private static List<String> lines(String... names) {
    return Arrays.stream(names).map("sstable /data/"::concat).collect(Collectors.toList());
  }

  /** A table with these SSTables that is watched. */
  private Tables watching(String... names) {
    node.sstables = lines(names);
    Tables tables = new Tables(node, Runnable::run);
    assertNotNull(tables.cached(TABLE));
    return tables;
  }

  private void assertKept(boolean kept, Tables tables) {
    Tables.State state = tables.state(tables.all().iterator().next());
    assertEquals(kept, state.same(new Tables.State("schema-1", node.sstables)));
  }

  /** Adding it may fail when it is in place already, and nobody is told then. */
  @Test
  void aTableWithAnSSTableThatNobodyToldOfIsNotKept() {
    Tables tables = watching("one", "two");
    assertKept(true, tables);
    node.sstables = lines("one", "two", "three");
    assertKept(false, tables);
  }

  @Test
  void aTableIsKeptOverAllThatItsNodeDoesWithItsSSTables() {
    Tables tables = watching("one", "two");
    node.listener.came(Arrays.asList("three"));
    node.sstables = lines("one", "three", "two");
    assertKept(true, tables);
    node.listener.replaced(Arrays.asList("one", "two"), Arrays.asList("four", "five"));
    node.sstables = lines("five", "four", "three");
    assertKept(true, tables);
    // It is given up when its result was opened early and one of its sources was used up.
    node.listener.replaced(Arrays.asList("early", "five", "four"), Arrays.asList("five", "four"));
    assertKept(true, tables);
    // The same file, opened in another way.
    node.listener.replaced(Arrays.asList("five"), Arrays.asList("five"));
    assertKept(true, tables);
    node.listener.replaced(Arrays.asList("five", "four", "three"), Collections.emptyList());
    node.sstables = lines();
    assertKept(true, tables);
  }

  /** An index is built of an SSTable that is in place, and it is compacted meanwhile. */
  @Test
  void whatIsMadeOfAnSSTableIsToldOfOnceThatIs() {
    Tables tables = watching("one");
    node.listener.replaced(Arrays.asList("one", "late"), Arrays.asList("both"));
    node.listener.replaced(Arrays.asList("both", "later"), Arrays.asList("all"));
    node.sstables = lines("all");
    node.listener.came(Arrays.asList("late"));
    assertKept(false, tables);
    node.listener.came(Arrays.asList("later"));
    assertKept(true, tables);
  }

  @Test
  void anSSTableThatComesWhileTheStopListsThemKeepsNothing() {
    Tables tables = new Tables(node, task -> {});
    Tables.Table table = tables.cached(TABLE);
    tables.end();
    node.listing =
        () -> {
          node.listing = () -> {};
          node.sstables = lines("foreign");
          node.listener.foreign();
          node.listener.came(Arrays.asList("foreign"));
        };
    assertEquals(Collections.emptyList(), tables.state(table).sstables);
  }

  @Test
  void whatIsMadeOfAnSSTableThatNobodyToldOfIsNotToldOfEither() {
    Tables tables = watching("one");
    node.listener.replaced(Arrays.asList("one", "untold"), Arrays.asList("both"));
    node.sstables = lines("both");
    assertKept(false, tables);
    node.listener.came(Arrays.asList("more"));
    node.listener.replaced(Arrays.asList("both", "more"), Arrays.asList("all"));
    node.sstables = lines("all");
    assertKept(false, tables);
    // Its rows go, and the watch begins anew.
    node.schema = 2;
    assertNotNull(tables.cached(TABLE));
    Tables.State state = tables.state(tables.all().iterator().next());
    assertEquals(node.sstables, state.sstables);
  }
}
