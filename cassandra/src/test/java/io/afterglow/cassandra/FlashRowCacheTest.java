package io.afterglow.cassandra;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.cassandra.cache.IRowCacheEntry;
import org.apache.cassandra.cache.RowCacheKey;
import org.apache.cassandra.cache.RowCacheSentinel;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.apache.cassandra.schema.TableId;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The cache over the real engine, with rows that are just a number. */
class FlashRowCacheTest {
  private static final TableId TABLE = TableId.fromUUID(UUID.randomUUID());
  private static final TableId OTHER = TableId.fromUUID(UUID.randomUUID());

  @TempDir Path dir;
  private FakeNode node;
  private FlashRowCache cache;
  private final Numbers numbers = new Numbers();

  /** What happens right after the cache was emptied the next time. */
  private Runnable onceCleared = () -> {};

  /** Whoever removes all rows of a table passes here. */
  private Runnable removal = () -> {};

  private static final class Row implements IRowCacheEntry {
    final int value;

    /** Bytes behind it. */
    final int more;

    Row(int value) {
      this(value, 0);
    }

    Row(int value, int more) {
      this.value = value;
      this.more = more;
    }
  }

  private static final class Numbers implements FlashRowCache.Codec {
    private static final int PIECE = 1 << 10;

    /** Bytes behind numbers that were written down. */
    long written;

    @Override
    public void encode(IRowCacheEntry entry, DataOutputBuffer out) throws Exception {
      Row row = (Row) entry;
      out.writeInt(row.value);
      for (int left = row.more; left > 0; left -= PIECE) {
        out.write(new byte[Math.min(left, PIECE)]);
        written += Math.min(left, PIECE);
      }
    }

    @Override
    public IRowCacheEntry decode(ByteBuffer bytes) {
      return new Row(bytes.getInt());
    }
  }

  @BeforeEach
  void open() throws Exception {
    node = new FakeNode();
    cache = open(dir.resolve("cache"), new Tables(node, Runnable::run));
  }

  private FlashRowCache open(Path dir, Tables tables) throws Exception {
    Native.load(dir.resolve("native"));
    return over(new FlashStore(config(dir)), tables);
  }

  private static String config(Path dir) {
    return "data_dir="
        + dir
        + "\ndevice="
        + dir.resolve("flash")
        + ":"
        + (64 << 20)
        + "\nmemory="
        + (16 << 20)
        + "\njournal="
        + (1 << 20)
        + "\nflags=2\n";
  }

  private FlashRowCache over(FlashStore store, Tables tables) {
    return new FlashRowCache(store, numbers, tables, 64 << 20) {
      @Override
      public void clear() {
        super.clear();
        Runnable next = onceCleared;
        onceCleared = () -> {};
        next.run();
      }

      @Override
      void dropTable(Tables.Table table) {
        removal.run();
        super.dropTable(table);
      }
    };
  }

  private static RowCacheKey key(TableId table, int n) {
    return new RowCacheKey(table, null, ByteBuffer.allocate(4).putInt(n).array());
  }

  private void fill(RowCacheKey key, int value) {
    RowCacheSentinel sentinel = new RowCacheSentinel();
    assertTrue(cache.putIfAbsent(key, sentinel));
    assertTrue(cache.replace(key, sentinel, new Row(value)));
  }

  private int value(RowCacheKey key) {
    return ((Row) cache.get(key)).value;
  }

  /** Cassandra tells of a write only while the cache has a capacity. */
  private void tellOfAWrite(RowCacheKey key) {
    if (cache.capacity() > 0) {
      cache.remove(key);
    }
  }

  private static long directMemory() {
    return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
        .filter(pool -> pool.getName().equals("direct"))
        .mapToLong(BufferPoolMXBean::getTotalCapacity)
        .sum();
  }

  @Test
  void aRowThatNoRecordCanHoldIsRefusedAndTakesNoMemoryOutsideTheHeap() {
    RowCacheKey key = key(TABLE, 1);
    fill(key, 1);
    Row large = new Row(2, 64 << 20);
    long before = directMemory();
    cache.put(key, large);
    assertNull(cache.get(key), "what was there goes, as with any refused row");
    RowCacheSentinel sentinel = new RowCacheSentinel();
    assertTrue(cache.putIfAbsent(key, sentinel));
    assertFalse(cache.replace(key, sentinel, large));
    assertNull(cache.get(key), "nobody fills any more");
    assertTrue(directMemory() - before < 8 << 20, "bytes: " + (directMemory() - before));
    assertEquals(2, cache.refused.sum());
    assertTrue(numbers.written < 1 << 20, "on the heap: " + numbers.written);
    assertEquals("on", cache.state());
    fill(key, 3);
    assertEquals(3, value(key));
  }

