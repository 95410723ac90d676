package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Chunks on their way to flash. They answer reads until they are there. */
final class FillQueue {
  /** A copy of a chunk. */
  static final class Waiting {
    final ChunkKey key;
    final ChunkIdentity identity;
    final byte[] bytes;

    private Waiting(ChunkKey key, ChunkIdentity identity, byte[] bytes) {
      this.key = key;
      this.identity = identity;
      this.bytes = bytes;
    }
  }

  private final long most;
  private final AtomicLong bytes = new AtomicLong();
  private final ConcurrentHashMap<ChunkKey, Waiting> waiting = new ConcurrentHashMap<>();
  private final LinkedBlockingQueue<Waiting> order = new LinkedBlockingQueue<>();

  /**
   * @param most bytes of chunks that may wait
   */
  FillQueue(long most) {
    this.most = most;
  }

  /**
   * Copies all of a buffer's first bytes; false if there is no room. One that waits already is not
   * taken twice.
   */
  boolean offer(ChunkKey key, ChunkIdentity identity, ByteBuffer chunk, int length) {
    if (bytes.addAndGet(length) > most) {
      bytes.addAndGet(-length);
      return false;
    }
    ByteBuffer source = chunk.duplicate();
    source.position(0).limit(length);
    byte[] copy = new byte[length];
    source.get(copy);
    Waiting entry = new Waiting(key, identity, copy);
    if (waiting.putIfAbsent(key, entry) == null) {
      order.add(entry);
    } else {
      bytes.addAndGet(-length);
    }
    return true;
  }

  /** One that waits, or null. */
  Waiting find(ChunkKey key) {
    return bytes.get() == 0 ? null : waiting.get(key);
  }

  /** The oldest, or null after a while without one. {@link #done} must follow. */
  Waiting take(long millis) throws InterruptedException {
    return order.poll(millis, TimeUnit.MILLISECONDS);
  }

  /** It is on flash, or will never be. */
  void done(Waiting entry) {
    waiting.remove(entry.key);
    bytes.addAndGet(-entry.bytes.length);
  }

  long bytes() {
    return bytes.get();
  }
}
