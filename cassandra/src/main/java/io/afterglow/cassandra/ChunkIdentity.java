package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;

/**
 * A finished file that will never change, as 128 bits that no other file has ever had: a hash of
 * all that tells files apart. Nothing that is counted is in it, since numbers are given again.
 */
final class ChunkIdentity {
  static final int LENGTH = 16;

  final byte[] bytes;

  /** The engine removes chunks by this; two files may share one, and are removed together then. */
  final int group;

  final long seed;

  /** The file is being deleted. */
  volatile boolean dead;

  private ChunkIdentity(byte[] bytes) {
    this.bytes = bytes;
    ByteBuffer buffer = ByteBuffer.wrap(bytes);
    seed = buffer.getLong(8);
    int number = buffer.getInt(0);
    group = number == 0 ? 1 : number;
  }

  /** Of a text that says everything about the file. */
  static ChunkIdentity of(String text) {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      byte[] hash = digest.digest(text.getBytes(StandardCharsets.UTF_8));
      return new ChunkIdentity(Arrays.copyOf(hash, LENGTH));
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }

  boolean same(ChunkIdentity other) {
    return Arrays.equals(bytes, other.bytes);
  }
}
