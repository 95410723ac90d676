package io.afterglow.cassandra;

import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import javax.management.ObjectName;
import org.apache.cassandra.cache.CacheProvider;
import org.apache.cassandra.cache.ICache;
import org.apache.cassandra.cache.IRowCacheEntry;
import org.apache.cassandra.cache.RowCacheKey;
import org.apache.cassandra.schema.TableId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * {@code row_cache_class_name: io.afterglow.cassandra.FlashRowCacheProvider} in cassandra.yaml.
 * Whatever is wrong with the cache, the node starts: without it, and with a line in its log that
 * says why.
 */
public final class FlashRowCacheProvider implements CacheProvider<RowCacheKey, IRowCacheEntry> {
  private static final Logger logger = LoggerFactory.getLogger(FlashRowCacheProvider.class);

  @Override
  public ICache<RowCacheKey, IRowCacheEntry> create() {
    try {
      return open();
    } catch (Throwable e) {
      Off.because(e, logger, "row cache", "RowCache");
    }
    return new NoCache();
  }

  private static FlashRowCache open() throws Exception {
    Options options = new Options(OptionValues.read(), CassandraNode.rowCacheSize());
    Native.load(options.nativeDir);
    EngineLog.start();
    options.makeDir();
    CleanMarker marker = CleanMarker.take(options.dir, CleanMarker.LIMIT_MILLIS);
    FlashStore store = new FlashStore(options.engine());
    CassandraNode node = new CassandraNode(options);
    Tables tables = new Tables(node);
    FlashRowCache cache = new FlashRowCache(store, node, tables, options.flash());
    String warm = warm(marker, store, node, tables);
    node.onDrained(() -> close(cache, tables, options.dir, CassandraNode::stamp));
    ManagementFactory.getPlatformMBeanServer()
        .registerMBean(new RowCacheStatus(cache), new ObjectName("io.afterglow:type=RowCache"));
    logger.info(
        "Afterglow row cache: {} MiB of flash at {}, {} MiB of memory, {}",
        options.flash() >> 20,
        options.devices.get(0).path + (options.devices.size() > 1 ? " and others" : ""),
        options.memory >> 20,
        warm);
    return cache;
  }

  /** Keeps the tables whose SSTables are those of the last clean stop, removes everything else. */
  private static String warm(
      CleanMarker marker, FlashStore store, CassandraNode node, Tables tables)
      throws ReflectiveOperationException {
    if (marker == null || !marker.stamp.equals(CassandraNode.stamp())) {
      store.clear();
      return marker == null
          ? "empty: there was no clean stop before"
          : "empty: its rows are of " + marker.stamp + ", this is " + CassandraNode.stamp();
    }
    tables.reserve(marker.lastGroup);
    int kept = 0;
    for (CleanMarker.Kept table : marker.tables) {
      TableId id = TableId.fromUUID(table.id);
      // One without SSTables has been dropped, or has nothing to be cached.
      List<String> sstables = table.state.sstables;
      if (!sstables.isEmpty() && sstables.equals(node.sstables(id))) {
        // Its definition is compared at its first use: there is no schema yet.
        tables.keep(id, table.group, table.state);
        kept++;
      } else {
        store.removeGroup(table.group);
      }
    }
    int changed = marker.tables.size() - kept;
    return "warm for "
        + kept
        + " tables"
        + (changed > 0 ? ", not for " + changed + " whose files have changed" : "");
  }

  /** The clean stop. Without a marker the next start is cold. */
  static void close(FlashRowCache cache, Tables tables, Path dir, Callable<String> stamp) {
    try {
      if (!cache.close()) {
        return;
      }
      List<CleanMarker.Kept> kept = new ArrayList<>();
      for (Tables.Table table : tables.all()) {
        kept.add(new CleanMarker.Kept(table.id.asUUID(), table.group, tables.state(table)));
      }
      new CleanMarker(stamp.call(), tables.lastGroup(), kept).write(dir, CleanMarker.LIMIT_MILLIS);
      logger.info("Afterglow row cache: stopped cleanly, {} tables", kept.size());
    } catch (Throwable e) {
      logger.warn("Afterglow row cache: no clean stop, the next start is cold", e);
    }
  }
}
