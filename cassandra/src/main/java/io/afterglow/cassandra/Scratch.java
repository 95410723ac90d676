package io.afterglow.cassandra;

import java.nio.ByteBuffer;

/** A direct buffer for each thread, made when it is first wanted, and larger when it must be. */
final class Scratch {
  private static final int LEAST = 64 << 10;

  private final ThreadLocal<ByteBuffer> buffers = new ThreadLocal<>();

  /** This thread's, cleared, with room for so many bytes. */
  ByteBuffer of(int length) {
    ByteBuffer buffer = buffers.get();
    if (buffer == null || buffer.capacity() < length) {
      buffer = ByteBuffer.allocateDirect(Math.max(length, LEAST));
      buffers.set(buffer);
    }
    buffer.clear();
    return buffer;
  }
}
