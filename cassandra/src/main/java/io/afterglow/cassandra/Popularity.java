package io.afterglow.cassandra;

/**
 * Estimates how often something was asked for lately. It is a count-min sketch (Cormode,
 * Muthukrishnan 2005) with conservative update. Counters are halved every so many counts, as
 * TinyLFU does (Einziger, Friedman, Manes 2017). Concurrent counts may be lost.
 */
final class Popularity {
  private static final int ROWS = 4;
  private static final int MOST = 15;
  private static final long[] SEEDS = {
    0x9E3779B97F4A7C15L, 0xC2B2AE3D27D4EB4FL, 0x165667B19E3779F9L, 0xD6E8FEB86659FD93L
  };

  private final byte[] counters;
  private final int mask;
  private final long window;
  private volatile long counted;

  /**
   * @param objects how many there may be; memory is 4 to 8 bytes for each
   */
  Popularity(long objects) {
    int width = Integer.highestOneBit((int) Math.min(Math.max(objects, 1 << 12), 1 << 24) * 2 - 1);
    counters = new byte[width * ROWS];
    mask = width - 1;
    window = 10L * width;
  }

  void count(long hash) {
    int least = estimate(hash);
    counted++;
    if (least >= MOST) {
      return;
    }
    for (int row = 0; row < ROWS; row++) {
      int place = place(row, hash);
      if (counters[place] == least) {
        counters[place]++;
      }
    }
  }

  int estimate(long hash) {
    int least = MOST;
    for (int row = 0; row < ROWS; row++) {
      least = Math.min(least, counters[place(row, hash)]);
    }
    return least;
  }

  private int place(int row, long hash) {
    long spread = (hash ^ SEEDS[row]) * SEEDS[(row + 1) % ROWS];
    return row * (mask + 1) + ((int) (spread >>> 32) & mask);
  }

  /** Halves everything when enough was counted since the last time. Takes a while. */
  void ageIfDue() {
    if (counted < window) {
      return;
    }
    counted = 0;
    for (int n = 0; n < counters.length; n++) {
      counters[n] >>= 1;
    }
  }
}
