package io.afterglow.cassandra;

import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.cassandra.schema.TableId;

/** A node whose tables are what a test says. */
final class FakeNode implements Tables.Node {
  List<String> sstables = Collections.singletonList("sstable one");
  Runnable foreign;

  /** Of the table that was watched last. */
  Tables.Listener listener;

  boolean allowed = true;

  /** Another one after each ALTER. */
  int schema = 1;

  int watches;

  /** Tables that are not there; another one is made with the same id when it is taken out. */
  final Set<TableId> dropped = new HashSet<>();

  /** Whoever watches a table passes here. */
  Runnable passage = () -> {};

  @Override
  public Tables.Watch watch(TableId id, Tables.Listener told) {
    passage.run();
    if (dropped.contains(id)) {
      return null;
    }
    listener = told;
    foreign = told::foreign;
    sstables.forEach(line -> told.came(Collections.singleton(SSTables.name(line))));
    watches++;
    int seen = schema;
    return new Tables.Watch() {
      private boolean gone;

      @Override
      public boolean current() {
        return schema == seen && !gone();
      }

      @Override
      public boolean gone() {
        gone |= dropped.contains(id);
        return gone;
      }

      @Override
      public boolean allowed() {
        return allowed;
      }

      @Override
      public String schema() {
        return "schema-" + seen;
      }

      @Override
      public void end() {
        watches--;
      }
    };
  }

  /** Whoever lists SSTables passes here. */
  Runnable listing = () -> {};

  @Override
  public List<String> sstables(TableId id) {
    listing.run();
    return sstables;
  }

  @Override
  public void settle() {}
}
