package io.afterglow.cassandra;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
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
 *       counts as not told of either.
 *   <li>At the stop each SSTable on disk must be one of these.
 * </ol>
 *
 * A compaction that is given up tells that what it had begun is replaced by what was there before.
 * What it had begun nobody was told of, and what was there stays.
 */
final class ToldSSTables {
  private final Set<String> names = new HashSet<>();

  synchronized void came(Collection<String> sstables) {
    names.addAll(sstables);
  }

  synchronized void replaced(Collection<String> old, Collection<String> made) {
    Set<String> told = new HashSet<>(made);
    if (!names.containsAll(old)) {
      told.retainAll(names);
    }
    names.removeAll(old);
    names.addAll(told);
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