  @Test
  void aFillIsFoundUntilItIsRemoved() {
    RowCacheKey key = key(TABLE, 1);
    assertNull(cache.get(key));
    RowCacheSentinel sentinel = new RowCacheSentinel();
    assertTrue(cache.putIfAbsent(key, sentinel));
    assertSame(sentinel, cache.get(key), "others see that somebody is filling");
    assertFalse(cache.putIfAbsent(key, new RowCacheSentinel()));
    assertTrue(cache.replace(key, sentinel, new Row(42)));
    assertEquals(42, value(key));
    cache.remove(key);
    assertNull(cache.get(key));
  }

  @Test
  void nothingIsPutInPlaceOfWhatIsNotThere() {
    RowCacheKey key = key(TABLE, 1);
    RowCacheSentinel sentinel = new RowCacheSentinel();
    assertFalse(cache.replace(key, sentinel, new Row(1)), "never put");
    cache.putIfAbsent(key, sentinel);
    cache.remove(key);
    assertFalse(cache.replace(key, sentinel, new Row(1)), "a write came in between");
    cache.putIfAbsent(key, sentinel);
    cache.clear();
    assertFalse(cache.replace(key, sentinel, new Row(1)), "emptied in between");
    RowCacheSentinel second = new RowCacheSentinel();
    cache.putIfAbsent(key, second);
    assertFalse(cache.replace(key, sentinel, new Row(1)), "another read's sentinel");
    assertTrue(cache.replace(key, second, new Row(2)));
    assertEquals(2, value(key));
  }

  @Test
  void noReadIsOlderThanAWriteThatWasAcknowledged() throws Exception {
    int threads = 4;
    int keys = 8;
    AtomicInteger[] database = new AtomicInteger[keys];
    Arrays.setAll(database, n -> new AtomicInteger());
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    CyclicBarrier start = new CyclicBarrier(threads);
    Future<?>[] running = new Future<?>[threads];
    for (int t = 0; t < threads; t++) {
      int seed = t;
      running[t] =
          pool.submit(
              () -> {
                start.await();
                java.util.Random random = new java.util.Random(seed);
                for (int n = 0; n < 50_000; n++) {
                  int k = random.nextInt(keys);
                  if (random.nextInt(2_000) == 0) {
                    cache.setCapacity(0);
                    Thread.yield();
                    cache.setCapacity(64 << 20);
                  } else if (random.nextInt(3) == 0) {
                    database[k].incrementAndGet();
                    tellOfAWrite(key(TABLE, k));
                  } else {
                    int acknowledged = database[k].get();
                    // A write may have been counted whose removal is still to come: that one is not
                    // acknowledged.
                    check(k, acknowledged - threads, database[k]);
                  }
                }
                return null;
              });
    }
    for (Future<?> each : running) {
      each.get();
    }
    pool.shutdown();
    for (int k = 0; k < keys; k++) {
      IRowCacheEntry left = cache.get(key(TABLE, k));
      assertTrue(
          left == null || ((Row) left).value == database[k].get(), "key " + k + " stays stale");
    }
    assertTrue(cache.hits.sum() > 1000 && cache.overtaken.sum() > 0, "no race was run");
    assertEquals("on", cache.state());
  }

  private void check(int k, int atLeast, AtomicInteger database) {
    RowCacheKey key = key(TABLE, k);
    IRowCacheEntry entry = cache.get(key);
    if (entry instanceof Row) {
      assertTrue(((Row) entry).value >= atLeast, "stale: " + ((Row) entry).value + " < " + atLeast);
    } else if (entry == null) {
      RowCacheSentinel sentinel = new RowCacheSentinel();
      boolean ours = cache.putIfAbsent(key, sentinel);
      int read = database.get();
      Thread.yield();
      if (ours) {
        cache.replace(key, sentinel, new Row(read));
      }
    }
  }

