package io.afterglow.cassandra;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.cassandra.schema.TableId;

/**
 * The tables that have rows in the cache. Each has a number in the engine, its group, by which all
 * of its rows can be removed at once, and is watched from its first use on for SSTables that did
 * not come out of memory: those may be newer than rows that are cached.
 */
final class Tables {
  /** A table. */
  static final class Table {
    final TableId id;
    final int group;

    /**
     * The SSTables its rows belong to, as long as it is not yet watched; null for one that has
     * none.
     */
    private List<String> kept;

    private volatile boolean watched;
    private volatile boolean allowed;

    Table(TableId id, int group, List<String> kept) {
      this.id = id;
      this.group = group;
      this.kept = kept;
    }
  }

  /** What is to be known of tables from the node they are in. */
  interface Node {
    /**
     * Tells of SSTables that come from now on by another way than a flush.
     *
     * @return whether rows of the table may be cached; null if there is no such table yet
     */
    Boolean watch(TableId id, Runnable foreign);

    /** Name, length and checksum of every finished SSTable of a table, in a fixed order. */
    List<String> sstables(TableId id);

    /** Something is going on: the node may be far enough for what could not be done before. */
    void settle();
  }

  private final Node node;
  private final ConcurrentHashMap<TableId, Table> tables = new ConcurrentHashMap<>();
  private final AtomicInteger lastGroup = new AtomicInteger();
  private volatile Consumer<Table> onForeign = table -> {};

  Tables(Node node) {
    this.node = node;
  }

  void onForeign(Consumer<Table> action) {
    onForeign = action;
  }

  /** Takes a table over from the last run, with the SSTables it had at its end. */
  void keep(TableId id, int group, List<String> sstables) {
    lastGroup.accumulateAndGet(group, Math::max);
    tables.put(id, new Table(id, group, sstables));
  }

  /** Numbers up to this one were given in the last run. */
  void reserve(int group) {
    lastGroup.accumulateAndGet(group, Math::max);
  }

  /**
   * The table if its rows may be cached, null otherwise. Begins to watch it when it is first asked
   * for.
   */
  Table cached(TableId id) {
    Table table = tables.get(id);
    if (table == null) {
      node.settle();
      table = tables.computeIfAbsent(id, i -> new Table(i, lastGroup.incrementAndGet(), null));
    }
    if (!table.watched && !watch(table)) {
      return null;
    }
    return table.allowed ? table : null;
  }

  private boolean watch(Table table) {
    synchronized (table) {
      if (table.watched) {
        return true;
      }
      Boolean allowed = node.watch(table.id, () -> onForeign.accept(table));
      if (allowed == null) {
        return false;
      }
      // Watched first, compared then: nothing comes in between. What came before shows here.
      if (table.kept != null && (!allowed || !table.kept.equals(node.sstables(table.id)))) {
        onForeign.accept(table);
      }
      table.kept = null;
      table.allowed = allowed;
      table.watched = true;
      return true;
    }
  }

  /** The node may be far enough now for what could not be done before. */
  void settle() {
    node.settle();
  }

  Collection<Table> all() {
    return new ArrayList<>(tables.values());
  }

  int lastGroup() {
    return lastGroup.get();
  }

  /** The SSTables that a table's rows belong to, at the end of a run. */
  List<String> sstables(Table table) {
    synchronized (table) {
      // One that nobody asked for was not watched: only what it had at the start counts.
      return table.kept != null ? table.kept : node.sstables(table.id);
    }
  }
}
