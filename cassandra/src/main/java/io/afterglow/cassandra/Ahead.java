package io.afterglow.cassandra;

import java.nio.ByteBuffer;

/** What a thread has read last, and the chunk behind it, where that was read together with it. */
final class Ahead {
  private static final ThreadLocal<Ahead> AHEAD = ThreadLocal.withInitial(Ahead::new);

  private Spans spans;
  private long end;
  private int place;
  private ChunkKey key;
  private ByteBuffer bytes;

  private Ahead() {}

  static Ahead ofThread() {
    return AHEAD.get();
  }

  /** The thread reads a chunk: which place that has in a row of chunks of one file. */
  int step(Spans now, long position, int length) {
    if (now == spans && position == end) {
      spans.followed(place);
      place = Math.min(place + 1, Spans.PLACES - 1);
    } else {
      place = 0;
    }
    spans = now;
    end = position + length;
    now.read(place);
    return place;
  }

  /** Memory for a chunk; what was kept is lost. */
  ByteBuffer room(int length) {
    key = null;
    if (bytes == null || bytes.capacity() < length) {
      bytes = ByteBuffer.allocateDirect(length);
    }
    bytes.clear();
    return bytes;
  }

  /** The first bytes of that memory are this chunk. */
  void keep(ChunkKey chunk, int length) {
    key = chunk;
    bytes.position(0).limit(length);
  }

  /** Whether a chunk is kept. */
  boolean keeps() {
    return key != null;
  }

  /** Copies the chunk that is kept if it is this one; it is not kept any longer in any case. */
  boolean give(ChunkKey wanted, ByteBuffer to) {
    boolean same = wanted.equals(key);
    if (same) {
      to.clear();
      to.put(bytes);
    }
    key = null;
    return same;
  }
}
