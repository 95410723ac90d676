package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.cassandra.cache.ICache;
import org.apache.cassandra.cache.IRowCacheEntry;
import org.apache.cassandra.cache.RowCacheKey;
import org.apache.cassandra.cache.RowCacheSentinel;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.apache.cassandra.schema.TableId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Cassandra's row cache over flash. No row that is older than a write that was acknowledged is ever
 * returned:
 *
 * <ul>
 *   <li>Reads that fill the cache put a sentinel first, in {@link #inFlight}. A write removes
 *       sentinel and row in one step. A read may put its row only in place of its own sentinel. So
 *       a row that was read before a write never comes in after it.
 *   <li>Every change of a key happens inside {@code inFlight.compute} of that key. That makes these
 *       steps one.
 *   <li>All rows of a table are removed in the background. Until that is over {@link Tables} says
 *       that nothing of it is cached, and writes go on removing their rows.
 *   <li>If the engine fails in a change, the change is in doubt. From then on everything is a miss.
 * </ul>
 *
 * No exception leaves this class: Cassandra's reads and writes go on without a cache.
 */
class FlashRowCache implements ICache<RowCacheKey, IRowCacheEntry> {
  private static final Logger logger = LoggerFactory.getLogger(FlashRowCache.class);

  /** Reads that may be filling at once; more read without filling. */
  private static final int MAX_IN_FLIGHT = 1 << 16;

  private static final int PREFIX = 16;

  private final FlashStore store;
  private final Codec codec;
  private final Tables tables;
  private final long flash;
  private final ConcurrentHashMap<RowCacheKey, IRowCacheEntry> inFlight = new ConcurrentHashMap<>();

  /** What counters say; read by the MBean. */
  final LongAdder hits = new LongAdder();

  final LongAdder misses = new LongAdder();
  final LongAdder fills = new LongAdder();
  final LongAdder overtaken = new LongAdder();
  final LongAdder refused = new LongAdder();
  final LongAdder undecodable = new LongAdder();
  final LongAdder crowded = new LongAdder();
  final LongAdder tableDrops = new LongAdder();

  /** Switched off with `nodetool setcachecapacity`. */
  private volatile boolean off;

  /** The capacity is 0: Cassandra tells of no writes. */
  private volatile boolean untold;

  private volatile boolean closed;
  private volatile boolean failed;

  private volatile Map<String, Long> figures = Collections.emptyMap();
  private volatile long figuresAt = System.nanoTime() - TimeUnit.HOURS.toNanos(1);

  /** Turns rows into bytes and back. */
  interface Codec {
    void encode(IRowCacheEntry entry, DataOutputBuffer out) throws Exception;

    /** The bytes are valid until this returns. */
    IRowCacheEntry decode(ByteBuffer bytes) throws Exception;
  }

  FlashRowCache(FlashStore store, Codec codec, Tables tables, long flash) {
    this.store = store;
    this.codec = codec;
    this.tables = tables;
    this.flash = flash;
    tables.onForeign(this::dropTable);
  }

  // Reads

  @Override
  public IRowCacheEntry get(RowCacheKey key) {
    if (!serves()) {
      return null;
    }
    try {
      if (tables.cached(key.tableId) == null || key.indexName != null) {
        return null;
      }
      IRowCacheEntry sentinel = inFlight.get(key);
      if (sentinel != null) {
        return sentinel;
      }
      ByteBuffer bytes = store.get(bytes(key));
      IRowCacheEntry entry = bytes == null ? null : decode(key, bytes);
      (entry == null ? misses : hits).increment();
      return entry;
    } catch (Throwable e) {
      // Nothing was changed: a miss is true.
      misses.increment();
      return null;
    }
  }

  private IRowCacheEntry decode(RowCacheKey key, ByteBuffer bytes) {
    try {
      return codec.decode(bytes);
    } catch (Throwable e) {
      undecodable.increment();
      remove(key);
      return null;
    }
  }

  @Override
  public boolean containsKey(RowCacheKey key) {
    return get(key) != null;
  }

  // Fills

  @Override
  public boolean putIfAbsent(RowCacheKey key, IRowCacheEntry value) {
    // Cassandra puts nothing but sentinels this way.
    if (!serves() || !(value instanceof RowCacheSentinel) || key.indexName != null) {
      return false;
    }
    try {
      if (tables.cached(key.tableId) == null) {
        return false;
      }
      if (inFlight.mappingCount() >= MAX_IN_FLIGHT) {
        crowded.increment();
        return false;
      }
      return inFlight.putIfAbsent(key, value) == null;
    } catch (Throwable e) {
      return false;
    }
  }

  @Override
  public boolean replace(RowCacheKey key, IRowCacheEntry old, IRowCacheEntry value) {
    try (DataOutputBuffer out = new BoundedOutput(store.longest())) {
      Tables.Table table = serves() ? tables.cached(key.tableId) : null;
      if (table == null || !encode(value, out)) {
        // Cassandra takes its sentinel for gone whatever this says.
        inFlight.remove(key, old);
        return false;
      }
      byte[] bytes = bytes(key);
      FlashStore.Value prepared = prepare(bytes, out);
      boolean[] replaced = new boolean[1];
      inFlight.compute(
          key,
          (k, present) -> {
            if (present == null || !present.equals(old)) {
              overtaken.increment();
              return present;
            }
            replaced[0] = put(bytes, prepared, table);
            return null;
          });
      if (replaced[0]) {
        fills.increment();
      }
      return replaced[0];
    } catch (Throwable e) {
      fail(e);
      return false;
    }
  }

  /**
   * What is to be put, outside the heap; null where a row is too long for a record, or memory is
   * short. Nothing was changed then.
   */
  private FlashStore.Value prepare(byte[] key, DataOutputBuffer out) {
    if (!store.takes(key.length, out.getLength())) {
      refused.increment();
      return null;
    }
    try {
      return store.prepare(key, out.getData(), out.getLength());
    } catch (OutOfMemoryError e) {
      refused.increment();
      return null;
    }
  }

  /** Puts a row. One that could not be prepared is refused: what was cached goes all the same. */
  private boolean put(byte[] key, FlashStore.Value prepared, Tables.Table table) {
    if (prepared == null) {
      store.remove(key);
      return false;
    }
    return store.put(key, prepared, table.group);
  }

  /** Whether a row could be written down, as far as one that is too long can be told yet. */
  private boolean encode(IRowCacheEntry value, DataOutputBuffer out) {
    try {
      codec.encode(value, out);
      return true;
    } catch (Throwable e) {
      refused.increment();
      return false;
    }
  }

  /** Only for rows that Cassandra loads at start because it had saved their keys. */
  @Override
  public void put(RowCacheKey key, IRowCacheEntry value) {
    try (DataOutputBuffer out = new BoundedOutput(store.longest())) {
      Tables.Table table = serves() ? tables.cached(key.tableId) : null;
      boolean storable =
          table != null && !(value instanceof RowCacheSentinel) && encode(value, out);
      byte[] bytes = bytes(key);
      FlashStore.Value prepared = storable ? prepare(bytes, out) : null;
      inFlight.compute(
          key,
          (k, present) -> {
            put(bytes, prepared, table);
            return null;
          });
    } catch (Throwable e) {
      fail(e);
    }
  }

  // Removals

  @Override
  public void remove(RowCacheKey key) {
    if (failed) {
      return;
    }
    try {
      // Also while nothing is served: what is on flash must not outlive the write.
      tables.written(key.tableId);
      inFlight.compute(
          key,
          (k, present) -> {
            store.remove(bytes(key));
            return null;
          });
    } catch (Throwable e) {
      fail(e);
    }
  }

  /** Removes all rows of a table in constant time; in the background, for a drive may hang. */
  void dropTable(Tables.Table table) {
    if (failed) {
      return;
    }
    try {
      // First the sentinels: a read that began before can no longer fill behind the removal.
      inFlight.keySet().removeIf(key -> key.tableId.equals(table.id));
      store.removeGroup(table.group);
      tableDrops.increment();
    } catch (Throwable e) {
      fail(e);
    }
  }

  @Override
  public void clear() {
    if (failed) {
      return;
    }
    try {
      inFlight.clear();
      store.clear();
    } catch (Throwable e) {
      fail(e);
    }
  }

  // Keys

  /**
   * All keys, for callers that remove by a property of the key. TRUNCATE, DROP and every start of a
   * node remove a whole table. Then one key stands for all of its table, and removing it removes
   * them all.
   */
  @Override
  public Iterator<RowCacheKey> keyIterator() {
    return keysFor(Caller.among(new Throwable().getStackTrace()));
  }

  /** The keys that such a caller is to see. */
  Iterator<RowCacheKey> keysFor(Caller caller) {
    if (failed) {
      return Collections.emptyIterator();
    }
    tables.settle();
    switch (caller) {
      case SAVER:
        // Rows survive by themselves; Cassandra would read each again at start.
        return Collections.emptyIterator();
      case RECEIVER:
        // The SSTables that came have taken all rows of their table with them already. Rows that
        // were filled since were read from them too.
        return Collections.emptyIterator();
      case TABLE:
        return new TableIterator();
      default:
        return new KeyIterator();
    }
  }

  @Override
  public Iterator<RowCacheKey> hotKeyIterator(int n) {
    return Collections.emptyIterator();
  }

  /** What Cassandra wants keys for. */
  enum Caller {
    /** Removing all of one table. */
    TABLE,
    /** Saving keys. */
    SAVER,
    /** Removing what lies in the token ranges of SSTables that were streamed to this node. */
    RECEIVER,
    OTHER;

    /** Who of those on a stack, innermost first, wants keys. */
    static Caller among(StackTraceElement... stack) {
      for (StackTraceElement frame : stack) {
        if (frame.getClassName().equals("org.apache.cassandra.service.CacheService")
            && frame.getMethodName().equals("invalidateRowCacheForCf")) {
          return TABLE;
        }
        if (frame.getClassName().equals("org.apache.cassandra.db.ColumnFamilyStore")
            && frame.getMethodName().equals("invalidateRowCache")) {
          return RECEIVER;
        }
        // The cache itself, or its inner class that writes.
        if (frame.getClassName().startsWith("org.apache.cassandra.cache.AutoSavingCache")
            && (frame.getMethodName().equals("getWriter")
                || frame.getMethodName().equals("<init>"))) {
          return SAVER;
        }
      }
      return OTHER;
    }
  }

  private final class TableIterator implements Iterator<RowCacheKey> {
    private final Iterator<Tables.Table> all = tables.present().iterator();
    private Tables.Table last;

    @Override
    public boolean hasNext() {
      return all.hasNext();
    }

    @Override
    public RowCacheKey next() {
      last = all.next();
      return new RowCacheKey(last.id, null, new byte[0]);
    }

    @Override
    public void remove() {
      tables.removeRows(last);
    }
  }

  private final class KeyIterator implements Iterator<RowCacheKey> {
    private final Iterator<RowCacheKey> filling;
    private FlashStore.Keys stored;
    private RowCacheKey next;
    private RowCacheKey last;

    KeyIterator() {
      List<RowCacheKey> now = new ArrayList<>(inFlight.keySet());
      filling = now.iterator();
      try {
        stored = store.keys();
      } catch (Throwable e) {
        fail(e);
      }
    }

    @Override
    public boolean hasNext() {
      if (next == null) {
        next = filling.hasNext() ? filling.next() : stored();
      }
      return next != null;
    }

    private RowCacheKey stored() {
      if (failed || stored == null) {
        return null;
      }
      try {
        byte[] bytes = stored.next();
        return bytes == null ? null : key(bytes);
      } catch (Throwable e) {
        // Whoever asks must see every key, or there must be none.
        stored.close();
        stored = null;
        logger.warn("Afterglow row cache: not all keys can be listed, so all rows are removed", e);
        clear();
        return null;
      }
    }

    @Override
    public RowCacheKey next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      last = next;
      next = null;
      return last;
    }

    @Override
    public void remove() {
      FlashRowCache.this.remove(last);
    }
  }

  // Size

  @Override
  public long capacity() {
    return untold || failed ? 0 : flash;
  }

  /**
   * 0 switches it off and empties it, anything else on again; flash keeps the size it was opened
   * with.
   *
   * <p>On again goes in three steps: Cassandra tells of writes, all is removed, reads are served. A
   * sentinel that is there by then goes with the rest. A later one is of a read that begins when
   * every write is told of. So no read brings in what is older than a write that was not.
   */
  @Override
  public synchronized void setCapacity(long capacity) {
    if (capacity == 0) {
      off = true;
      untold = true;
      clear();
      return;
    }
    untold = false;
    clear();
    off = false;
    if (capacity != flash) {
      logger.info(
          "Afterglow row cache: on; its size is that of afterglow.rowcache.flash, {} bytes", flash);
    }
  }

  @Override
  public int size() {
    long entries = Math.max(figure("index_slots_used"), figure("dram_objects"));
    return (int) Math.min(entries, Integer.MAX_VALUE);
  }

  @Override
  public long weightedSize() {
    long written = (figure("segments") - figure("segments_free")) * figure("segment_size");
    return Math.max(written, figure("dram_bytes"));
  }

  private long figure(String name) {
    return figures().getOrDefault(name, 0L);
  }

  /** The engine's counters, at most a second old. */
  Map<String, Long> figures() {
    if (!failed && System.nanoTime() - figuresAt > TimeUnit.SECONDS.toNanos(1)) {
      try {
        figures = store.stats();
      } catch (Throwable e) {
        logger.debug("Afterglow row cache: no figures", e);
      }
      figuresAt = System.nanoTime();
    }
    return figures;
  }

  // Life

  private boolean serves() {
    return !off && !closed && !failed;
  }

  /** What it is doing, in a word. */
  String state() {
    return failed ? "failed" : closed ? "closed" : off ? "off" : "on";
  }

  private void fail(Throwable e) {
    if (!failed) {
      failed = true;
      logger.error(
          "Afterglow row cache: it is off until the next start, all reads go to the tables", e);
    }
  }

  /** The clean stop; true when everything is on flash and may be served after a start. */
  boolean close() {
    closed = true;
    tables.end();
    if (failed) {
      return false;
    }
    try {
      inFlight.clear();
      if (!store.close()) {
        logger.warn("Afterglow row cache: not everything could be written, the next start is cold");
        return false;
      }
    } catch (Throwable e) {
      fail(e);
    }
    return !failed;
  }

  private static byte[] bytes(RowCacheKey key) {
    UUID id = key.tableId.asUUID();
    ByteBuffer bytes = ByteBuffer.allocate(PREFIX + key.key.length);
    bytes.putLong(id.getMostSignificantBits()).putLong(id.getLeastSignificantBits()).put(key.key);
    return bytes.array();
  }

  private static RowCacheKey key(byte[] bytes) {
    ByteBuffer buffer = ByteBuffer.wrap(bytes);
    TableId id = TableId.fromUUID(new UUID(buffer.getLong(), buffer.getLong()));
    byte[] key = new byte[buffer.remaining()];
    buffer.get(key);
    return new RowCacheKey(id, null, key);
  }
}