  @Test
  void keysCanBeListedAndRemoved() {
    for (int n = 0; n < 1000; n++) {
      fill(key(n % 2 == 0 ? TABLE : OTHER, n), n);
    }
    cache.putIfAbsent(key(TABLE, 5000), new RowCacheSentinel());
    Set<RowCacheKey> listed = new HashSet<>();
    for (Iterator<RowCacheKey> keys = cache.keyIterator(); keys.hasNext(); ) {
      RowCacheKey key = keys.next();
      listed.add(key);
      if (key.tableId.equals(OTHER)) {
        keys.remove();
      }
    }
    assertEquals(1001, listed.size());
    assertTrue(listed.contains(key(TABLE, 5000)), "one that is being filled");
    assertNotNull(cache.get(key(TABLE, 0)));
    assertNull(cache.get(key(OTHER, 1)));
  }

  /** The callers by the names that Cassandra gives them, from 3.11 to 5.0. */
  @Test
  void nobodyListsTheFlashForSSTablesThatWereStreamedHereOrToSaveKeys() {
    assertEquals(
        FlashRowCache.Caller.RECEIVER,
        caller("org.apache.cassandra.db.ColumnFamilyStore", "invalidateRowCache"));
    assertEquals(
        FlashRowCache.Caller.TABLE,
        caller("org.apache.cassandra.service.CacheService", "invalidateRowCacheForCf"));
    assertEquals(
        FlashRowCache.Caller.SAVER,
        caller("org.apache.cassandra.cache.AutoSavingCache$Writer", "<init>"));
    assertEquals(
        FlashRowCache.Caller.OTHER,
        caller("org.apache.cassandra.db.ColumnFamilyStore", "cleanupCache"));
  }

  @Test
  void whoAsksDecidesHowManyKeysAreListed() {
    for (int n = 0; n < 100; n++) {
      fill(key(n % 2 == 0 ? TABLE : OTHER, n), n);
    }
    assertEquals(0, count(FlashRowCache.Caller.RECEIVER));
    assertEquals(0, count(FlashRowCache.Caller.SAVER));
    assertEquals(2, count(FlashRowCache.Caller.TABLE), "one key for each table");
    assertEquals(100, count(FlashRowCache.Caller.OTHER));
  }

  private int count(FlashRowCache.Caller caller) {
    int count = 0;
    for (Iterator<RowCacheKey> keys = cache.keysFor(caller); keys.hasNext(); keys.next()) {
      count++;
    }
    return count;
  }

  private static FlashRowCache.Caller caller(String type, String method) {
    return FlashRowCache.Caller.among(
        new StackTraceElement("io.afterglow.cassandra.FlashRowCache", "keyIterator", null, 1),
        new StackTraceElement(type, method, null, 1),
        new StackTraceElement("java.lang.Thread", "run", null, 1));
  }

  @Test
  void sstablesFromElsewhereTakeTheRowsOfTheirTable() {
    fill(key(TABLE, 1), 1);
    Runnable foreign = node.foreign;
    fill(key(OTHER, 1), 2);
    RowCacheSentinel sentinel = new RowCacheSentinel();
    cache.putIfAbsent(key(TABLE, 2), sentinel);
    foreign.run();
    assertNull(cache.get(key(TABLE, 1)));
    assertFalse(cache.replace(key(TABLE, 2), sentinel, new Row(1)), "read before they came");
    assertEquals(2, value(key(OTHER, 1)));
    fill(key(TABLE, 1), 3);
    assertEquals(3, value(key(TABLE, 1)));
  }

  @Test
  void rowsSurviveACleanStopIfTheirSSTablesAreTheSame() throws Exception {
    Path kept = dir.resolve("kept");
    Tables tables = new Tables(node);
    cache = open(kept, tables);
    fill(key(TABLE, 1), 1);
    assertTrue(cache.close());
    assertNull(cache.get(key(TABLE, 1)), "after the stop nothing is served");
    assertEquals(1, tables.all().size());
    Tables.Table table = tables.all().iterator().next();
    assertTrue(new Tables.State("schema-1", node.sstables).same(tables.state(table)));
    node.schema++;
    assertEquals(
        Collections.emptyList(), tables.state(table).sstables, "altered since its rows came");
  }

