package io.afterglow.cassandra;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeSet;

/** The names of all options, of both caches. */
final class OptionNames {
  /** Where the properties file is; only on the command line. */
  static final String FILE = "afterglow.config";

  static final String NATIVE_DIR = "afterglow.native.dir";

  /** What the names of the row cache's options begin with. */
  static final String ROW_CACHE = "afterglow.rowcache.";

  /** What the names of the chunk cache's options begin with. */
  static final String CHUNK_CACHE = "afterglow.chunkcache.";

  private OptionNames() {}

  /** All that a properties file may set. */
  static Set<String> known() {
    Set<String> known = new TreeSet<>(names(ROW_CACHE));
    known.addAll(names(CHUNK_CACHE, "queue", "admit", "compress", "verify"));
    known.add(NATIVE_DIR);
    return known;
  }

  /** The names of a cache's options: what both have, and what it has besides. */
  private static Set<String> names(String cache, String... others) {
    Set<String> names = new HashSet<>();
    for (String own :
        Arrays.asList(
            "flash",
            "dir",
            "memory",
            "reads",
            "timeout",
            "write-budget",
            "tables.allow",
            "tables.deny")) {
      names.add(cache + own);
    }
    for (String own : others) {
      names.add(cache + own);
    }
    return names;
  }
}
