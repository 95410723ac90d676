package io.afterglow.cassandra;

import java.io.IOException;

/** What is known of the file that a chunk reader reads. */
final class ChunkFile {
  /** Not whose chunks are looked up or kept. */
  static final ChunkFile NONE = new ChunkFile(null, 0, 0);

  /** Where the identity comes from; asked in the background only. */
  interface Source {
    /** Null as long as the file is not finished. */
    ChunkIdentity identity() throws IOException;

    String path();
  }

  final Source source;

  final Spans spans = new Spans();
  private final long length;
  private final int chunkSize;

  /** Null until it is known. */
  volatile ChunkIdentity identity;

  /** When the identity may be asked for again, by {@link System#nanoTime}. */
  private volatile long notBefore;

  private volatile boolean asked;

  /**
   * @param length what the reader takes for the end of the data: less than there is, when it was
   *     opened before the file was finished
   */
  ChunkFile(Source source, long length, int chunkSize) {
    this.source = source;
    this.length = length;
    this.chunkSize = chunkSize;
  }

  /** Bytes that the chunk at a position must have; 0 if no chunk begins there. */
  int lengthAt(long position) {
    if (position < 0 || position >= length || position % chunkSize != 0) {
      return 0;
    }
    return (int) Math.min(chunkSize, length - position);
  }

  /** Whether it is time to ask for the identity, which one caller is told. */
  synchronized boolean ask(long now, long pause) {
    if (asked && now - notBefore < 0) {
      return false;
    }
    asked = true;
    notBefore = now + pause;
    return true;
  }
}