  /** Whether the row is there or not nobody knows then, also after the next start. */
  @Test
  void ifTheEngineFailsInAChangeNothingIsServedAnyMore() throws Exception {
    RowCacheKey key = key(TABLE, 1);
    List<Runnable> changes =
        Arrays.asList(
            () -> cache.remove(key),
            () -> failToFill(key(TABLE, 2)),
            () -> cache.put(key, new Row(2)),
            () -> node.foreign.run(),
            () -> cache.clear());
    for (int n = 0; n < changes.size(); n++) {
      Path marker = Files.createDirectory(dir.resolve("marker-" + n));
      BreakingStore store = new BreakingStore(config(dir.resolve("breaking-" + n)));
      Tables tables = new Tables(node, Runnable::run);
      cache = over(store, tables);
      fill(key, 1);
      fill(key(TABLE, 3), 3);
      store.broken = true;
      changes.get(n).run();
      store.broken = false;
      assertEquals("failed", cache.state(), "change " + n);
      cache.setCapacity(64 << 20);
      assertEquals(0, cache.capacity(), "nor is anything told of writes");
      assertNull(cache.get(key));
      assertNull(cache.get(key(TABLE, 3)));
      assertFalse(cache.putIfAbsent(key(TABLE, 4), new RowCacheSentinel()));
      FlashRowCacheProvider.close(cache, tables, marker, () -> "a stamp");
      assertFalse(Files.exists(marker.resolve("rows.clean")));
    }
  }

  private void failToFill(RowCacheKey key) {
    RowCacheSentinel sentinel = new RowCacheSentinel();
    assertTrue(cache.putIfAbsent(key, sentinel));
    assertFalse(cache.replace(key, sentinel, new Row(1)));
  }

  @Test
  void onlyAStopThatWasCleanLeavesAMarker() throws Exception {
    for (boolean clean : new boolean[] {true, false}) {
      Path data = dir.resolve("data-" + clean);
      Path marker = Files.createDirectory(dir.resolve("marker-" + clean));
      Tables tables = new Tables(node, Runnable::run);
      cache = open(data, tables);
      fill(key(TABLE, 1), 1);
      if (!clean) {
        // What the engine writes last goes there.
        Files.move(data, dir.resolve("elsewhere"));
      }
      FlashRowCacheProvider.close(cache, tables, marker, () -> "a stamp");
      assertEquals(clean, Files.exists(marker.resolve("rows.clean")));
    }
  }

  @Test
  void anAlteredTableServesNothingFromBefore() {
    RowCacheKey key = key(TABLE, 1);
    fill(key, 1);
    fill(key(OTHER, 1), 1);
    RowCacheSentinel early = new RowCacheSentinel();
    cache.putIfAbsent(key(TABLE, 2), early);
    // To NONE: a write is not told of. And back to ALL.
    node.schema += 2;
    assertNull(cache.get(key), "the row may be older than a write");
    assertFalse(cache.replace(key(TABLE, 2), early, new Row(1)), "so may one that was read before");
    assertNull(cache.get(key(OTHER, 1)));
    fill(key, 2);
    assertEquals(2, value(key));
    assertEquals(2, node.watches, "old watches have ended");
  }

  /** As long as the drive hangs. */
  @Test
  void whoeverNeedsATableDoesNotWaitForTheRemovalOfItsRows() throws Exception {
    cache = open(dir.resolve("hangs"), new Tables(node));
    RowCacheKey key = key(TABLE, 1);
    fill(key, 1);
    RowCacheSentinel early = new RowCacheSentinel();
    cache.putIfAbsent(key(TABLE, 2), early);
    Barrier drive = new Barrier();
    removal = drive;
    node.schema++;
    assertNull(cache.get(key), "altered");
    Barrier.await(drive.reached);
    cache.remove(key(TABLE, 3));
    assertNull(cache.get(key), "the row is still there");
    assertFalse(cache.putIfAbsent(key, new RowCacheSentinel()));
    assertFalse(cache.replace(key(TABLE, 2), early, new Row(1)), "read before the ALTER");
    fill(key(OTHER, 1), 2);
    assertEquals(2, value(key(OTHER, 1)), "other tables are served");

    drive.opens.countDown();
    Barrier.await(() -> cache.putIfAbsent(key(TABLE, 4), new RowCacheSentinel()));
    assertNull(cache.get(key), "the row is gone");
    fill(key, 3);
    assertEquals(3, value(key));
    assertEquals("on", cache.state());
  }

