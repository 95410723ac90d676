package io.afterglow.cassandra;

import java.nio.ByteBuffer;
import net.jpountz.lz4.LZ4Compressor;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;

/**
 * Chunks as LZ4 blocks, with the library that Cassandra brings. A chunk is kept so only when that
 * is shorter, so its length on flash tells the form.
 */
final class ChunkForm {
  private static final Scratch PACKED = new Scratch();

  private ChunkForm() {}

  /** Loaded when it is first used. */
  private static final class Lz4 {
    static final LZ4Compressor COMPRESSOR = LZ4Factory.fastestInstance().fastCompressor();
    static final LZ4SafeDecompressor DECOMPRESSOR = LZ4Factory.fastestInstance().safeDecompressor();
  }

  /** The shorter form, or null if it would save less than an eighth. */
  static byte[] pack(byte[] chunk) {
    byte[] packed = new byte[chunk.length - chunk.length / 8];
    try {
      int length = Lz4.COMPRESSOR.compress(chunk, 0, chunk.length, packed, 0, packed.length);
      return length < chunk.length ? java.util.Arrays.copyOf(packed, length) : null;
    } catch (net.jpountz.lz4.LZ4Exception e) {
      return null;
    }
  }

  /** Turns the first bytes of a buffer into the chunk they are the shorter form of. */
  static boolean unpack(ByteBuffer buffer, int packed, int length) {
    ByteBuffer copy = PACKED.of(packed);
    ByteBuffer source = buffer.duplicate();
    source.position(0).limit(packed);
    copy.put(source);
    return Lz4.DECOMPRESSOR.decompress(copy, 0, packed, buffer, 0, length) == length;
  }
}
