package io.afterglow.cassandra;

/**
 * How often a thread that has read a chunk of a file goes on to the next one. Some rows cross the
 * end of a chunk. In a table of large rows often all of them do. What Cassandra will read is not
 * known to a reader of chunks, so what was read before has to tell. Counts of threads that meet may
 * be lost: it is an estimate.
 */
final class Spans {
  /** Places in a row of chunks that are told apart; the last stands for all behind it too. */
  static final int PLACES = 4;

  /** Reads without which nothing is said. */
  static final int LEAST = 256;

  private static final int WINDOW = 16 * LEAST;

  private final int[] reads = new int[PLACES];
  private final int[] followed = new int[PLACES];

  /** A chunk was read that has this place in its row. */
  void read(int place) {
    if (++reads[place] >= WINDOW) {
      reads[place] /= 2;
      followed[place] /= 2;
    }
  }

  /** And the same thread went on to the next. */
  void followed(int place) {
    followed[place]++;
  }

  /** Whether the next chunk will be wanted: of ten guesses at most one was wrong lately. */
  boolean goesOn(int place) {
    return reads[place] >= LEAST && followed[place] * 10L >= reads[place] * 9L;
  }
}