  /** Beginning to watch reads the schema and lists files. */
  @Test
  void nobodyWaitsForAnotherWhoBeginsToWatchTheTable() throws Exception {
    RowCacheKey key = key(TABLE, 1);
    fill(key, 1);
    Barrier barrier = new Barrier();
    node.passage = barrier;
    node.schema++;
    ExecutorService reader = Executors.newSingleThreadExecutor();
    Future<IRowCacheEntry> read = reader.submit(() -> cache.get(key));
    Barrier.await(barrier.reached);
    node.passage = () -> {};
    assertNull(cache.get(key));
    cache.remove(key);
    assertFalse(read.isDone(), "it was waited for");
    barrier.opens.countDown();
    assertNull(read.get());
    assertEquals(1, node.watches);
    reader.shutdown();
  }

  @Test
  void aFillThatNoticesTheAlterItselfIsNotTaken() {
    RowCacheKey key = key(TABLE, 1);
    RowCacheSentinel sentinel = new RowCacheSentinel();
    cache.putIfAbsent(key, sentinel);
    node.schema++;
    assertFalse(cache.replace(key, sentinel, new Row(1)));
    assertNull(cache.get(key));
  }

  @Test
  void aDroppedTableIsForgottenWhenCassandraRemovesItsRows() {
    fill(key(TABLE, 1), 1);
    fill(key(OTHER, 1), 2);
    node.dropped.add(TABLE);
    assertEquals(1, count(FlashRowCache.Caller.TABLE), "nobody walks what is not there");
    assertEquals(1, node.watches, "nothing of the node is held for it");
    assertEquals(1, cache.tableDrops.sum());
    assertNull(cache.get(key(TABLE, 1)));
    assertEquals(2, value(key(OTHER, 1)));
  }

  @Test
  void aDroppedTableIsForgottenByWhoeverStillReadsIt() {
    RowCacheKey key = key(TABLE, 1);
    fill(key, 1);
    RowCacheSentinel early = new RowCacheSentinel();
    cache.putIfAbsent(key(TABLE, 2), early);
    node.dropped.add(TABLE);
    assertFalse(cache.replace(key(TABLE, 2), early, new Row(1)));
    assertEquals(0, node.watches);
    assertNull(cache.get(key));

    node.dropped.clear();
    assertNull(cache.get(key), "another table with the same id");
    fill(key, 2);
    assertEquals(2, value(key));
    assertEquals(1, node.watches);
  }

  @Test
  void withoutCapacityItIsOffAndEmptyAfterwards() {
    fill(key(TABLE, 1), 1);
    cache.setCapacity(0);
    assertEquals(0, cache.capacity());
    assertNull(cache.get(key(TABLE, 1)));
    assertFalse(cache.putIfAbsent(key(TABLE, 2), new RowCacheSentinel()));
    cache.setCapacity(1 << 20);
    assertEquals(64 << 20, cache.capacity());
    assertNull(cache.get(key(TABLE, 1)), "writes were not told of meanwhile");
    fill(key(TABLE, 1), 2);
    assertEquals(2, value(key(TABLE, 1)));
  }

  @Test
  void aReadThatIsHeldUpWhileItIsOffIsNotTaken() throws Exception {
    RowCacheKey key = key(TABLE, 1);
    RowCacheSentinel sentinel = new RowCacheSentinel();
    Barrier barrier = new Barrier();
    node.passage = barrier;
    ExecutorService reader = Executors.newSingleThreadExecutor();
    Future<Boolean> begins = reader.submit(() -> cache.putIfAbsent(key, sentinel));
    Barrier.await(barrier.reached);
    cache.setCapacity(0);
    onceCleared =
        () -> {
          barrier.opens.countDown();
          assertDoesNotThrow(() -> begins.get());
          // The reader has the row from before this write.
          tellOfAWrite(key);
        };
    cache.setCapacity(64 << 20);
    assertTrue(begins.get());
    assertFalse(cache.replace(key, sentinel, new Row(1)));
    assertNull(cache.get(key));
    reader.shutdown();
  }

  @Test
  void tablesThatAreDeniedAreNotCached() {
    node.allowed = false;
    assertFalse(cache.putIfAbsent(key(TABLE, 1), new RowCacheSentinel()));
    assertNull(cache.get(key(TABLE, 1)));
  }
}
