package io.afterglow.cassandra;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The SSTables of a table that its watch was told of, by the names of their data files. Cassandra
 * puts an SSTable in place first and tells of it then. If something fails in between, nobody is
 * told of what may be newer than cached rows. The stop finds it here:
 *
 * <ol>
 *   <li>The watch begins with those that are there.
 *   <li>Those that come from memory, or from elsewhere, are added.
 *   <li>A compaction replaces some by others. If it replaces one that nobody told of, what it makes
 *       counts as not told of until that is told of.
 *   <li>At the stop each SSTable on disk must be one of these.
 * </ol>
 *
 * A compaction that is given up tells that what it had begun is replaced by what was there before.
 * What it had begun nobody was told of, and what was there stays.
 *
 * <p>The race: Cassandra tells its own parts first, and an index may be built meanwhile for
 * minutes. Then a compaction replaces an SSTable before it is told of here.
 */
final class ToldSSTables {
  private final Set<String> names = new HashSet<>();

  /** What a compaction has made, and what of its sources was not told of yet. */
  private final Map<String, Set<String>> doubtful = new HashMap<>();

  synchronized void came(Collection<String> sstables) {
    Deque<String> told = new ArrayDeque<>(sstables);
    while (!told.isEmpty()) {
      String name = told.remove();
      names.add(name);
      for (Iterator<Map.Entry<String, Set<String>>> it = doubtful.entrySet().iterator();
          it.hasNext(); ) {
        Map.Entry<String, Set<String>> made = it.next();
        if (made.getValue().remove(name) && made.getValue().isEmpty()) {
          it.remove();
          told.add(made.getKey());
        }
      }
    }
  }

  synchronized void replaced(Collection<String> old, Collection<String> made) {
    Set<String> missing = new HashSet<>(old);
    missing.removeAll(names);
    Set<String> before = new HashSet<>(made);
    before.retainAll(names);
    names.removeAll(old);
    for (String name : made) {
      if (missing.isEmpty() || before.contains(name)) {
        came(Arrays.asList(name));
      } else {
        doubtful.put(name, new HashSet<>(missing));
      }
    }
  }

  /**
   * Whether these are no others.
   *
   * @param lines as {@link SSTables#list} makes them
   */
  synchronized boolean hold(List<String> lines) {
    return lines.stream().allMatch(line -> names.contains(SSTables.name(line)));
  }
}
