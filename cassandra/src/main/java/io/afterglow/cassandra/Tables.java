package io.afterglow.cassandra;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import org.apache.cassandra.schema.TableId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The tables that have rows in the cache. Each has a number in the engine, its group, by which all
 * of its rows can be removed at once. From its first use on it is watched for two events. One is an
 * SSTable that was not flushed from memory, which may be newer than cached rows. The other is a new
 * definition. Of a table that was dropped no more is kept than its number.
 *
 * <p>Removing all rows of a table writes to a drive, which may hang. So it is handed to one thread
 * in the background, in these steps:
 *
 * <ol>
 *   <li>From the moment it is asked for, nothing of the table is served or filled.
 *   <li>The thread removes rows and fills in flight.
 *   <li>The table is served again, if nothing was asked for since.
 * </ol>
 *
 * Nobody waits for another one who watches a table: meanwhile there is a miss. That one waits for a
 * removal for a moment, so that its own read can fill where the drive answers. If a removal is not
 * over when the stop begins, the next run does not keep the rows of its table.
 */
final class Tables {
  private static final Logger logger = LoggerFactory.getLogger(Tables.class);

  /** A drive that answers has removed the rows long before. */
  private static final long PATIENCE_NANOS = TimeUnit.MILLISECONDS.toNanos(100);

  /** A table. */
  static final class Table {
    final TableId id;
    final int group;

    /** What the last run left, as long as the table is not watched; null for one without rows. */
    private State kept;

    private volatile Watch watch;

    /** What that was told of. */
    private ToldSSTables told;

    /** The table was dropped and its rows are removed; until a table with its id is watched. */
    private volatile boolean dropped;

    /** Held by whoever begins or ends the watch. */
    private final ReentrantLock watching = new ReentrantLock();

    /** Removals of all rows that were asked for, and how many of these are over. */
    private final AtomicLong asked = new AtomicLong();

    private volatile long removed;

    /** A removal waits for its thread, and will be for all that are asked for until it begins. */
    private final AtomicBoolean waiting = new AtomicBoolean();

    /** A removal was not over at the stop. */
    private volatile boolean cold;

    Table(TableId id, int group, State kept) {
      this.id = id;
      this.group = group;
      this.kept = kept;
    }

    /** Whether rows that were to be removed may still be there. */
    private boolean isBeingEmptied() {
      return removed != asked.get();
    }

    private synchronized void emptied(long asked) {
      removed = asked;
      notifyAll();
    }

