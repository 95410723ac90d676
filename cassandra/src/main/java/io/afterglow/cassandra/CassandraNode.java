package io.afterglow.cassandra;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.file.DirectoryIteratorException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.cassandra.cache.IRowCacheEntry;
import org.apache.cassandra.cache.SerializingCacheProvider.RowCacheSerializer;
import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.UntypedResultSet;
import org.apache.cassandra.db.ColumnFamilyStore;
import org.apache.cassandra.db.lifecycle.SSTableSet;
import org.apache.cassandra.io.sstable.format.SSTableReader;
import org.apache.cassandra.io.util.DataInputBuffer;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.apache.cassandra.net.MessagingService;
import org.apache.cassandra.notifications.INotification;
import org.apache.cassandra.notifications.INotificationConsumer;
import org.apache.cassandra.notifications.SSTableAddedNotification;
import org.apache.cassandra.notifications.SSTableListChangedNotification;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.StorageService;
import org.apache.cassandra.utils.FBUtilities;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * All that is asked of the Cassandra around us. What differs between its versions is looked up by
 * name.
 */
final class CassandraNode implements Tables.Node, FlashRowCache.Codec {
  private static final Logger logger = LoggerFactory.getLogger(CassandraNode.class);

  private final RowCacheSerializer serializer = new RowCacheSerializer();
  private final Options options;
  private final AtomicBoolean hooked = new AtomicBoolean();
  private volatile Runnable onDrained = () -> {};

  CassandraNode(Options options) {
    this.options = options;
  }

  /** What rows were written with: other versions may not be able to read them. */
  static String stamp() throws ReflectiveOperationException {
    // By reflection: 4.x has it as a constant, which the compiler would copy.
    int messaging = MessagingService.class.getField("current_version").getInt(null);
    return FBUtilities.getReleaseVersionString() + " messaging " + messaging;
  }

  /** row_cache_size in bytes. */
  static long rowCacheSize() throws ReflectiveOperationException {
    for (Method method : DatabaseDescriptor.class.getMethods()) {
      if (method.getName().equals("getRowCacheSizeInMiB")
          || method.getName().equals("getRowCacheSizeInMB")) {
        return ((Number) method.invoke(null)).longValue() << 20;
      }
    }
    throw new NoSuchMethodException("DatabaseDescriptor.getRowCacheSizeInMiB");
  }

  /** Has this run when the node has drained: all of its memory is in SSTables then. */
  void onDrained(Runnable action) {
    onDrained = action;
  }

  @Override
  public void settle() {
    if (hooked.get()) {
      return;
    }
    try {
      StorageService service = StorageService.instance;
      // Null while the class is still being made, far below us on this very thread.
      if (service != null && hooked.compareAndSet(false, true)) {
        service.addPostShutdownHook(() -> afterDrain(service.isDrained()));
      }
    } catch (Throwable e) {
      logger.debug("Afterglow: too early for the shutdown hook", e);
    }
  }

  /**
   * The node ends. This comes after a drain that failed as well: then nothing is known to be in
   * SSTables.
   */
  void afterDrain(boolean drained) {
    if (drained) {
      onDrained.run();
    } else {
      logger.warn("Afterglow: the drain failed, the next start of the row cache is cold");
    }
  }

  @Override
  public Tables.Watch watch(TableId id, Tables.Listener listener) {
    ColumnFamilyStore table = ColumnFamilyStore.getIfExists(id);
    return table == null ? null : new Watched(table, listener);
  }

  /** A table object and the definition it had; an ALTER gives it another object for that. */
  private final class Watched implements Tables.Watch, INotificationConsumer {
    private final ColumnFamilyStore table;
    private final TableMetadata metadata;
    private final Tables.Listener listener;
    private final boolean allowed;
    private final String schema;

    Watched(ColumnFamilyStore table, Tables.Listener listener) {
      this.table = table;
      this.listener = listener;
      this.metadata = table.metadata();
      this.allowed = options.allows(metadata.keyspace, metadata.name);
      this.schema = schemaTime(metadata);
      // Twice: those that are replaced meanwhile must be known, and what they are replaced by.
      listener.came(present());
      table.getTracker().subscribe(this);
      listener.came(present());
    }

    /** Without what a compaction has opened early: that is told of when it is over. */
    private List<String> present() {
      return names(table.getSSTables(SSTableSet.CANONICAL));
    }

    @Override
    public void handleNotification(INotification notification, Object sender) {
      try {
        tell(notification, listener);
      } catch (Throwable e) {
        // It was told as far as rows have to go. Others it names count as not told of.
        logger.debug("Afterglow row cache: not understood: {}", notification, e);
      }
    }

    @Override
    public boolean current() {
      return table.metadata() == metadata && table.isValid();
    }

    @Override
    public boolean gone() {
      return !table.isValid();
    }

    @Override
    public boolean allowed() {
      return allowed;
    }

    @Override
    public String schema() {
      return schema;
    }

    @Override
    public void end() {
      table.getTracker().unsubscribe(this);
    }
  }

  /** Tells what a notification says of a table's SSTables. */
  static void tell(INotification notification, Tables.Listener listener) {
    if (notification instanceof SSTableAddedNotification) {
      SSTableAddedNotification added = (SSTableAddedNotification) notification;
      if (!added.memtable().isPresent()) {
        listener.foreign();
      }
      listener.came(names(added.added));
    } else if (notification instanceof SSTableListChangedNotification) {
      SSTableListChangedNotification changed = (SSTableListChangedNotification) notification;
      listener.replaced(names(changed.removed), names(changed.added));
    }
  }

  private static List<String> names(Iterable<SSTableReader> sstables) {
    List<String> names = new ArrayList<>();
    for (SSTableReader sstable : sstables) {
      names.add(new File(sstable.getFilename()).getName());
    }
    return names;
  }

  /**
   * When the table was last created or altered, as the schema tables tell: each ALTER writes all
   * parameters of its table anew. Where that cannot be read, what no other start will find.
   */
  private static String schemaTime(TableMetadata table) {
    try {
      UntypedResultSet found =
          QueryProcessor.executeInternal(
              "SELECT writetime(caching) AS at FROM system_schema.tables"
                  + " WHERE keyspace_name = ? AND table_name = ?",
              table.keyspace,
              table.name);
      return Long.toString(found.one().getLong("at"));
    } catch (Throwable e) {
      logger.debug("Afterglow: the schema tables do not tell of {}", table, e);
      return "unknown-" + UUID.randomUUID();
    }
  }

  @Override
  public List<String> sstables(TableId id) {
    return sstables(DatabaseDescriptor.getAllDataFileLocations(), id);
  }

  /**
   * The SSTables of a table below some data directories. What cannot be read is equal to nothing,
   * not even to itself: a clean stop may keep it, and the next start may fail in the same way.
   */
  static List<String> sstables(String[] dataDirectories, TableId id) {
    try {
      return SSTables.list(dataDirectories, id.asUUID());
    } catch (IOException | DirectoryIteratorException e) {
      logger.warn("Afterglow: the SSTables of {} cannot be listed, its rows are not kept", id, e);
      return Collections.singletonList("unreadable-" + UUID.randomUUID());
    }
  }

  @Override
  public void encode(IRowCacheEntry entry, DataOutputBuffer out) throws IOException {
    serializer.serialize(entry, out);
  }

  @Override
  public IRowCacheEntry decode(ByteBuffer bytes) throws IOException {
    try (DataInputBuffer in = new DataInputBuffer(bytes, false)) {
      return serializer.deserialize(in);
    }
  }
}
