package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** What a chunk is known by: the identity of its file, where it begins and how long it is. */
final class ChunkKey {
  private static final int LENGTH = ChunkIdentity.LENGTH + 8 + 4;

  final byte[] bytes;

  /** Spread over all bits. */
  final long hash;

  ChunkKey(ChunkIdentity identity, long position, int length) {
    bytes =
        ByteBuffer.allocate(LENGTH).put(identity.bytes).putLong(position).putInt(length).array();
    // SplitMix64's finalizer; the identity is spread already.
    long h = identity.seed + position * 0x9E3779B97F4A7C15L + length;
    h = (h ^ (h >>> 30)) * 0xBF58476D1CE4E5B9L;
    h = (h ^ (h >>> 27)) * 0x94D049BB133111EBL;
    hash = h ^ (h >>> 31);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof ChunkKey && Arrays.equals(bytes, ((ChunkKey) other).bytes);
  }

  @Override
  public int hashCode() {
    return (int) hash;
  }
}