    private synchronized void awaitEmptied() {
      long end = System.nanoTime() + PATIENCE_NANOS;
      try {
        for (long left = PATIENCE_NANOS; left > 0 && isBeingEmptied(); ) {
          TimeUnit.NANOSECONDS.timedWait(this, left);
          left = end - System.nanoTime();
        }
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** What the rows of a table belong to: they are served by another run only if it is the same. */
  static final class State {
    /** Stands for the table's definition: it is another one after each ALTER. */
    final String schema;

    /** Name, length and checksum of every finished SSTable, in a fixed order. */
    final List<String> sstables;

    State(String schema, List<String> sstables) {
      this.schema = schema;
      this.sstables = sstables;
    }

    /** That of rows which no other run may serve. */
    static State nothing() {
      return new State("none", Collections.emptyList());
    }

    boolean same(State other) {
      return schema.equals(other.schema) && sstables.equals(other.sstables);
    }
  }

  /** A table as it was defined when the watch began. */
  interface Watch {
    /**
     * Whether the table is still the same object with the same definition. After an ALTER it is
     * not: while `caching` was NONE, Cassandra told the cache of no writes. After DROP and CREATE
     * with the same id it is not either.
     */
    boolean current();

    /** Whether the table was dropped. It is not {@link #current} then, and never again. */
    boolean gone();

    /** Whether rows of the table may be cached. */
    boolean allowed();

    /** {@link State#schema} of the definition that is watched. */
    String schema();

    /** Nobody is to be told any more. */
    void end();
  }

  /** Who is told of a table's SSTables, by the names of their data files. */
  interface Listener {
    /** These are there when the watch begins, or have come since, by whatever way. */
    void came(Collection<String> sstables);

    /** Some have come by another way than a flush: they may be newer than cached rows. */
    void foreign();

    /** What some of them hold is in others now. */
    void replaced(Collection<String> old, Collection<String> made);
  }

  /** What is to be known of tables from the node they are in. */
  interface Node {
    /**
     * Tells of all SSTables that are there, and of those that come from now on.
     *
     * @return the watch; null if there is no such table yet
     */
    Watch watch(TableId id, Listener listener);

    /** Name, length and checksum of every finished SSTable of a table, in a fixed order. */
    List<String> sstables(TableId id);

    /** Something is going on: the node may be far enough for what could not be done before. */
    void settle();
  }

  private final Node node;
  private final ConcurrentHashMap<TableId, Table> tables = new ConcurrentHashMap<>();
  private final AtomicInteger lastGroup = new AtomicInteger();
  private volatile Consumer<Table> onForeign = table -> {};
  private final Executor remover;
  private volatile boolean ended;

  Tables(Node node) {
    this(node, thread());
  }

  /**
   * @param remover removes rows, one after the other
   */
  Tables(Node node, Executor remover) {
    this.node = node;
    this.remover = remover;
  }

  private static Executor thread() {
    ThreadPoolExecutor thread =
        new ThreadPoolExecutor(
            1,
            1,
            0,
            TimeUnit.SECONDS,
            new LinkedBlockingQueue<>(),
            task -> {
              Thread made = new Thread(task, "afterglow-rows");
              made.setDaemon(true);
              return made;
            });
    // Later there may be no memory for one.
    thread.prestartCoreThread();
    return thread;
  }

  /** What removes all rows and fills of a table. It is called in the background. */
  void onForeign(Consumer<Table> action) {
    onForeign = action;
  }

  /** Takes a table over from the last run, with its state at the end of that. */
  void keep(TableId id, int group, State state) {
    lastGroup.accumulateAndGet(group, Math::max);
    tables.put(id, new Table(id, group, state));
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
    return cached(id, true);
  }

  /** Watches a table of which a row is written. A write waits for no drive. */
  void written(TableId id) {
    cached(id, false);
  }

  private Table cached(TableId id, boolean waits) {
    Table table = tables.get(id);
    if (table == null) {
      node.settle();
      table = tables.computeIfAbsent(id, i -> new Table(i, lastGroup.incrementAndGet(), null));
    }
    Watch watch = table.watch;
    if (watch == null || !watch.current()) {
      watch = watch(table, waits);
    }
    return watch != null && watch.allowed() && !table.isBeingEmptied() ? table : null;
  }

  /** Removes all rows of a table, in the background. From now on none of them is served. */
  void removeRows(Table table) {
    table.asked.incrementAndGet();
    if (ended) {
      table.cold = true;
    }
    if (table.waiting.compareAndSet(false, true)) {
      try {
        remover.execute(() -> removeNow(table));
      } catch (Throwable e) {
        // It serves nothing until the next removal.
        table.waiting.set(false);
      }
    }
  }

  private void removeNow(Table table) {
    table.waiting.set(false);
    long asked = table.asked.get();
    onForeign.accept(table);
    table.emptied(asked);
  }

  /** The stop begins: what is not removed by now may be there at the next start. */
  void end() {
    ended = true;
    for (Table table : tables.values()) {
      if (table.isBeingEmptied()) {
        table.cold = true;
      }
    }
  }

  /**
   * Watches a table, anew where it was altered; null if there is no such table, or if another
   * thread is at it.
   *
   * <p>The race: a fill that began before an ALTER may put its row after it. That row does no harm.
   * The next caller finds the old watch. It asks for the removal of the table's rows and all fills
   * in flight before it publishes the new watch. So no row is served under a definition before the
   * rows of the older one are gone.
   */
  private Watch watch(Table table, boolean waits) {
    if (!table.watching.tryLock()) {
      return null;
    }
    try {
      Watch old = table.watch;
      if (old != null && old.current()) {
        return old;
      }
      ToldSSTables told = new ToldSSTables();
      Watch watch = node.watch(table.id, listener(table, told));
      if (watch == null) {
        letGo(table);
        return null;
      }
      // Watched first, compared then: nothing comes in between. What came before shows here. A read
      // of a table that was dropped may have come back only after its rows were removed.
      boolean same = old == null && !table.dropped;
      if (same && table.kept != null) {
        State now = new State(watch.schema(), node.sstables(table.id));
        same = watch.allowed() && table.kept.same(now);
      }
      if (!same) {
        removeRows(table);
      }
      if (old != null) {
        old.end();
      }
      table.kept = null;
      table.dropped = false;
      table.told = told;
      table.watch = watch;
      // Others do not wait for this.
      if (waits) {
        table.awaitEmptied();
      }
      return watch;
    } finally {
      table.watching.unlock();
    }
  }

  private Listener listener(Table table, ToldSSTables told) {
    return new Listener() {
      @Override
      public void came(Collection<String> sstables) {
        told.came(sstables);
      }

      @Override
      public void foreign() {
        removeRows(table);
      }

      @Override
      public void replaced(Collection<String> old, Collection<String> made) {
        told.replaced(old, made);
      }
    };
  }

  /** Removes the rows of a table that is not there any more, and forgets the table itself. */
  private void letGo(Table table) {
    Watch old = table.watch;
    if (old == null) {
      return;
    }
    removeRows(table);
    old.end();
    table.dropped = true;
    table.watch = null;
  }

  /** The node may be far enough now for what could not be done before. */
  void settle() {
    node.settle();
  }

  /** All that had a number in this run, also those that were dropped. */
  Collection<Table> all() {
    return new ArrayList<>(tables.values());
  }

  /**
   * The tables that may have rows; those that were dropped are let go.
   *
   * <p>It waits for nobody. Cassandra asks for this in the middle of a DROP, and who begins to
   * watch a table may wait for the end of that. A table that is being watched is let go later.
   */
  Collection<Table> present() {
    List<Table> present = new ArrayList<>();
    for (Table table : tables.values()) {
      Watch watch = table.watch;
      if (watch != null && watch.gone() && table.watching.tryLock()) {
        try {
          if (table.watch == watch) {
            letGo(table);
          }
        } finally {
          table.watching.unlock();
        }
      }
      if (!table.dropped) {
        present.add(table);
      }
    }
    return present;
  }

  int lastGroup() {
    return lastGroup.get();
  }

  /** What a table's rows belong to at the end of a run; without SSTables if to nothing. */
  State state(Table table) {
    table.watching.lock();
    try {
      if (table.cold || table.isBeingEmptied()) {
        return State.nothing();
      }
      if (table.kept != null) {
        // Nobody asked for it, so it was not watched: only its state at the start counts.
        return table.kept;
      }
      Watch watch = table.watch;
      if (watch == null || !watch.current()) {
        return State.nothing();
      }
      List<String> sstables = node.sstables(table.id);
      if (!table.told.hold(sstables)) {
        logger.warn(
            "Afterglow row cache: {} has SSTables that nobody told of, its rows are not kept",
            table.id);
        return State.nothing();
      }
      // What came while they were listed asked for a removal before it was told of.
      if (table.cold || table.isBeingEmptied()) {
        return State.nothing();
      }
      return new State(watch.schema(), sstables);
    } finally {
      table.watching.unlock();
    }
  }
}
